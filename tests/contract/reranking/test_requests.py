"""Re-ranking over HTTP: lines (application/x-ndjson), sessions, the typed clients."""

import asyncio
import json

import pytest

from gramophone_client import AsyncClient, BadRequestError, Client
from gramophone_client.types import ErrorBody

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
        ("text/x-fairseq-nbest", "D-0\t-1\tw3 w5\nD-0\t-2\tw9\n"),
        (
            "application/x-google+json",
            '{"results": [{"alternatives": [{"transcript": "w3 w5"}, {"transcript": "w9"}]}]}',
        ),
        ("application/x-nemo-manifest+json", '{"beams": [["w3 w5", -1], ["w9", -2]]}'),
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
    assert len(lines) == 2
    assert [one["problems"][0][:7] for one in lines] == ["body:2:", "body:3:"]
    assert lines[-1]["ranking"][0]["total"] == -2


def test_a_body_without_lists_is_told(http):
    response = http.post("/v1/rerank", content=b"", headers={"content-type": "text/x-moses-nbest"})
    assert response.json()["error"]["message"] == "the body has no lists"


def lm(reply):
    return {c["text"]: c["features"]["lm"] for c in reply["lists"][0]["ranking"]}


@pytest.mark.parametrize("model", ["new", "lstm", "chars", "pieces"])
def test_a_session_scores_as_all_that_was_committed_as_context_does(rerank, texts, model):
    first = rerank(texts("w3 w5", "w9", commit="w1 w2"), model=model)
    session = first["lists"][0]["session"]
    second = rerank(texts("w3", "w5", session=session, commit="w3 w5"), model=model)
    third = rerank(texts("w3", "w5", session=second["lists"][0]["session"]), model=model)
    assert lm(first) == pytest.approx(
        lm(rerank(texts("w3 w5", "w9", context="w1 w2"), model=model)), abs=1e-4
    )
    whole = lm(rerank(texts("w3", "w5", context="w1 w2 w3 w5"), model=model))
    assert lm(second) == pytest.approx(whole, abs=1e-4)
    assert third["lists"] == second["lists"]


def test_the_same_turn_may_be_taken_again(rerank, texts):
    session = rerank(texts("w3", commit="w1"))["lists"][0]["session"]
    once, again, other = (rerank(texts("w9", session=session, commit=text)) for text in ("w3", "w3", "w20"))
    assert lm(once) == lm(again) != lm(other)


def test_every_model_has_its_own_state(rerank, texts):
    asked = {
        "models": [{"model": "chars", "name": "c"}],
        "mixture": [{"model": "new", "weight": 0.5}, {"model": "lstm", "weight": 0.5}],
    }
    session = rerank(texts("w9", commit="w1 w2"), **asked)["lists"][0]["session"]
    carried = rerank(texts("w3", "w5", session=session), **asked)["lists"][0]["ranking"]
    whole = rerank(texts("w3", "w5", context="w1 w2"), **asked)["lists"][0]["ranking"]
    for one, other in zip(carried, whole, strict=True):
        assert one["features"] == pytest.approx(other["features"], abs=1e-4)


def test_lists_with_and_without_sessions_go_together(rerank, texts):
    lists = rerank(texts("w3", commit="w1"), texts("w3"), texts("w3", context="w1"))["lists"]
    assert [bool(one.get("session")) for one in lists] == [True, False, False]
    carried, plain, context = (one["ranking"][0]["features"]["lm"] for one in lists)
    assert carried == pytest.approx(context) != pytest.approx(plain)


def test_an_end_of_sentence_may_be_committed_too(rerank, texts, score):
    ended = rerank(texts("w3", commit="w1"), commit_eos=True, model="lstm")
    assert lm(ended) != pytest.approx(lm(rerank(texts("w3", commit="w1"), model="lstm")))


def test_a_session_may_begin_without_its_mark(rerank, texts):
    told = lm(rerank(texts("w3", commit="w1"), bos=False))
    assert told == pytest.approx(lm(rerank(texts("w3", context="w1"), bos=False)), abs=1e-5)


def test_a_session_takes_the_memory_of_its_own_state_and_no_more(rerank, texts, reranking_server, http):
    store = reranking_server.app.state.services.states
    before = store.num_bytes
    http.post("/v1/states", json={"context": "w1", "model": "lstm"})
    one = store.num_bytes - before
    rerank(*(texts("w3", commit=f"w{i}") for i in range(5)), model="lstm")
    assert store.num_bytes - before == 6 * one


def test_a_session_longer_than_any_is_refused(refused, texts):
    assert refused(texts("w3", session="x" * 2049))["param"] == "lists[0].session"


def test_a_session_of_other_models_is_refused(rerank, refused, texts):
    session = rerank(texts("w3", commit="w1"))["lists"][0]["session"]
    error = refused(texts("w3", session=session), model="old")
    assert error["param"] == "lists[0].session"
    assert "with new@1, but this request uses old@1" in error["message"]


def test_an_unknown_session_is_told_as_such(refused, texts):
    error = refused(texts("w3", session="nosuch"))
    assert (error["code"], error["param"]) == ("unknown_state", "lists[0].session")


@pytest.mark.parametrize("rest", [{"context": "w3"}, {"continuation": "w3"}])
def test_a_session_takes_no_other_context(refused, texts, rest):
    error = refused(texts("w3", commit="w1", **rest))
    assert "accepts neither context nor continuation" in error["message"]


LISTS = [
    {
        "id": "u",
        "candidates": [{"text": "w3 w5", "features": {"am": -1.0}}, {"text": "w9", "features": {"am": 0.0}}],
    },
    {"candidates": [{"text": "w\u2028 w5", "features": {"am": 0.5}}], "context": "w3"},
]
OPTIONS = {
    "mixture": [{"model": "new", "weight": 0.25}, {"model": "lstm", "weight": 0.75}],
    "models": [{"model": "old@1", "name": "o", "weight": -0.5}, {"model": "chars", "name": "c"}],
    "weights": {"lm": 0.7, "am": 1.0, "words": 0.1},
    "length_exponent": 0.5,
    "mbr": "chrf",
    "confidences": True,
    "detail": "word",
}


@pytest.fixture(scope="module")
def client(reranking_server):
    with Client(reranking_server.url) as client:
        yield client


def test_lines_are_what_one_request_gives(client):
    assert list(client.rerank_lines(LISTS, **OPTIONS)) == client.rerank(LISTS, **OPTIONS).lists


def test_both_clients_give_the_same(reranking_server, client):
    async def ask():
        async with AsyncClient(reranking_server.url) as other:
            whole = await other.rerank(LISTS, **OPTIONS)
            return whole, [line async for line in other.rerank_lines(LISTS, **OPTIONS)]

    assert asyncio.run(ask()) == (
        client.rerank(LISTS, **OPTIONS),
        list(client.rerank_lines(LISTS, **OPTIONS)),
    )


def test_a_wrong_line_is_an_error_in_its_place(client):
    good, wrong, again = client.rerank_lines([LISTS[0], {"candidates": []}, LISTS[0]])
    assert isinstance(wrong, ErrorBody)
    assert wrong.param == "candidates"
    assert good == again


def test_a_weight_beside_a_model_counts_without_others(client):
    options = {"models": [{"model": "old", "name": "o", "weight": -0.5}]}
    (line,) = client.rerank_lines(LISTS[:1], **options)
    reply = client.rerank(LISTS[:1], **options)
    assert reply.weights == {"lm": 1.0, "lm:o": -0.5}
    assert [line] == reply.lists


def test_a_weight_beside_a_model_does_not_undo_a_profile(client):
    """Regression: lines were ranked by the language model alone and the profile was ignored."""
    options = {"models": [{"model": "old", "name": "o", "weight": -0.5}], "profile": "speech"}
    with pytest.raises(BadRequestError, match="profile") as raised:
        next(client.rerank_lines(LISTS[:1], **options))
    assert raised.value.param == "models"


def test_a_session_goes_from_list_to_list(client):
    first = client.rerank([{"candidates": [{"text": "w3"}], "commit": "w1"}]).lists[0]
    second = client.rerank(
        [{"candidates": [{"text": "w5"}], "session": first.session, "commit": "w3"}]
    ).lists[0]
    whole = client.rerank([{"candidates": [{"text": "w5"}], "context": "w1 w3"}]).lists[0]
    assert second.ranking[0].total == pytest.approx(whole.ranking[0].total)


def test_the_contract_documents_its_example(http):
    schema = http.get("/openapi.json").json()["components"]["schemas"]["RerankRequest"]
    (example,) = schema["examples"]
    names = example["models"][0]
    reply = http.post("/v1/rerank", json=example | {"models": [names | {"model": "old"}]})
    assert reply.status_code == 200, reply.text
    assert set(example) <= set(schema["properties"])
    assert all("description" in about for name, about in schema["properties"].items() if name != "timeout_ms")


def test_a_list_tells_twenty_problems_and_the_others_have_lines(http):
    body = "x\n" * 23 + "u ||| w3 w5 ||| d= 1 ||| -3\n"
    reply = http.post("/v1/rerank", content=body, headers={"content-type": "text/x-moses-nbest"})
    *others, last = map(json.loads, reply.text.splitlines())
    assert len(last["problems"]) == 20
    assert [list(line) for line in others] == [["error"]] * 3


def test_bad_lines_without_a_list_are_all_told(http):
    reply = http.post("/v1/rerank", content="x\ny\n", headers={"content-type": "text/x-moses-nbest"})
    assert [list(json.loads(line)) for line in reply.text.splitlines()] == [["error"]] * 2
