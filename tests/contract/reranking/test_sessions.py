"""Lists of one session: what the client commits stands before the next candidates."""

import pytest


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
    assert "of new@1 as loaded then, and this request asks old@1" in error["message"]


def test_an_unknown_session_is_told_as_such(refused, texts):
    error = refused(texts("w3", session="nosuch"))
    assert (error["code"], error["param"]) == ("unknown_state", "lists[0].session")


@pytest.mark.parametrize("rest", [{"context": "w3"}, {"continuation": "w3"}])
def test_a_session_takes_no_other_context(refused, texts, rest):
    error = refused(texts("w3", commit="w1", **rest))
    assert "takes neither context nor continuation" in error["message"]
