"""What is read of several texts, and what is not read again."""

import pytest

from models.vocabulary import BOS
from tests.fakes import fake_vocabulary
from tests.remembering import RememberingModel
from training.evaluation.autocomplete import TypingContexts


@pytest.fixture
def model():
    return RememberingModel(fake_vocabulary())


@pytest.fixture
def contexts(model):
    return TypingContexts(model, model.initial_state(1), 3)


def stands_at(contexts):
    return [contexts.state(number).texts[0][1:] for number in range(3)]


def test_texts_go_on_from_where_they_stand(contexts, model):
    contexts.read({0: [3, 4], 2: [5]})
    contexts.read({0: [3, 4, 6], 1: [7], 2: [5]})
    assert stands_at(contexts) == [(3, 4, 6), (7,), (5,)]
    assert model.asked == [(BOS, 3, 4), (BOS, 5), (BOS, 3, 4, 6), (BOS, 7)]


def test_a_text_that_is_tokenised_otherwise_is_read_from_its_beginning(contexts):
    contexts.read({0: [3, 4], 1: [5]})
    contexts.read({0: [3, 6, 7], 1: [5, 8]})
    assert stands_at(contexts)[:2] == [(3, 6, 7), (5, 8)]


def test_a_text_may_become_empty(contexts):
    contexts.read({0: [3]})
    contexts.read({0: []})
    assert stands_at(contexts)[0] == ()


def test_what_stands_still_is_not_asked_for_again(contexts, model):
    contexts.read({1: [3]})
    row = contexts.log_probs(1)
    contexts.read({1: [3]})
    assert len(model.asked) == 1
    assert contexts.log_probs(1) is row
