"""Where a completion's model starts, and what its events are, without HTTP."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from models.arrays import to_numpy
from models.decoding.parameters import DecodingParameters
from models.errors import InvalidInputError, UnsupportedParameterError
from models.vocabulary import BOS
from service.engine.job import iter_outputs, run_to_completion
from service.engine.loaded_model import LoadedModel
from service.use_cases.completions import CompletionCommand, complete_prompts
from service.use_cases.inputs import Limits
from tests import families

LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=100)
W2 = 5  # the id of the word w2


def loaded(direction="forward"):
    tokenizer = families.tokenizer()
    manifest = SimpleNamespace(vocab_size=len(tokenizer.vocabulary), direction=direction)
    checkpoint = SimpleNamespace(model=families.model("lstm"), tokenizer=tokenizer, manifest=manifest)
    return LoadedModel("lstm@1", checkpoint)


def command(*prompts, **options):
    parameters = DecodingParameters(max_tokens=3, strategy="greedy", ignore_eos=True)
    named = tuple((f"prompt[{place}]", prompt) for place, prompt in enumerate(prompts))
    defaults = {
        "parameters": parameters,
        "n": 1,
        "echo": False,
        "logprobs": 0,
        "as_ids": False,
        "model": None,
    }
    return CompletionCommand(prompts=named, **{**defaults, **options})


def best_after(*ids, after_bos):
    """The log-probability of the most probable token that may be generated."""
    model = families.model("lstm")
    state = (model.initial_state if after_bos else model.empty_state)(1)
    for token in ids:
        state = model.advance(state, np.array([token]))
    return to_numpy(model.next_log_probs(state))[0, 3:].max()


def test_a_text_is_read_after_the_start_and_ids_as_they_are():
    prompts = ["w2", (BOS, W2), (W2,), "", (BOS,)]
    done = run_to_completion(complete_prompts(loaded(), command(*prompts), LIMITS))
    first = [part.entries.logprobs[0] for part in done.parts]
    with_start, without = best_after(W2, after_bos=True), best_after(W2, after_bos=False)
    assert with_start != pytest.approx(without, abs=1e-4)
    start = best_after(after_bos=True)
    assert first == pytest.approx([with_start, with_start, without, start, start], abs=1e-5)


def test_an_echo_scores_a_text_after_the_start_and_ids_as_they_are():
    options = {"echo": True, "parameters": None}
    done = run_to_completion(
        complete_prompts(loaded(), command("w2 w2", (BOS, W2, W2), (W2, W2), **options), LIMITS)
    )
    text, with_start, without = (part.entries.logprobs for part in done.parts)
    assert text[0] is with_start[0] is without[0] is None
    assert text[1] == with_start[2] != without[1]


def test_long_prompts_are_not_said_again_for_every_choice():
    few = dataclasses.replace(LIMITS, max_reply_entries=10)
    options = {"echo": True, "logprobs": None, "parameters": None}
    with pytest.raises(InvalidInputError, match="repeat 180 characters of prompts; at most 160"):
        run_to_completion(complete_prompts(loaded(), command("w2 " * 20, n=3, **options), few))
    said = command("w2 " * 60, n=1, **options)
    assert run_to_completion(complete_prompts(loaded(), said, few)).parts[0].text == "w2 " * 60


def test_prompts_read_from_right_to_left_are_refused():
    with pytest.raises(UnsupportedParameterError):
        run_to_completion(complete_prompts(loaded("backward"), command("w2"), LIMITS))


def test_events_are_the_echo_then_each_token_the_last_with_the_end():
    told = [
        item.value
        for item in iter_outputs(complete_prompts(loaded(), command("w2", echo=True), LIMITS, stream=True))
    ]
    *parts, done = told
    assert [part.num_generated for part in parts] == [0, 1, 1, 1]
    assert [part.finish_reason for part in parts] == [None, None, None, "length"]
    assert (done.parts, done.num_generated, done.num_prompt_tokens) == ([], 3, 1)


def test_a_work_that_is_closed_closes_what_it_waits_for():
    work = complete_prompts(loaded(), command("w2"), LIMITS, stream=True)
    next(work)
    work.close()
    assert work.gi_frame is None
