"""Prompts' tokens scored and ranked, in blocks of bounded memory."""

import numpy as np
import pytest

from models.arrays import to_numpy
from models.language_model import score_sequences
from models.vocabulary import BOS, EOS
from service.engine.calls import Predict, run_single
from service.engine.job import run_to_completion
from service.use_cases import completions as module
from service.use_cases.completions import PromptTokens, score_prompt_tokens
from tests import families

PROMPTS = [
    PromptTokens(np.array(ids), after_bos)
    for ids, after_bos in [
        ([4, 5, 6, 0, 9, 2, 1, 7], True),
        ([5], False),
        ([BOS, 7, 8, 9, EOS], False),
        ([4, 5, 6, 0, 9, 2, 1, 7], False),
        ([4, 5, 6, 0, 9, 2, 1, 7], True),
        ([30, 31, 32], True),
    ]
]


def step_by_step(model, prompt):
    """The whole distributions in the places of a prompt's tokens but the first."""
    state = (model.initial_state if prompt.after_bos else model.empty_state)(1)
    rows = []
    for token in prompt.ids[:-1]:
        state = model.advance(state, np.array([token]))
        rows.append(to_numpy(model.next_log_probs(state))[0])
    return np.array(rows).reshape(-1, len(model.vocabulary))


@pytest.mark.parametrize("top", [0, 1, 3, 100])
@pytest.mark.parametrize("name", families.NAMES)
def test_scores_and_ranks_are_those_of_a_slow_loop(name, top, monkeypatch):
    model = families.model(name)
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 3 * len(model.vocabulary))
    for prompt, scores in zip(
        PROMPTS, run_to_completion(score_prompt_tokens(model, PROMPTS, top=top)), strict=True
    ):
        want = step_by_step(model, prompt)
        chosen = want[np.arange(len(want)), prompt.ids[1:]]
        assert scores.log_probs[1:] == pytest.approx(chosen, abs=2e-5)
        assert scores.tops.ids.shape == (len(prompt.ids), min(top, len(model.vocabulary)))
        best = -np.sort(-want, axis=1)[:, :top]
        assert scores.tops.log_probs[1:] == pytest.approx(best, abs=2e-5)
        of_ids = np.take_along_axis(want, scores.tops.ids[1:], axis=1)
        assert of_ids == pytest.approx(best, abs=2e-5)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
def test_a_ranked_score_is_that_of_scoring_whole(name):
    model = families.model(name)
    ids = np.random.default_rng(0).integers(3, 40, 500)
    ranked = run_to_completion(score_prompt_tokens(model, [PromptTokens(ids, after_bos=True)], top=2))[0]
    whole = score_sequences(model, model.initial_state(1), ids[None], np.array([500]))[0]
    assert ranked.log_probs[1:] == pytest.approx(whole[1:], abs=1e-5)


def predictions(work):
    """How many distributions each call asks for."""
    answer, counts = None, []
    while True:
        try:
            call = work.send(answer)
        except StopIteration:
            return counts
        if isinstance(call, Predict):
            counts.append(len(call.state))
        answer = run_single(call) if call is not None else None


def test_no_more_distributions_than_a_block_are_held(monkeypatch):
    model = families.model("ngram")
    monkeypatch.setattr(module, "BLOCK_ENTRIES", 10 * len(model.vocabulary))
    prompts = [PromptTokens(np.full(length, 5 + length), after_bos=True) for length in (31, 30, 29, 7, 1)]
    counts = predictions(score_prompt_tokens(model, prompts, top=1))
    assert max(counts) <= 10
    assert sum(counts) == sum(len(prompt.ids) - 1 for prompt in prompts)


def test_equal_prompts_are_read_once():
    model = families.model("ngram")
    one = PromptTokens(np.array([5, 6, 7, 8]), after_bos=True)
    assert sum(predictions(score_prompt_tokens(model, [one] * 9, top=1))) == 3
