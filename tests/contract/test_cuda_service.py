"""A service on a CUDA device, or the stand-in for one, gives the replies of one on the CPU for every operation."""

import functools
from collections import Counter

import httpx
import pytest

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.support import families
from tests.support.cuda_stand_in import KINDS, cuda_device
from tests.support.pretrained import pretrained
from tests.support.services import running

PARTS = {
    **dict.fromkeys(families.NEURAL, ()),
    "ngram": (),
    "mixture": ("ngram", "lstm"),
    "mixture by context": ("lstm", "ngram"),
    "nested mixture": ("mixture", "gru"),
    "cache": ("lstm",),
    "unigram cache": ("ngram",),
    "adapted cache": ("mixture by context",),
}
NAMES = [*PARTS, "pretrained"]
V = len(families.WORDS) + 3
TEXT = "w3 w5 w9 w10"
REQUESTS = {
    "score": ("/v1/score", {"texts": [TEXT, "w3", "w4 zz w9 w10 w36"], "detail": "token"}),
    "next token": ("/v1/next-token", {"context": ["", TEXT, "w36"], "top_k": 5}),
    "next texts": ("/v1/next-token", {"context": TEXT, "candidates": ["w11", " w12", "w3 w4"]}),
    "greedy": ("/v1/generate", {"prompt": TEXT, "strategy": "greedy", "max_tokens": 6}),
    "sampling": (
        "/v1/generate",
        {"prompt": TEXT, "n": 3, "seed": 3, "max_tokens": 6, "logprobs": True},
    ),
    "beams": ("/v1/generate", {"prompt": TEXT, "strategy": "beam", "num_beams": 3, "n": 2, "max_tokens": 6}),
    "completions": (
        "/v1/completions",
        {"prompt": TEXT, "max_tokens": 4, "logprobs": 2, "echo": True, "seed": 5},
    ),
    "rerank": (
        "/v1/rerank",
        {"lists": [{"context": "w4", "candidates": [{"text": t} for t in (TEXT, "w10 w9 w5 w3", "w3")]}]},
    ),
    "autocomplete": ("/v1/autocomplete", {"text": "w3 w5 w"}),
    "check": ("/v1/check", {"text": "w3 w5 w9 w10 w11"}),
    "states": ("/v1/states", {"context": [TEXT, ""]}),
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    registry, made = LocalRegistry(tmp_path_factory.mktemp("models"), create=True), {}
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[3, 4]], {})
    for name in NAMES:
        model, tokenizer = (
            pretrained("qwen3")[1:] if name == "pretrained" else (families.model(name), families.tokenizer())
        )
        parts = [made[part] for part in PARTS.get(name, ())]
        write = functools.partial(
            write_checkpoint, model=model, tokenizer=tokenizer, description=about, parts=parts
        )
        made[name] = registry.publish(name.replace(" ", "-"), write).path
    return registry


def settings(registry, device):
    return Settings(registry=registry.root, device=device, precision="float32")


@pytest.fixture(scope="module")
def here(registry):
    with running(settings(registry, "cpu")) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


@pytest.fixture(scope="module", params=KINDS)
def cuda(request):
    with cuda_device(request.param) as device:
        yield device


@pytest.fixture(scope="module")
def there(registry, cuda):
    with running(settings(registry, "cuda")) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def ask(http, name, path, body):
    response = http.post(path, json=body | {"model": name.replace(" ", "-")})
    assert response.status_code == 200, response.text
    return response.json()


def without_ties(completions):
    """Completions, without the fields by which equally probable ones differ."""
    times = Counter(round(one["probability"], 6) for one in completions)
    last = round(completions[-1]["probability"], 6) if completions else 0
    return [
        one
        if times[key := round(one["probability"], 6)] == 1 and key != last
        else {"probability": one["probability"]}
        for one in completions
    ]


def assert_same(found, expected, where="", *, ties=False):
    """Two replies are equal, numbers within rounding; but for what names a request."""
    if ties and where.endswith(".completions"):
        found, expected = without_ties(found), without_ties(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected.keys() - {"id", "created", "request_id", "state", "expires_at"}:
            assert_same(found[key], expected[key], f"{where}.{key}", ties=ties)
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}[{number}]", ties=ties)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-4), where
    else:
        assert found == expected, where


def test_every_model_is_on_the_device(there):
    models = there.get("/v1/models").json()["data"]
    assert {model["state"] for model in models} == {"loaded"}
    assert len(models) == len(NAMES)


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", NAMES)
def test_replies_are_those_of_the_cpu(here, there, cuda, name, request_name):
    path, body = REQUESTS[request_name]
    with cuda.measured() as report:
        found = ask(there, name, path, body)
    expected = ask(here, name, path, body)
    # only the processor completes words of n-grams by intervals, with ties by spelling
    assert_same(found, expected, ties=name == "ngram")
    assert report.operations or not cuda.counts_copies


@pytest.mark.parametrize("name", ["lstm", "ngram", "adapted cache", "pretrained"])
def test_a_stored_state_is_advanced_as_on_the_cpu(here, there, name):
    replies = []
    for http in (there, here):
        (state,) = ask(http, name, "/v1/states", {"context": TEXT})["states"]
        body = {"continuations": [{"state": state["state"], "text": text} for text in (" w11 w3", " w5", "")]}
        response = http.post("/v1/states/advance", json=body)
        assert response.status_code == 200, response.text
        replies.append(response.json())
    assert_same(*replies)


@pytest.mark.parametrize("cuda", ["stand-in"], indirect=True)
def test_a_token_costs_one_copy_in_each_direction(there, cuda):
    body = {"prompt": TEXT, "n": 2, "seed": 1, "ignore_eos": True}
    reports = []
    for count in (8, 8, 12):  # the first request captures graphs and caches the prompts
        with cuda.measured() as report:
            reply = ask(there, "lstm", "/v1/generate", body | {"max_tokens": count})
        assert [len(choice["token_ids"]) for choice in reply["choices"]] == [count] * 2
        reports.append(report)
    few, many = reports[1:]
    assert sorted(many.to_device) == sorted(few.to_device + [2 * 8] * 4)
    assert sorted(many.to_host) == sorted(few.to_host + [2 * 4 * V] * 4)
    assert few.waits == many.waits == []
