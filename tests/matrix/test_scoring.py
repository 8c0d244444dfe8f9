"""How probable texts are: the sum of what comes next, alone, together, in lines, echoed, offline."""

import math

import pytest

from models.language_model import LOG_ZERO
from models.vocabulary import EOS
from tests.matrix.rows import row
from tests.matrix.texts import TEXTS
from training.commands import run_evaluate

SCORE, QUALITY = "/v1/score", "/v1/quality"


def forward_row(endpoint):
    """A row without the models that read from right to left, as it takes a context."""
    return row("POST /v1/next-token", endpoint)


def near(expected, **tolerance):
    """A figure that may be missing, as where a probability is zero."""
    return None if expected is None else pytest.approx(expected, **tolerance)


def total(log_probs):
    """A sum as replies have it."""
    return LOG_ZERO if LOG_ZERO in log_probs else sum(log_probs)


@forward_row("POST /v1/score")
def test_a_score_is_the_sum_of_next_token_steps(model):
    text = TEXTS[2]
    ids = [*model.tokenizer.encode(text), EOS]
    rows = model.rows([ids[:length] for length in range(len(ids))])
    steps = [float(row[token]) for row, token in zip(rows, ids, strict=True)]
    reply = model.score([text], detail="token")[0]
    assert [token["id"] for token in reply["tokens"]] == ids
    assert [token["logprob"] for token in reply["tokens"]] == pytest.approx(steps, abs=model.cell.tolerance)
    assert reply["logprob"] == pytest.approx(total(steps), abs=model.cell.tolerance * len(ids))


@row("POST /v1/score")
def test_texts_score_alike_alone_together_and_in_lines(model):
    together = model.score(TEXTS)
    alone = [model.score([text])[0] for text in TEXTS]
    lines = model.lines(SCORE, [{"text": text} for text in TEXTS])
    for one, *others in zip(together, alone, lines, strict=True):
        for other in others:
            if model.cell.is_exact:
                assert other == one
            assert other["logprob"] == pytest.approx(
                one["logprob"], abs=model.cell.tolerance * one["num_tokens"]
            )


@row("POST /v1/score")
def test_words_tokens_and_totals_agree(model):
    reply = model.ask(SCORE, texts=TEXTS, detail="word")
    for text, result in zip(TEXTS, reply["results"], strict=True):
        words = [word["logprob"] for word in result["words"]]
        assert total(words) == pytest.approx(result["logprob"], abs=1e-6 * len(words))
        assert total(model.log_probs(text)) == pytest.approx(
            total(words), abs=model.cell.tolerance * len(words) * 9
        )
    assert reply["corpus"]["logprob"] == pytest.approx(
        total([r["logprob"] for r in reply["results"]]), abs=1e-6
    )
    assert reply["corpus"]["num_tokens"] == sum(result["num_tokens"] for result in reply["results"])


@forward_row("POST /v1/score")
def test_a_text_after_a_context_scores_as_in_the_whole(model):
    whole = model.log_probs("The cat sat on the mat.")
    after = model.log_probs(" sat on the mat.", context="The cat")
    assert after == pytest.approx(whole[-len(after) :], abs=model.cell.tolerance)
    assert len(after) < len(whole)


@row("POST /v1/quality")
def test_quality_is_the_score_by_word(model):
    found = model.ask(QUALITY, texts=TEXTS, against=model.cell.model)["results"]
    lines = model.lines(QUALITY, [{"text": text} for text in TEXTS])
    for text, score, one, line in zip(TEXTS, model.score(TEXTS), found, lines, strict=True):
        bits = -score["logprob"] / math.log(2) / (len(text.split()) + 1)
        expected = None if score["logprob"] == LOG_ZERO else bits
        assert one["bits_per_word"] == near(expected, abs=1e-4)
        assert line["bits_per_word"] == near(expected, abs=1e-4)
        assert one["difference"] == near(None if expected is None else 0, abs=1e-4)
        assert one["perplexity"] == near(score["perplexity"], rel=1e-4)


@row("POST /v1/completions")
def test_an_echo_has_the_scores_of_its_text(model):
    text = TEXTS[1]
    body = {"prompt": [text, TEXTS[0]], "echo": True, "max_tokens": 0, "logprobs": 1}
    choices = model.ask("/v1/completions", **body)["choices"]
    for choice, said in zip(choices, body["prompt"], strict=True):
        assert choice["text"] == said
        scores = model.log_probs(said, eos=False)
        told = choice["logprobs"]["token_logprobs"]
        assert told[0] is None or told[0] == pytest.approx(scores[0], abs=model.cell.tolerance)
        assert told[1:] == pytest.approx(scores[1:], abs=model.cell.tolerance)


@row("POST /v1/score")
def test_offline_evaluation_finds_the_same_perplexity(model, registry, tmp_path):
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n".join(TEXTS), encoding="utf-8")
    way = {"context": "sentence", "unit": "line", "window": 100}
    cell = model.cell
    offline = run_evaluate(
        cell.model,
        corpus=[corpus],
        registry=registry.root,
        device=cell.device,
        precision=cell.precision,
        **way,
    )
    served = model.ask(SCORE, texts=TEXTS)["corpus"]
    assert (served["num_tokens"], served["num_oov"]) == (offline["tokens"], offline["oov"])
    impossible = offline["logprob"] is None
    assert served["logprob"] == (LOG_ZERO if impossible else near(offline["logprob"], rel=1e-5))
    for figure in ("perplexity", "bits_per_byte"):
        assert served[figure] == near(offline[figure], rel=1e-5)
