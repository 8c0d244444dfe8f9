"""Texts that go on: greedy is the argmax, streamed or not, one beam or none; seeds give the same again."""

import numpy as np
import pytest

from models.vocabulary import BOS, EOS, UNK
from tests.matrix.rows import row

GENERATE, COMPLETIONS = "/v1/generate", "/v1/completions"
PROMPT = "The cat"
GREEDY = {"prompt": PROMPT, "strategy": "greedy", "max_tokens": 8, "logprobs": True}


def greedy(model):
    return model.ask(GENERATE, **GREEDY)["choices"][0]


def streamed(events):
    """The text and the ids of a stream of one choice."""
    pieces = [choice for event in events for choice in event["choices"]]
    return "".join(piece["text"] for piece in pieces), [i for piece in pieces for i in piece["token_ids"]]


@row("POST /v1/generate")
def test_greedy_takes_the_most_probable_token_every_time(model):
    choice = greedy(model)
    read = model.tokenizer.encode(PROMPT)
    taken = [*choice["token_ids"], EOS][: GREEDY["max_tokens"]]
    rows = model.rows([[*read, *taken[:length]] for length in range(len(taken))]).copy()
    rows[:, [BOS, UNK]] = -np.inf
    best = rows.max(axis=1)
    assert rows[np.arange(len(taken)), taken] == pytest.approx(best, abs=model.cell.tolerance)
    assert choice["finish_reason"] == ("stop" if taken[-1] == EOS else "length")
    assert choice["logprobs"] == pytest.approx(best[: len(choice["token_ids"])], abs=model.cell.tolerance)


@row("POST /v1/generate")
def test_streamed_is_what_comes_at_once(model):
    choice = greedy(model)
    assert streamed(model.events(GENERATE, **GREEDY)) == (choice["text"], choice["token_ids"])


@row("POST /v1/generate")
def test_one_beam_is_greedy(model):
    beam = model.ask(GENERATE, **{**GREEDY, "strategy": "beam", "num_beams": 1})["choices"][0]
    assert {**beam, "score": None, "logprobs": None} == {**greedy(model), "score": None, "logprobs": None}


@row("POST /v1/generate")
def test_beams_are_told_best_first_with_the_scores_of_their_tokens(model):
    options = {"prompt": PROMPT, "strategy": "beam", "num_beams": 4, "max_tokens": 6, "length_penalty": 0.0}
    beams = model.ask(GENERATE, n=3, logprobs=True, **options)["choices"]
    scores = [beam["score"] for beam in beams]
    assert scores == sorted(scores, reverse=True)
    for beam in filter(lambda beam: beam["token_ids"], beams):
        asked = {"token_ids": [beam["token_ids"]], "context": model.tokenizer.encode(PROMPT), "eos": False}
        tokens = model.ask("/v1/score", detail="token", **asked)["results"][0]["tokens"]
        scored = [token["logprob"] for token in tokens]
        assert beam["logprobs"] == pytest.approx(scored, abs=model.cell.tolerance)


@row("POST /v1/generate")
def test_a_seed_gives_the_same_texts_again(model):
    drawn = {"prompt": PROMPT, "max_tokens": 8, "n": 3, "seed": 11, "top_p": 0.9, "temperature": 1.3}
    first, again = (model.ask(GENERATE, **drawn)["choices"] for _ in range(2))
    assert [choice["token_ids"] for choice in first] == [choice["token_ids"] for choice in again]
    others = model.ask(GENERATE, **{**drawn, "seed": 12, "n": 8, "max_tokens": 32, "ignore_eos": True})[
        "choices"
    ]
    assert len({tuple(choice["token_ids"]) for choice in others}) > 1


@row("POST /v1/completions")
def test_completions_continue_as_generate_does(model):
    choice = model.ask(COMPLETIONS, prompt=PROMPT, temperature=0, max_tokens=8, logprobs=0)["choices"][0]
    expected = greedy(model)
    assert (choice["text"], choice["finish_reason"]) == (expected["text"], expected["finish_reason"])
    told = choice["logprobs"]["token_logprobs"][: len(expected["logprobs"])]
    assert told == pytest.approx(expected["logprobs"], abs=model.cell.tolerance)


@row("POST /v1/completions")
def test_completions_stream_what_comes_at_once(model):
    asked = {"prompt": [PROMPT, "A dog"], "seed": 3, "max_tokens": 6}
    whole = [choice["text"] for choice in model.ask(COMPLETIONS, **asked)["choices"]]
    texts = ["", ""]
    for event in model.events(COMPLETIONS, **asked):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == whole
