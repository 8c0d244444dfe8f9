"""A model's first answers, given to nobody."""

import pytest

from models.vocabulary import Vocabulary
from service.engine.loading import BATCHES, warm_up
from tests import families
from tests.fakes import FakeModel


class Noting(FakeModel):
    """Notes how many rows it is asked about."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.asked = set()

    def next_log_probs(self, state):
        self.asked.add(len(state))
        return super().next_log_probs(state)


@pytest.mark.parametrize("words", [[], ["one"], [f"w{n}" for n in range(500)]])
def test_every_batch_size_is_asked_whatever_the_vocabulary(words):
    model = Noting(Vocabulary(words))
    warm_up(model)
    assert model.asked >= set(BATCHES)


@pytest.mark.parametrize("name", ["ngram", "lstm", "attentive elman", "cached mixture"])
def test_a_model_of_any_family_can_be_warmed_up(name):
    warm_up(families.model(name))
