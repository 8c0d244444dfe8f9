"""Count pruning: thresholds, who stays, and where prefixes and suffixes are then."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.vocabulary import BOS
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, count_ngrams, thresholds_by_order
from training.ngram.estimate import smooth
from training.progress import Silent


def corpus(seed=0, sentences=400):
    rng = np.random.default_rng(seed)
    return EncodedCorpus.from_sentences(
        [rng.integers(3, 7, size=rng.integers(1, 9)) for _ in range(sentences)]
    )


def observed(prune, order=4):
    return Observations(count_ngrams(corpus(), 7, order=order, progress=Silent()), prune=prune)


def spelt(orders):
    """Each order's n-grams in words, by way of their prefixes."""
    answer, shorter = [], [()]
    for order in orders:
        ngrams = order.ngrams
        shorter = [(*shorter[p], int(w)) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        answer.append(dict(zip(shorter, order.counts.tolist(), strict=True)))
    return answer


@pytest.mark.parametrize(
    ("prune", "expected"),
    [((), (0, 0, 0, 0)), ((0, 1), (0, 1, 1, 1)), ([0, 0, 1, 2], (0, 0, 1, 2)), ((0,), (0, 0, 0, 0))],
)
def test_the_last_threshold_holds_for_all_higher_orders(prune, expected):
    assert thresholds_by_order(prune, order=4) == expected


@pytest.mark.parametrize(
    ("prune", "said"),
    [
        ((1,), r"is \[1\], the first threshold must be 0"),
        ((-1, 0), r"is \[-1, 0\], the first threshold must be 0"),
        ((0, 2, 1), r"is \[0, 2, 1\], a threshold must not be below the one before"),
        ((0, 0, 0, 1, 1), r"thresholds of 5 orders, but ngram.order is 4"),
    ],
)
def test_wrong_thresholds_are_refused(prune, said):
    with pytest.raises(InvalidInputError, match=said) as raised:
        thresholds_by_order(prune, order=4)
    assert raised.value.parameter == "ngram.prune"


def test_an_ngram_stays_if_it_occurs_more_often_than_its_threshold():
    everything, pruned = spelt(observed(()).occurrences()), spelt(observed((0, 1, 1, 3)).occurrences())
    for k, threshold in enumerate((0, 1, 1, 3)):
        expected = {g: c for g, c in everything[k].items() if k == 0 or c > threshold}
        assert pruned[k] == expected
    assert 0 < len(pruned[3]) < len(everything[3])


def test_what_counts_as_continuation_is_pruned_by_occurrences():
    occurrences, everything = spelt(observed(()).occurrences()), spelt(observed(()).continuations())
    pruned = spelt(observed((0, 2)).continuations())
    assert pruned[1] == {g: everything[1][g] for g, c in occurrences[1].items() if c > 2}


def test_suffixes_of_those_that_stay_are_numbered_anew():
    words = [()]
    for order in observed((0, 1, 2)).occurrences():
        ngrams = order.ngrams
        longer = [(*words[p], int(w)) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        if len(longer[0]) > 1:
            assert [words[s] for s in ngrams.suffixes] == [g[1:] for g in longer]
        words = longer


def test_totals_and_kinds_include_what_was_dropped():
    everything, pruned = list(observed(()).occurrences()), list(observed((0, 0, 15)).occurrences())
    assert np.array_equal(everything[2].totals, pruned[2].totals)
    assert np.array_equal(everything[2].types, pruned[2].types)
    assert np.array_equal(everything[3].counts_of_counts, pruned[3].counts_of_counts)
    assert np.bincount(pruned[2].ngrams.prefixes, pruned[2].counts).sum() < pruned[2].totals.sum()


def test_nothing_is_copied_where_nothing_is_dropped():
    counted = count_ngrams(corpus(), 7, order=3, progress=Silent())
    for one_order, order in zip(counted, Observations(counted).occurrences(), strict=True):
        assert order.ngrams.words is one_order.ngrams.words
        assert order.ngrams.suffixes is one_order.ngrams.suffixes
    assert counted[0].counts[BOS] == 400  # the caller's counts are as they were


def test_an_order_of_which_nothing_is_left_keeps_its_place():
    result = smooth(corpus(), 7, order=3, prune=(0, 0, 10_000), progress=Silent())
    (_, bigrams), (trigrams, _) = result.orders[1:]
    assert len(trigrams.words) == 0
    assert (bigrams.log10_backoffs == 0).all()
