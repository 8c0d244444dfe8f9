"""States that are kept: read piece by piece they score the whole, and say what comes next."""

import pytest

from models.vocabulary import EOS
from tests.matrix.rows import row
from tests.matrix.texts import TEXTS

OPEN, ADVANCE = "/v1/states", "/v1/states/advance"
NEXT, FREE = "/v1/states/next", "/v1/states/free"
PIECE = 4
"""Tokens read at once."""


def opened(model, context=""):
    return model.ask(OPEN, context=context)["states"][0]["state"]


def advanced(model, state, **options):
    return good(model.post(ADVANCE, {"continuations": [{"state": state, **options}]}))["results"][0]


def good(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


@row("POST /v1/states", "POST /v1/states/advance")
def test_pieces_from_a_state_score_the_whole(model):
    ids = model.tokenizer.encode(TEXTS[2])
    state, log_probs = opened(model), []
    for first in range(0, len(ids), PIECE):
        step = advanced(model, state, token_ids=ids[first : first + PIECE], eos=True)
        state, log_probs = step["state"], [*log_probs, *step["logprobs"]]
    whole = model.log_probs(TEXTS[2])
    assert [*log_probs, step["eos_logprob"]] == pytest.approx(whole, abs=model.cell.tolerance)


@row("POST /v1/states", "POST /v1/states/advance")
def test_a_text_after_a_state_scores_as_after_a_context(model):
    told = advanced(model, opened(model, "The cat"), text="sat on", keep=False)
    assert told["logprobs"] == pytest.approx(
        model.log_probs(" sat on", context="The cat", eos=False), abs=model.cell.tolerance
    )


@row("POST /v1/states", "POST /v1/states/next")
def test_what_comes_next_after_states_is_what_comes_next_after_their_texts(model):
    contexts = ["", "The cat", TEXTS[2]]
    states = [one["state"] for one in model.ask(OPEN, context=contexts)["states"]]
    rows = model.rows(contexts)
    told = good(model.post(NEXT, {"states": states}))["logprobs"]
    few = good(model.post(NEXT, {"states": states, "token_ids": [EOS, 0]}))["logprobs"]
    for row_told, two, expected in zip(told, few, rows, strict=True):
        assert row_told == pytest.approx(expected, abs=model.cell.tolerance)
        assert two == pytest.approx([expected[EOS], expected[0]], abs=model.cell.tolerance)


@row("POST /v1/states", "POST /v1/states/free")
def test_a_fork_outlives_what_it_came_from(model):
    state = opened(model, "The cat")
    fork = advanced(model, state)["state"]
    before = advanced(model, state, token_ids=[EOS])["logprobs"]
    assert good(model.post(FREE, {"states": [state, state, "nowhere"]})) == {"freed": 1}
    lost = model.post(ADVANCE, {"continuations": [{"state": state}]})
    assert (lost.status_code, lost.json()["error"]["code"]) == (404, "unknown_state")
    assert advanced(model, fork, token_ids=[EOS])["logprobs"] == pytest.approx(
        before, abs=model.cell.tolerance
    )
