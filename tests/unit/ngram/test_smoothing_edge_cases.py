"""The smallest texts, for every smoothing: a model whose rows sum to 1, or a clear error."""

import math
from typing import get_args

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.ngram.model import NGramState
from models.vocabulary import EOS, UNK, Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.ngram.smoothing.choice import SmoothingName, make_smoothing
from training.ngram.smoothing.jelinek_mercer import JelinekMercer
from training.ngram.smoothing.simple import Additive
from training.progress import Silent

NAMES = get_args(SmoothingName)
VOCABULARY = Vocabulary(["a", "b"])

TEXTS = {
    "one sentence": [[3, 4, 3]],
    "one word": [[3]],
    "only unknown words": [[UNK, UNK], [UNK]],
    "only empty sentences": [[], []],
    "one word again and again": [[3] * 50],
    "every word after every word": [[0, 0, 3, 0, 4, 3, 3, 4, 4, 0], [3], [4], []],
}


def estimated(name, texts, *, order=3, vocabulary=VOCABULARY, **settings):
    corpus = EncodedCorpus.from_sentences(texts)
    return estimate(
        corpus,
        vocabulary,
        order=order,
        smoothing=make_smoothing(name, **settings),
        held_out=corpus,
        progress=Silent(),
    )


@pytest.mark.parametrize("order", [1, 2, 3, 20])
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", NAMES)
def test_every_row_sums_to_one(name, texts, order):
    model = estimated(name, texts, order=order).model
    states = NGramState(np.arange(model.automaton.num_states, dtype=np.int32))
    total = np.exp(model.next_log_probs(states), dtype=np.float64).sum(axis=1)
    assert total == pytest.approx(np.ones(len(total)), abs=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "mle"])
def test_every_word_is_possible_everywhere(name):
    model = estimated(name, [[3] * 50]).model
    states = NGramState(np.arange(model.automaton.num_states, dtype=np.int32))
    assert (model.next_log_probs(states)[:, [UNK, EOS, 3, 4]] > -math.inf).all()


def test_a_vocabulary_of_control_tokens_is_enough():
    for name in NAMES:
        model = estimated(name, [[UNK], []], vocabulary=Vocabulary([])).model
        row = np.exp(model.next_log_probs(model.initial_state(1))[0])
        assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize("pruning", [{"prune": (0, 1000)}, {"prune_entropy": 1e3}])
def test_pruning_may_leave_nothing_but_the_words(pruning):
    corpus = EncodedCorpus.from_sentences([[3, 4, 3]] * 9)
    made = estimate(corpus, VOCABULARY, order=3, progress=Silent(), **pruning)
    assert made.num_ngrams == (5, 0, 0)
    state = made.model.advance(made.model.initial_state(1), np.array([3]))
    assert np.exp(made.model.next_log_probs(state)).sum() == pytest.approx(1)


@pytest.mark.parametrize("held_out", [None, EncodedCorpus.from_sentences([])])
@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("ngram.smoothing", {"name": "jelinek-mercer"}),
        ("ngram.discounts", {"name": "modified-kneser-ney", "discounts": "held-out"}),
    ],
)
def test_held_out_text_that_is_needed_and_missing_is_asked_for(held_out, key, settings):
    corpus = EncodedCorpus.from_sentences([[3, 4]])
    with pytest.raises(InvalidInputError, match=rf"{key}: .* held-out text, and there is none") as raised:
        estimate(
            corpus,
            VOCABULARY,
            order=2,
            smoothing=make_smoothing(**settings),
            held_out=held_out,
            progress=Silent(),
        )
    assert raised.value.parameter == key


def test_held_out_text_of_another_vocabulary_is_refused():
    with pytest.raises(
        InvalidInputError, match=r"held-out text has ids from 7 to 7, the vocabulary's are 0 to 4"
    ):
        estimate(
            EncodedCorpus.from_sentences([[3, 4]]),
            VOCABULARY,
            order=2,
            smoothing=make_smoothing("jelinek-mercer"),
            held_out=EncodedCorpus.from_sentences([[7]]),
            progress=Silent(),
        )


@pytest.mark.parametrize("k", [5e-324, 1e-300, 1e300, 1.7e308])
def test_rows_sum_to_one_however_little_or_much_is_added(k):
    model = estimated("add-k", [[3, 4, 3], [3]], k=k).model
    rows = np.exp(model.next_log_probs(NGramState(np.arange(model.automaton.num_states, dtype=np.int32))))
    assert rows.sum(axis=1) == pytest.approx(np.ones(len(rows)), abs=1e-6)


@pytest.mark.parametrize("k", [0, -1, math.nan, math.inf])
def test_what_is_added_must_be_above_zero(k):
    with pytest.raises(InvalidInputError, match=rf"ngram\.k is {k}"):
        Additive(k)


@pytest.mark.parametrize("buckets", [0, 32])
def test_the_number_of_buckets_has_limits(buckets):
    with pytest.raises(InvalidInputError, match=rf"ngram\.buckets is {buckets}, it can be 1 to 31"):
        JelinekMercer(buckets)
