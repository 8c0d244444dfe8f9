"""Computations that yield model calls: alone, and side by side."""

import numpy as np
import pytest

from models.calls import Predict, Read, Step, run_to_completion, run_together
from models.language_model import SCORES
from tests.support.fake_models import FakeModel, fake_vocabulary

MODEL = FakeModel(fake_vocabulary(), seed=3)


def computation(steps, kind):
    """Work of several calls, with an event and a pause before each."""
    state, found = MODEL.initial_state(1), []
    for token in range(3, 3 + steps):
        yield "event"
        yield None
        if kind is Read:
            found.append(
                (yield from Read(MODEL, state, np.array([[token]]), np.array([1]), SCORES)).log_probs
            )
        elif kind is Predict:
            found.append((yield from Predict(MODEL, state)))
        state, log_probs = yield from Step(MODEL, state, np.array([token]))
        found.append(log_probs)
    return found


@pytest.mark.parametrize("kinds", [[Step] * 3, [Step, Read, Predict], [Read, Read]])
def test_work_done_side_by_side_is_as_done_alone(kinds):
    steps = [2, 0, 3][: len(kinds)]
    together = run_together([computation(*one) for one in zip(steps, kinds, strict=True)])
    alone = [run_to_completion(computation(*one)) for one in zip(steps, kinds, strict=True)]
    for mine, wanted in zip(together, alone, strict=True):
        assert len(mine) == len(wanted)
        for found, expected in zip(mine, wanted, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_calls_of_one_kind_are_answered_together(monkeypatch):
    asked = []
    answer_all = Step.answer_all
    watched = staticmethod(lambda calls: asked.append(len(calls)) or answer_all(calls))
    monkeypatch.setattr(Step, "answer_all", watched)
    run_together([computation(steps, Step) for steps in (3, 1, 2)])
    assert asked == [3, 2, 1]
