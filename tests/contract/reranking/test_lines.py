"""Lists as lines, application/x-ndjson."""

import json

import pytest

LINES = {"content-type": "application/x-ndjson"}


@pytest.fixture
def stream(http):
    def ask(*lines, **query):
        body = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        response = http.post("/v1/rerank", content=body, headers=LINES, params=query)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("application/x-ndjson")
        return [json.loads(line) for line in response.text.splitlines()]

    return ask


def test_lines_are_answered_in_order_as_lists_are(stream, rerank, texts):
    lists = [texts(f"w{i} w3", f"w3 w{i}", "w1", id=str(i), context="w2" * (i % 3)) for i in range(50)]
    query = {"weights": "lm=0.5,words=1", "length_exponent": 0.5, "mbr": "wer", "confidences": "true"}
    body = query | {"weights": {"lm": 0.5, "words": 1}, "confidences": True}
    assert stream(*lists, **query) == rerank(*lists, **body)["lists"]


def test_one_bad_list_fails_alone(stream, texts):
    good = texts("w3 w5", "w9")
    wrong = [b"{", b"", {"candidates": []}, {"candidates": [{"text": "w3", "features": {"lm": 1}}]}, b"\xff"]
    wrong.append(texts("w3 " * 70_000))
    outcomes = stream(good, *(line for bad in wrong for line in (bad, good)))
    assert [("error" in one) for one in outcomes] == [False, *[True, False] * len(wrong)]
    assert all(one == outcomes[0] for one in outcomes if "error" not in one)
    assert outcomes[7]["error"]["param"] == "candidates[0].features.lm"
    assert outcomes[11]["error"]["code"] == "context_length_exceeded"


def test_a_missing_feature_fails_its_list_alone(stream):
    given = {"candidates": [{"text": "w3", "features": {"am": -1.0}}]}
    outcomes = stream(given, {"candidates": [{"text": "w3"}]}, given, weights="lm=1,am=1")
    assert [("error" in one) for one in outcomes] == [False, True, False]
    assert outcomes[1]["error"]["param"] == "candidates[0].features"


def test_models_and_mixtures_are_named_in_the_query(stream, rerank, texts):
    query = {"models": "old=old@1,b=backward", "mixture": "new=0.25,lstm=0.75", "weights": "lm=1,lm:old=-0.5"}
    body = {
        "models": [{"name": "old", "model": "old@1"}, {"name": "b", "model": "backward"}],
        "mixture": [{"model": "new", "weight": 0.25}, {"model": "lstm", "weight": 0.75}],
        "weights": {"lm": 1, "lm:old": -0.5},
    }
    (line,) = stream(texts("w3 w5", "w9"), **query)
    assert line == rerank(texts("w3 w5", "w9"), **body)["lists"][0]


def test_many_candidates_are_answered_in_pieces(stream, texts):
    lists = [texts(*(f"w{j % 37} w{j // 37} w{i}" for j in range(300)), id=str(i)) for i in range(20)]
    outcomes = stream(*lists, model="lstm")
    assert [one["id"] for one in outcomes] == [str(i) for i in range(20)]
    assert all(sorted(c["index"] for c in one["ranking"]) == list(range(300)) for one in outcomes)


def test_an_empty_body_is_one_bad_line(stream):
    (outcome,) = stream()
    assert outcome["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"weights": "lm"}, "weights"),
        ({"weights": "lm=x"}, "weights"),
        ({"weights": "lm=nan"}, "weights.lm"),
        ({"weights": "lm=1,lm=2"}, "weights"),
        ({"mbr": "x"}, "mbr"),
        ({"lists": "x"}, "lists"),
        ({"timeout_ms": "0"}, "timeout_ms"),
        ({"mixture": "new=0.5"}, "mixture"),
        ({"confidences": "perhaps"}, "confidences"),
    ],
)
def test_a_wrong_query_is_refused_at_once(http, query, param):
    response = http.post("/v1/rerank", content=b"{}", headers=LINES, params=query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("media_type", "body"),
    [
        ("text/x-moses-nbest", "u ||| w3 w5 ||| lm= -4.5 d= 1 ||| -3\nu ||| w9 ||| lm= -2 d= 0 ||| -2\n"),
        (
            "application/x-mlm-scoring+json",
            '{"u": {"hyp_1": {"score": -3, "text": "w3 w5"}, "hyp_2": {"score": -2, "text": "w9"}}}',
        ),
        (
            "application/x-hyporadise+json; charset=utf-8",
            '[{"input": ["w3 w5", "w9", "w9"], "output": "w9"}]',
        ),
        ("text/x-kaldi-nbest", "u-1 w3 w5\nu-2 w9\n"),
    ],
)
def test_lists_of_other_programs_are_read(http, rerank, texts, media_type, body):
    response = http.post("/v1/rerank?model=lstm", content=body, headers={"content-type": media_type})
    (ranked,) = map(json.loads, response.text.splitlines())
    (ours,) = rerank(texts("w3 w5", "w9"), model="lstm")["lists"]
    for one, other in zip(ranked["ranking"], ours["ranking"], strict=True):
        assert (one["index"], one["text"]) == (other["index"], other["text"])
        assert one["features"]["lm"] == pytest.approx(other["features"]["lm"])


def test_bad_lines_of_other_programs_are_told_by_number(http):
    body = (
        "u ||| w3 ||| lm= -4.5 ||| -3\nwhat is this\nv ||| w9 ||| lm= x ||| -2\nv ||| w5 ||| lm= -2 ||| -2\n"
    )
    headers = {"content-type": "text/x-moses-nbest"}
    response = http.post("/v1/rerank", params={"weights": "old_lm=1"}, content=body, headers=headers)
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [one["id"] for one in lines if "id" in one] == ["u", "v"]
    said = [one["error"]["message"] for one in lines if "error" in one]
    assert [message[:7] for message in said] == ["body:2:", "body:3:"]
    assert lines[-1]["ranking"][0]["total"] == -2


def test_a_body_without_lists_is_told(http):
    response = http.post("/v1/rerank", content=b"", headers={"content-type": "text/x-moses-nbest"})
    assert response.json()["error"]["message"] == "the body has no lists"
