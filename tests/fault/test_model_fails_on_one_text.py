"""A model that fails on one of the texts it reads side by side: all others are told what they are told alone."""

import numpy as np
import pytest

from models.errors import EngineFailedError
from models.language_model import pad_sequences
from service.engine.calls import score
from service.engine.job import Job, run_to_completion
from service.engine.scheduler import Scheduler, SchedulerLimits
from tests import families
from tests.fakes import FakeModel

FATAL = 9
"""A token that the model cannot read."""


class BrittleModel(FakeModel):
    """Fails on one token."""

    def advance(self, state, tokens):
        if FATAL in tokens:
            raise ZeroDivisionError
        return super().advance(state, tokens)


class Outcome:
    def result(self, result):
        self.told = result

    error = result


def scoring(model, texts):
    tokens, lengths = pad_sequences(texts)
    return (yield from score(model, model.initial_state(len(texts)), tokens, lengths))


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("place", [0, 35, 69])
def test_only_the_request_with_that_text_fails(place, bulk):
    model = BrittleModel(families.tokenizer().vocabulary)
    bad = [3] * 70
    bad[place] = FATAL
    requests = [[[4] * 60], [[5] * 12, bad], [[6] * 30], [[7, 3] * 40]]
    scheduler = Scheduler(clock=lambda: 0.0, limits=SchedulerLimits(max_jobs=9, slice_s=1e-4))
    outcomes = [Outcome() for _ in requests]
    for texts, outcome in zip(requests, outcomes, strict=True):
        scheduler.submit(Job(scoring(model, texts), outcome, deadline_s=1, bulk=bulk))
    while scheduler.step():
        pass
    assert isinstance(outcomes[1].told, EngineFailedError)
    for texts, outcome in zip(requests[:1] + requests[2:], outcomes[:1] + outcomes[2:], strict=True):
        np.testing.assert_array_equal(outcome.told, run_to_completion(scoring(model, texts)))
