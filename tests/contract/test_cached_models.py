"""Caches and mixtures of networks over HTTP: what comes next, what is scored and what is written agree."""

import httpx
import pytest

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from service.settings import Settings
from tests import families
from tests.servers import running

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
PROMPT = [5, 9, 5, 2, 1, 0, 7, 9, 5]  # `</s>`, `<s>` and `<unk>` in it, and words that come again
MODELS = [name.replace(" ", "-") for name in PARTS]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Every model of the table, made of the parts that it names."""
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
def http(registry, request):
    """A service in single precision, or one in int8 as the models advise."""
    settings = Settings(registry=registry.root, precision=request.param)
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("model", MODELS)
def test_what_is_written_scores_as_it_was_told(http, model):
    options = {"prompt": PROMPT, "model": model, "max_tokens": 20, "logprobs": True}
    texts = [ask(http, "/v1/generate", seed=seed, **options)["choices"][0] for seed in range(12)]
    written = max(texts, key=lambda text: len(text["token_ids"]))  # most end early
    assert len(written["token_ids"]) > 2
    body = {"token_ids": [written["token_ids"]], "context": PROMPT, "eos": False, "detail": "token"}
    scored = ask(http, "/v1/score", model=model, **body)["results"][0]["tokens"]
    assert [token["logprob"] for token in scored] == pytest.approx(written["logprobs"], abs=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_contexts_are_told_the_same_alone_and_together(http, model):
    contexts = [PROMPT, [], PROMPT[:3], [4] * 30, PROMPT * 5]
    together = ask(http, "/v1/next-token", context=contexts, top_k=40, model=model)["results"]
    for context, result in zip(contexts, together, strict=True):
        alone = ask(http, "/v1/next-token", context=[context], top_k=40, model=model)["results"][0]
        expected = {c["id"]: c["logprob"] for c in alone["candidates"]}
        assert {c["id"]: c["logprob"] for c in result["candidates"]} == pytest.approx(expected, abs=1e-5)


def test_a_cache_expects_what_was_just_said(http):
    context = [7, 11, 7, 11, 7]
    bare, cached = (
        ask(http, "/v1/next-token", context=context, top_k=40, model=model)["results"][0]["candidates"]
        for model in ("lstm", "cache")
    )
    gain = {c["id"]: c["logprob"] for c in cached}
    for candidate in bare:
        gain[candidate["id"]] -= candidate["logprob"]
    assert {token for token, more in gain.items() if more > 0} == {7, 11}


def test_the_list_of_models_tells_what_computes_in_integers(http):
    told = {model["id"]: model["precision"] for model in http.get("/v1/models").json()["data"]}
    assert told["unigram-cache@1"] == "float32"
    assert len({told[f"{name}@1"] for name in ("lstm", "mixture", "cache", "cached-mixture")}) == 1
