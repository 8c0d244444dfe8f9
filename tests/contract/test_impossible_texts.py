"""Texts that a model calls impossible: last everywhere, −9999 in JSON, and never NaN."""

import json
import math

import httpx
import numpy as np
import pytest

from models.checkpoint.registry import LocalRegistry
from service.settings import Settings
from tests.support.services import running, typed_line
from training.publish import run_import_arpa

ARPA = """\\data\\
ngram 1=6
ngram 2=2

\\1-grams:
-99\t<s>\t-0.3
-0.5\t</s>
-0.6\train\t-0.2
-0.7\tfalls\t-0.2
-0.9\troofs\t-0.1
-inf\tnever\t-0.1

\\2-grams:
-0.3\t<s> rain
-0.4\train falls

\\end\\
"""
FAR = "kwa " * 50 + "rain falls"  # possible, at −11,517
NEVER, POSSIBLE = "rain never", "rain falls"
ZERO = -9999.0


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("impossible")
    (folder / "b.arpa").write_text(ARPA)
    store = LocalRegistry(folder / "registry", create=True)
    for name in ("b", "c"):
        run_import_arpa(folder / "b.arpa", name=name, registry=str(store.root))
    return store


@pytest.fixture(scope="module")
def arpa_http(registry):
    settings = Settings(registry=registry.root, default_model="b")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        yield client


def ask(http, path, **body):
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return json.loads(response.text, parse_constant=pytest.fail)  # neither NaN nor Infinity


def ranking(http, texts, **body):
    return ask(http, "/v1/rerank", lists=[{"candidates": [{"text": text} for text in texts]}], **body)[
        "lists"
    ][0]["ranking"]


@pytest.mark.parametrize("options", [{}, {"length_exponent": 1}, {"mbr": "wer"}, {"confidences": True}])
@pytest.mark.parametrize(
    "weights", [{"lm": 1}, {"lm": 0.3, "words": -1}, {"lm": 1, "lm:old": -0.5}, {"lm": -1}]
)
def test_an_impossible_candidate_loses_to_any_possible_one(arpa_http, weights, options):
    further = {"models": [{"name": "old", "model": "c"}]} if "lm:old" in weights else {}
    found = ranking(arpa_http, [NEVER, FAR], weights=weights, **options, **further)
    of_text = {one["text"]: one for one in found}
    assert (of_text[NEVER]["total"], of_text[NEVER]["posterior"]) == (ZERO, 0.0)
    assert of_text[FAR]["posterior"] == 1.0
    assert of_text[NEVER]["features"]["lm"] == ZERO
    assert "mbr" in options or found[0]["text"] == FAR


def test_an_impossible_candidate_is_like_others_if_the_model_has_no_weight(arpa_http):
    found = ranking(arpa_http, [NEVER, FAR], weights={"lm": 0, "words": 0})
    assert [(one["total"], one["posterior"]) for one in found] == [(0.0, 0.5), (0.0, 0.5)]


@pytest.mark.parametrize("mixture", [None, {"b": 0.25, "c": 0.75}])
def test_impossible_candidates_alone_are_equal(arpa_http, mixture):
    body = {"mixture": [{"model": m, "weight": w} for m, w in mixture.items()]} if mixture else {}
    found = ranking(arpa_http, [NEVER, "never", "never rain"], **body)
    assert [one["index"] for one in found] == [0, 1, 2]
    assert [one["posterior"] for one in found] == pytest.approx([1 / 3] * 3)


def test_a_query_that_is_impossible_after_all_documents_tells_nothing(arpa_http):
    found = ask(arpa_http, "/v1/rerank", query="never", documents=["falls", "rain"])
    assert [one["relevance_score"] for one in found["results"]] == [0.5, 0.5]


@pytest.mark.parametrize("_", ["first", "cached"])
@pytest.mark.parametrize("detail", ["none", "token", "word"])
def test_scores_of_impossible_texts_are_finite_and_have_no_perplexity(arpa_http, detail, _):
    body = ask(arpa_http, "/v1/score", texts=[NEVER, POSSIBLE, FAR], context="rain", detail=detail)
    assert [one["logprob"] == ZERO for one in body["results"]] == [True, False, False]
    assert body["results"][2]["logprob"] < ZERO
    assert [one["perplexity"] is None for one in (*body["results"], body["corpus"])] == [
        True,
        False,
        False,
        True,
    ]


def test_states_after_impossible_texts_are_states_like_others(arpa_http):
    handle = ask(arpa_http, "/v1/states", context=NEVER)["states"][0]["state"]
    texts = [{"state": handle, "text": text, "eos": True} for text in ("never", "rain")]
    never, rain = ask(arpa_http, "/v1/states/advance", continuations=texts, next_token_ids=[3, 6])["results"]
    assert (never["logprob"], rain["logprob"] > ZERO) == (ZERO, True)
    after = ask(arpa_http, "/v1/states/next", states=[never["state"]])["logprobs"][0]
    assert np.logaddexp.reduce(after) == pytest.approx(0.0, abs=1e-4) or math.isfinite(sum(after))
    raw = arpa_http.post(
        "/v1/states/next", json={"states": [never["state"]]}, headers={"accept": "application/octet-stream"}
    )
    assert np.frombuffer(raw.content, "<f4").tolist() == pytest.approx(after)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/next-token", {"context": NEVER, "candidates": [" never", " rain"]}),
        ("/v1/next-token", {"context": NEVER, "top_k": 7}),
        ("/v1/completions", {"prompt": f"{NEVER} never rain", "echo": True, "logprobs": 3, "max_tokens": 2}),
        ("/v1/generate", {"prompt": NEVER, "max_tokens": 3, "logprobs": 7}),
        ("/v1/check", {"text": f"{NEVER} never rain"}),
        ("/v1/check", {"text": NEVER, "models": [{"model": "b"}, {"model": "c"}]}),
        ("/v1/autocomplete", {"text": f"{NEVER} never r", "models": [{"model": "b"}, {"model": "c"}]}),
        ("/v1/autocomplete", {"text": "never "}),
        ("/v1/quality", {"texts": [NEVER, POSSIBLE], "against": "c"}),
    ],
)
def test_no_endpoint_says_that_something_is_not_a_number(arpa_http, path, body):
    ask(arpa_http, path, **body)


def test_files_and_tables_have_finite_numbers(registry, tmp_path, capsys, monkeypatch):
    (tmp_path / "lists.jsonl").write_text(json.dumps({"candidates": [{"text": NEVER}, {"text": FAR}]}) + "\n")
    for arguments in (
        ["rerank", "b", str(tmp_path / "lists.jsonl"), "--output-format", "moses"],
        ["rerank", "b", str(tmp_path / "lists.jsonl")],
        ["score", "b", NEVER],
        ["score", "b", NEVER, "--json"],
    ):
        _, done, _ = typed_line(capsys, monkeypatch, *arguments, "--registry", str(registry.root))
        assert "-9999" in done
        assert "inf" not in done.replace("infinite", "").lower()
