"""N-gram models, networks, caches and int8 networks over HTTP, forward and backward."""

import httpx
import numpy as np
import pytest

from gramophone_client import Client
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import EOS, score_sequences
from service.settings import Settings
from tests.support import families
from tests.support.services import running
from training.commands import run_evaluate, run_train
from training.ngram.estimate import estimate
from training.progress import Progress

pytestmark = pytest.mark.usefixtures("no_pictures")

TEXT = "w3 w5 w9 w10"


def backward_model():
    return estimate(
        families.corpus().reversed(), families.tokenizer().vocabulary, order=3, progress=Progress()
    ).model


@pytest.fixture(scope="module")
def ngram_http(tmp_path_factory):
    """Serve models of the same text, read forward and backward."""
    registry = LocalRegistry(tmp_path_factory.mktemp("ngrams"), create=True)
    for name, model in {"forward": families.model("ngram"), "backward": backward_model()}.items():
        description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {}, direction=name)
        registry.publish(
            name,
            lambda folder, model=model, about=description: write_checkpoint(
                folder, model, families.tokenizer(), about
            ),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("top_k", [1, 5, 40])
def test_candidates_are_the_same_without_the_entropy(ngram_http, top_k):
    asked = {"context": ["", TEXT, "w36"], "top_k": top_k, "model": "forward"}
    whole = ask(ngram_http, "/v1/next-token", **asked)["results"]
    quick = ask(ngram_http, "/v1/next-token", **asked, entropy=False)["results"]
    assert all(result["entropy_bits"] > 0 for result in whole)
    assert quick == [result | {"entropy_bits": None} for result in whole]


def test_a_backward_model_scores_the_reversed_text_in_reading_order(ngram_http):
    reply = ask(ngram_http, "/v1/score", texts=[TEXT], detail="token", model="backward")
    ids = families.tokenizer().encode(TEXT)
    model = backward_model()
    scores = score_sequences(
        model, model.initial_state(1), np.array([[*ids[::-1], EOS]]), np.array([len(ids) + 1])
    )[0]
    tokens = reply["results"][0]["tokens"]
    assert [token["id"] for token in tokens] == [*ids, EOS]
    assert [token["logprob"] for token in tokens] == pytest.approx([*scores[-2::-1], scores[-1]], abs=1e-6)


def test_a_backward_model_scores_without_an_end_mark(ngram_http):
    whole = ask(ngram_http, "/v1/score", texts=[TEXT], detail="token", model="backward")["results"][0][
        "tokens"
    ]
    open_ended = ask(ngram_http, "/v1/score", texts=[TEXT], detail="token", eos=False, model="backward")
    assert open_ended["results"][0]["tokens"] == whole[:-1]


def test_a_backward_model_re_ranks(ngram_http):
    texts = [TEXT, "w10 w9 w5 w3", "w3"]
    scores = ask(ngram_http, "/v1/score", texts=texts, model="backward")["results"]
    candidates = [{"text": text} for text in texts]
    reply = ask(ngram_http, "/v1/rerank", lists=[{"candidates": candidates}], model="backward")
    ranking = reply["lists"][0]["ranking"]
    best = max(range(3), key=lambda i: scores[i]["logprob"])
    assert ranking[0]["index"] == best
    assert ranking[0]["features"]["lm"] == pytest.approx(scores[best]["logprob"], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/next-token", {"context": "w3"}, "model"),
        ("/v1/generate", {"prompt": "w3"}, "model"),
        ("/v1/score", {"texts": ["w3"], "context": "w4 "}, "context"),
        ("/v1/rerank", {"lists": [{"context": "w4", "candidates": [{"text": "w3"}]}]}, "context"),
    ],
)
def test_next_token_of_a_backward_model_is_refused(ngram_http, path, body, param):
    response = ngram_http.post(path, json={**body, "model": "backward"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", param)
    assert "backward@1 reads from right to left" in error["message"]


@pytest.fixture(scope="module")
def neural_http(tmp_path_factory):
    """Serve a small model of each kind, and one that reads backward."""
    registry = LocalRegistry(tmp_path_factory.mktemp("networks"), create=True)
    names = {name.replace(" ", "-"): (name, "forward") for name in families.NEURAL}
    for published, (name, direction) in {**names, "backward": ("every option", "backward")}.items():
        description = CheckpointDescription(
            "2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {}, direction=direction
        )
        registry.publish(
            published,
            lambda folder, name=name, about=description: write_checkpoint(
                folder, families.model(name), families.tokenizer(), about
            ),
        )
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=30) as client,
    ):
        yield client


@pytest.mark.parametrize("model", [name.replace(" ", "-") for name in families.NEURAL])
def test_every_family_scores_predicts_and_generates(neural_http, model):
    """The probability of the end is the same from next-token as from score."""
    tokens = ask(neural_http, "/v1/score", texts=[TEXT], detail="token", model=model)["results"][0]["tokens"]
    following = ask(neural_http, "/v1/next-token", context=TEXT, top_k=40, model=model)["results"][0][
        "candidates"
    ]
    end = next(c["logprob"] for c in following if c["text"] == "</s>")
    assert end == pytest.approx(tokens[-1]["logprob"], abs=1e-5)
    again = ask(neural_http, "/v1/generate", prompt=TEXT, strategy="greedy", max_tokens=4, model=model)
    assert again == ask(
        neural_http, "/v1/generate", prompt=TEXT, strategy="greedy", max_tokens=4, model=model
    )


def test_a_backward_network_scores_in_reading_order_and_does_not_continue(neural_http):
    tokens = ask(neural_http, "/v1/score", texts=[TEXT], detail="token", model="backward")["results"][0][
        "tokens"
    ]
    turned = ask(neural_http, "/v1/score", texts=["w10 w9 w5 w3"], detail="token", model="every-option")
    expected = [token["logprob"] for token in turned["results"][0]["tokens"]]
    assert [t["logprob"] for t in tokens] == pytest.approx([*expected[-2::-1], expected[-1]], abs=1e-5)
    refused = neural_http.post("/v1/generate", json={"prompt": TEXT, "model": "backward"})
    assert refused.status_code == 400


PARTS = {
    "ngram": (),
    "lstm": (),
    "mixture": ("ngram", "lstm"),
    "mixture by context": ("lstm", "ngram"),
    "cache": ("lstm",),
    "unigram cache": ("ngram",),
    "cached mixture": ("mixture by context",),
}
ABOUT = CheckpointDescription("2026-01-01T00:00:00+00:00", {"int8": {"cost": 0.0}}, {}, [[3, 4]], {})
PROMPT = [5, 9, 5, 2, 1, 0, 7, 9, 5]  # has `</s>`, `<s>` and `<unk>`, and repeated words
MODELS = [name.replace(" ", "-") for name in PARTS]


@pytest.fixture(scope="module")
def cached_registry(tmp_path_factory):
    """Publish every model of the table with its parts."""
    registry, made = LocalRegistry(tmp_path_factory.mktemp("cached"), create=True), {}
    for name, parts in PARTS.items():
        version = registry.publish(
            name.replace(" ", "-"),
            lambda folder, name=name, parts=parts: write_checkpoint(
                folder,
                families.model(name),
                families.tokenizer(),
                ABOUT,
                parts=[made[part] for part in parts],
            ),
        )
        made[name] = version.path
    return registry


@pytest.fixture(scope="module", params=["float32", "auto"])
def cached_http(cached_registry, request):
    """Run a service in single precision, or in int8 as the models recommend."""
    settings = Settings(registry=cached_registry.root, precision=request.param)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize("model", MODELS)
def test_generated_tokens_score_as_reported(cached_http, model):
    options = {"prompt": PROMPT, "model": model, "max_tokens": 20, "logprobs": True}
    texts = [ask(cached_http, "/v1/generate", seed=seed, **options)["choices"][0] for seed in range(12)]
    written = max(texts, key=lambda text: len(text["token_ids"]))  # most end early
    assert len(written["token_ids"]) > 2
    body = {"token_ids": [written["token_ids"]], "context": PROMPT, "eos": False, "detail": "token"}
    scored = ask(cached_http, "/v1/score", model=model, **body)["results"][0]["tokens"]
    assert [token["logprob"] for token in scored] == pytest.approx(written["logprobs"], abs=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_contexts_are_told_the_same_alone_and_together(cached_http, model):
    contexts = [PROMPT, [], PROMPT[:3], [4] * 30, PROMPT * 5]
    together = ask(cached_http, "/v1/next-token", context=contexts, top_k=40, model=model)["results"]
    for context, result in zip(contexts, together, strict=True):
        alone = ask(cached_http, "/v1/next-token", context=[context], top_k=40, model=model)["results"][0]
        expected = {c["id"]: c["logprob"] for c in alone["candidates"]}
        assert {c["id"]: c["logprob"] for c in result["candidates"]} == pytest.approx(expected, abs=1e-5)


def test_a_cache_expects_what_was_just_said(cached_http):
    context = [7, 11, 7, 11, 7]
    bare, cached = (
        ask(cached_http, "/v1/next-token", context=context, top_k=40, model=model)["results"][0]["candidates"]
        for model in ("lstm", "cache")
    )
    gain = {c["id"]: c["logprob"] for c in cached}
    for candidate in bare:
        gain[candidate["id"]] -= candidate["logprob"]
    assert {token for token, more in gain.items() if more > 0} == {7, 11}


def test_the_list_of_models_tells_what_computes_in_integers(cached_http):
    told = {model["id"]: model["precision"] for model in cached_http.get("/v1/models").json()["data"]}
    assert told["unigram-cache@1"] == "float32"
    assert len({told[f"{name}@1"] for name in ("lstm", "mixture", "cache", "cached-mixture")}) == 1


TRAIN = [
    f"the {noun} sat on the {place}" for noun in ("cat", "dog", "owl") for place in ("mat", "bed", "roof")
]
TEXTS = ["the cat sat on the roof", "an owl", ".", "roof mat bed the the cat sat sat on", "zzz"] * 4
SETTINGS = ("tokenizer.kind=char", "neural.hidden_size=29", "neural.embedding_size=24", "train.max_steps=8")


@pytest.fixture(scope="module")
def precision_registry(tmp_path_factory):
    """Train a tiny LSTM, and an n-gram model."""
    folder = tmp_path_factory.mktemp("precision")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join(TRAIN * 20))
    small = ("train.batch_size=4", "train.bptt_length=8")
    run_train("lstm", name="lstm", registry=folder, corpus=[corpus], assignments=[*SETTINGS, *small])
    run_train("ngram", name="ngram", registry=folder, corpus=[corpus], assignments=["tokenizer.kind=char"])
    return folder


@pytest.fixture(scope="module")
def served(precision_registry):
    with (
        running(Settings(registry=precision_registry, precision="int8")) as server,
        Client(server.url) as client,
    ):
        yield client


def test_publishing_measures_what_int8_costs(precision_registry):
    checkpoint = load_checkpoint(precision_registry / "lstm" / "versions" / "1")
    measured = checkpoint.metrics["int8"]
    assert measured["perplexity"] == pytest.approx(measured["perplexity_float32"], rel=0.02)
    assert checkpoint.precision == ("int8" if measured["default"] else "float32")
    assert "the perplexity per token in int8 is" in (checkpoint.path / "MODEL_CARD.md").read_text()


def test_the_list_of_models_tells_the_precision(served):
    told = {model.id: model.precision for model in served.models().data}
    assert told == {"lstm@1": "int8", "ngram@1": "float32"}


def test_a_text_scores_the_same_alone_and_with_others_to_the_last_bit(served):
    together = served.score(TEXTS, model="lstm").results
    alone = [served.score([text], model="lstm").results[0] for text in TEXTS]
    assert [result.logprob for result in together] == [result.logprob for result in alone]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_evaluation_tells_the_precision_it_computed_in(precision_registry, tmp_path, precision):
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    result = run_evaluate(
        "lstm",
        corpus=[tmp_path / "text.txt"],
        registry=precision_registry,
        context="sentence",
        unit="line",
        window=100,
        device="cpu",
        precision=precision,
    )
    assert result["precision"] == precision
