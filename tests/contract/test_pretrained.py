"""Pretrained transformers over HTTP: every endpoint, against transformers itself."""

import json

import httpx
import numpy as np
import openai
import pytest
import torch

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import BOS, EOS
from models.reranking.ranking import Profile, ProfileStore
from service.settings import Settings
from tests.support.pretrained import TEXTS, pretrained
from tests.support.services import running

ABOUT = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
KINDS = ("gpt2", "llama")
MODELS = pytest.mark.parametrize("model", KINDS)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry = LocalRegistry(tmp_path_factory.mktemp("pretrained"), create=True)
    for kind in KINDS:
        _, model, tokenizer = pretrained(kind)
        registry.publish(kind, lambda folder, m=model, t=tokenizer: write_checkpoint(folder, m, t, ABOUT))
    return registry


@pytest.fixture(scope="module")
def http(registry):
    with (
        running(Settings(registry=registry.root)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def their_scores(kind, text, *, end=True):
    """Log-probabilities of a text's tokens, by transformers; of its end too."""
    original, _, tokenizer = pretrained(kind)
    numbers = tokenizer.numbers
    ids = [*tokenizer.encode(text), *([EOS] if end else [])]
    given = torch.as_tensor(numbers[[BOS, *ids]])[None]
    with torch.inference_mode():
        logits = original(given).logits[0, :-1]
    known = sorted({*numbers[[i for i in range(len(numbers)) if i != BOS and numbers[i] >= 0]].tolist()})
    chosen = logits[range(len(ids)), given[0, 1:]] - logits[:, known].logsumexp(dim=1)
    return chosen.numpy()


@MODELS
def test_scores_are_those_of_transformers(http, model):
    results = ask(http, "/v1/score", model=model, texts=TEXTS[:5])["results"]
    for result, text in zip(results, TEXTS, strict=False):
        assert result["logprob"] == pytest.approx(their_scores(model, text).sum(), abs=1e-3)


@MODELS
def test_next_tokens_and_states(http, model):
    (result,) = ask(http, "/v1/next-token", model=model, context=TEXTS[7], top_k=3)["results"]
    (state,) = ask(http, "/v1/states", model=model, context=[TEXTS[7]])["states"]
    assert len(result["candidates"]) == 3
    _, plain, tokenizer = pretrained(model)
    reading = plain.initial_state(1)
    for token in tokenizer.encode(TEXTS[7]):
        reading = plain.advance(reading, np.array([token]))
    best = np.sort(plain.next_log_probs(reading)[0])[::-1][:3]
    assert [one["logprob"] for one in result["candidates"]] == pytest.approx(best.tolist(), abs=1e-4)
    moved = ask(http, "/v1/states/advance", continuations=[{"state": state["state"], "text": " and"}])
    assert moved["results"][0]["logprob"] == pytest.approx(
        their_scores(model, TEXTS[7] + " and", end=False)[len(tokenizer.encode(TEXTS[7])) :].sum(), abs=1e-3
    )


@MODELS
def test_reranking_scores_candidates_after_a_context(http, model):
    lists = [
        {
            "context": "A dog",
            "candidates": [{"text": text} for text in ("saw a river", "saw the mat", "sat on")],
        }
    ]
    (ranked,) = ask(http, "/v1/rerank", model=model, lists=lists)["lists"]
    alone = their_scores(model, "A dog", end=False).sum()
    for entry in ranked["ranking"]:
        whole = their_scores(model, f"A dog {entry['text']}").sum()
        assert entry["features"]["lm"] == pytest.approx(whole - alone, abs=2e-3)


def test_a_list_has_features_of_several_models(http):
    lists = [{"candidates": [{"text": text} for text in TEXTS[:3]]}]
    weights = {"lm": 0.7, "lm:llama": 0.3}
    (ranked,) = ask(
        http,
        "/v1/rerank",
        model="gpt2",
        lists=lists,
        weights=weights,
        models=[{"model": "llama", "name": "llama"}],
    )["lists"]
    for entry in ranked["ranking"]:
        expected = {name: their_scores(name, entry["text"]).sum() for name in KINDS}
        assert entry["features"]["lm:llama"] == pytest.approx(expected["llama"], abs=1e-3)
        assert entry["total"] == pytest.approx(0.7 * expected["gpt2"] + 0.3 * expected["llama"], abs=1e-3)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (None, "a dog saw it"),
        ("asis", "a dog saw it"),
        ("sentence-case", "A dog saw it"),
        ("sentence", "A dog saw it."),
    ],
)
def test_a_pretrained_model_reads_texts_in_the_form_asked_for(http, form, expected):
    lists = [{"candidates": [{"text": "a dog saw it"}, {"text": "nobody!"}]}]
    asked = {} if form is None else {"form": form}
    reply = ask(http, "/v1/rerank", model="llama", lists=lists, **asked)
    totals = {entry["text"]: entry["features"]["lm"] for entry in reply["lists"][0]["ranking"]}
    other = "Nobody!" if form and form != "asis" else "nobody!"
    assert totals["a dog saw it"] == pytest.approx(their_scores("llama", expected).sum(), abs=1e-3)
    assert totals["nobody!"] == pytest.approx(their_scores("llama", other).sum(), abs=1e-3)


def test_contexts_and_commits_are_read_in_the_form_too(http):
    candidates = [{"text": "saw it"}]
    end = (
        their_scores("gpt2", "A cat sat. Saw it.").sum() - their_scores("gpt2", "A cat sat.", end=False).sum()
    )
    for given in ({"context": "a cat sat"}, {"commit": "a cat sat"}):
        lists = [{**given, "candidates": candidates}]
        reply = ask(http, "/v1/rerank", model="gpt2", lists=lists, form="sentence")
        assert reply["lists"][0]["ranking"][0]["features"]["lm"] == pytest.approx(end, abs=2e-3)


def test_tuning_remembers_the_form(http, registry):
    lists = [
        {"candidates": [{"text": f"{a} {b}"} for b in ("sat", "saw")], "reference": f"{a} saw"}
        for a in ("a cat", "a dog", "nobody", "my friend")
    ] * 3
    reply = ask(
        http,
        "/v1/rerank/tune",
        model="gpt2",
        lists=lists,
        form="sentence",
        max_p_value=1,
        restarts=1,
        resamples=2,
    )
    assert reply["profile"]["form"] == "sentence"
    about = {"metric": "wer", "signature": "", "decision": "tuned", "figures": {}, "created": ""}
    profile = Profile(
        name="spoken", weights={"lm": 1.0}, models=[{"address": "gpt2@1"}], form="sentence", **about
    )
    ProfileStore(str(registry.root)).write(profile)
    asked = [{"candidates": lists[0]["candidates"]}]
    one = ask(http, "/v1/rerank", lists=asked, profile="spoken")
    other = ask(http, "/v1/rerank", lists=asked, form="sentence", model="gpt2")
    assert one["lists"][0]["ranking"] == other["lists"][0]["ranking"]


@MODELS
def test_beams_are_those_of_transformers(http, model):
    original, _, tokenizer = pretrained(model)
    ids = tokenizer.encode("The cat")
    known = tokenizer.numbers[EOS:].tolist()

    def exclude_others(_module, _given, logits):
        others = sorted({*range(logits.shape[-1])} - {*known})
        logits[..., others] = -1e9
        return logits

    hook = original.get_output_embeddings().register_forward_hook(exclude_others)
    theirs = original.generate(
        torch.as_tensor(tokenizer.numbers[[BOS, *ids]])[None],
        max_new_tokens=6,
        min_new_tokens=6,
        num_beams=4,
        do_sample=False,
        pad_token_id=0,
        length_penalty=0.0,
    )[0, len(ids) + 1 :]
    hook.remove()
    body = {"strategy": "beam", "num_beams": 4, "max_tokens": 6, "ignore_eos": True}
    reply = ask(http, "/v1/generate", model=model, prompt="The cat", **body)
    assert tokenizer.numbers[reply["choices"][0]["token_ids"]].tolist() == theirs.tolist()


@MODELS
def test_a_stream_has_the_text_of_one_reply(http, model):
    body = {
        "model": model,
        "prompt": "Nobody",
        "max_tokens": 12,
        "seed": 7,
        "temperature": 1.2,
        "stop": ["zz"],
    }
    whole = ask(http, "/v1/generate", **body)["choices"][0]
    with http.stream("POST", "/v1/generate", json={**body, "stream": True}) as response:
        blocks = response.read().decode().split("\n\n")[:-2]
    events = [json.loads(block.removeprefix("data: ")) for block in blocks]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    assert [i for event in events for i in event["choices"][0]["token_ids"]] == whole["token_ids"]


@MODELS
def test_the_openai_client_completes_and_echoes(http, model):
    with openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        done = client.completions.create(model=model, prompt=TEXTS[3], max_tokens=0, echo=True, logprobs=1)
    found = done.choices[0].logprobs.token_logprobs
    assert found[1:] == pytest.approx(their_scores(model, TEXTS[3], end=False)[1:].tolist(), abs=1e-4)


@MODELS
def test_completions_and_checks_of_words(http, model):
    reply = ask(http, "/v1/autocomplete", model=model, text="The ca", limit=5)
    assert all(one["text"].startswith("ca") for one in reply["completions"])
    assert sum(one["probability"] for one in reply["completions"]) <= 1 + 1e-5
    words = ask(http, "/v1/check", model=model, text="The cat satt on.")["words"]
    assert [word["text"] for word in words][:4] == ["The", "cat", "satt", "on"]
    assert all(word["surprisal_bits"] > 0 for word in words)


def test_a_model_larger_than_the_budget_is_not_loaded(registry):
    settings = Settings(registry=registry.root, memory_budget="100kB")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        refused = client.post("/v1/score", json={"model": "gpt2", "texts": ["a"]})
    assert refused.status_code == 503
    assert "needs about" in refused.json()["error"]["message"]
