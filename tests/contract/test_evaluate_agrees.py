"""`gramophone evaluate` and sums over /v1/score are the same figures, for every family and tokenizer."""

import numpy as np
import pytest

from service.client import Client
from service.settings import Settings
from tests.servers import running
from training.commands import run_evaluate, run_train

pytestmark = pytest.mark.long
NOUNS, PLACES = ("cat", "dog", "owl", "hen", "naïve café"), ("mat", "bed", "sofa", "roof")
TRAIN = [
    f"The {noun} sat on the {place}, and {number} slept."
    for number in range(9)
    for noun in NOUNS
    for place in PLACES
]
HELD_OUT = [
    "The cat sat on the roof.",
    "An owl slept, unseen.",
    "<s> is not the start </s>",
    "the naïve  café  漢",
]
KINDS = {"word": None, "char": None, "bpe": 300, "unigram": 294}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Every family with every tokenizer, trained for a few steps, behind one service."""
    folder = tmp_path_factory.mktemp("agreement")
    corpus, held_out = folder / "corpus.txt", folder / "held-out.txt"
    corpus.write_text("\n".join(TRAIN))
    held_out.write_text("\n".join(HELD_OUT))
    for kind, size in KINDS.items():
        settings = [
            f"tokenizer.kind={kind}",
            "ngram.order=3",
            "neural.hidden_size=24",
            "neural.embedding_size=24",
        ]
        settings += ["train.max_steps=4", "train.batch_size=4", "train.bptt_length=8"]
        settings += [f"tokenizer.vocab_size={size}"] if size else []
        for recipe in ("ngram", "lstm", "gru"):
            run_train(recipe, name=f"{recipe}-{kind}", registry=folder, corpus=[corpus], assignments=settings)
        parts = f'mixture.models=["ngram-{kind}", "lstm-{kind}"]'
        run_train(
            "mixture",
            name=f"mixture-{kind}",
            registry=folder,
            corpus=[corpus],
            assignments=[parts, "mixture.recipes=[]"],
        )
    with running(Settings(registry=folder)) as server, Client(server.url) as client:
        yield client, folder, held_out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["ngram", "lstm", "gru", "mixture"])
def test_totals_equal_offline_evaluation(served, family, kind):
    client, registry, held_out = served
    model = f"{family}-{kind}"
    offline = run_evaluate(
        model, corpus=[held_out], registry=registry, context="sentence", unit="line", window=100, device="cpu"
    )
    reply = client.score(HELD_OUT, model=model)
    assert reply.corpus.logprob == pytest.approx(offline["logprob"], rel=1e-6)
    assert sum(r.logprob for r in reply.results) == pytest.approx(offline["logprob"], rel=1e-6)
    assert (reply.corpus.num_tokens, reply.corpus.num_oov) == (offline["tokens"], offline["oov"])
    assert reply.corpus.perplexity == pytest.approx(offline["perplexity"], rel=1e-6)
    assert reply.corpus.bits_per_byte == pytest.approx(offline["bits_per_byte"], rel=1e-6)


@pytest.mark.parametrize("family", ["ngram", "lstm", "gru", "mixture"])
def test_one_at_a_time_scores_as_all_together(served, family):
    client, *_ = served
    together = client.score(HELD_OUT, model=f"{family}-bpe").results
    alone = [client.score([text], model=f"{family}-bpe").results[0] for text in HELD_OUT]
    for a, b in zip(together, alone, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-5 * a.num_tokens)


@pytest.mark.parametrize("family", ["ngram", "lstm", "gru", "mixture"])
def test_raw_rows_sum_to_one(served, family):
    client, *_ = served
    rows = np.asarray(client.log_probs(["", "The cat", "zzz"], model=f"{family}-unigram"))
    assert rows.shape[0] == 3
    assert np.exp(rows, dtype=np.float64).sum(axis=1) == pytest.approx(1, abs=1e-5)
