"""N-gram counting and count pruning."""

import re
from collections import Counter

import numpy as np
import pytest

from models.errors import InputError
from models.kernels.threads import THREADS
from models.language_model import BOS, EOS, UNK
from tests.reference.backoff import estimated_orders
from training.corpus import EncodedCorpus
from training.ngram.counts import (
    MAX_ORDER,
    Observations,
    count_ngrams,
    threshold_problem,
    thresholds_by_order,
)
from training.progress import Progress


def counts_by_words(sentences, order, vocab_size=6):
    """Counts of the highest order, with n-grams reconstructed from prefixes."""
    counted = count_ngrams(
        EncodedCorpus.from_sentences(sentences), vocab_size, order=order, progress=Progress()
    )
    spelt = [()]
    for one_order in counted:
        ngrams = one_order.ngrams
        spelt = [(*spelt[p], int(w)) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
    return dict(zip(spelt, counted[-1].counts.tolist(), strict=True))


def test_every_sentence_is_counted_between_its_marks():
    assert counts_by_words([[3, 4]], 2) == {(BOS, 3): 1, (3, 4): 1, (4, EOS): 1}


def test_no_ngram_crosses_a_sentence_end():
    assert counts_by_words([[3], [3]], 3) == {(BOS, 3, EOS): 2}


def test_an_order_longer_than_every_sentence_has_no_ngram():
    assert counts_by_words([[3], []], 5) == {}


def test_unigrams_list_the_whole_vocabulary():
    assert counts_by_words([[3, 3, 5]], 1) == {(0,): 0, (1,): 1, (2,): 1, (3,): 2, (4,): 0, (5,): 1}


def test_unknown_words_count_like_others():
    assert counts_by_words([[UNK, UNK]], 2)[UNK, UNK] == 1


def test_ngrams_come_in_lexicographic_order():
    rng = np.random.default_rng(1)
    ngrams = list(counts_by_words([rng.integers(3, 6, size=9) for _ in range(20)], 3))
    assert ngrams == sorted(ngrams)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_a_long_text_is_counted_alike_on_any_number_of_cores(cores, monkeypatch):
    """Kernels read about a thousand positions at once, and a core's share may begin anywhere."""
    monkeypatch.setattr(THREADS, "limit", cores)
    rng = np.random.default_rng(2)
    sentences = [rng.integers(3, 9, size=rng.integers(0, 12)).tolist() for _ in range(1500)]
    marked = [[BOS, *sentence, EOS] for sentence in sentences]
    for order in (2, 4):
        expected = Counter(
            tuple(words[i : i + order]) for words in marked for i in range(len(words) - order + 1)
        )
        assert counts_by_words(sentences, order, vocab_size=9) == expected


def test_suffixes_drop_the_first_word(corpus):
    _, bigrams, trigrams = count_ngrams(corpus, 10, order=3, progress=Progress())
    assert np.array_equal(bigrams.ngrams.words[trigrams.ngrams.suffixes], trigrams.ngrams.words)
    second = bigrams.ngrams.words[trigrams.ngrams.prefixes]  # the middle word, by prefix and by suffix
    assert np.array_equal(bigrams.ngrams.prefixes[trigrams.ngrams.suffixes], second)


@pytest.mark.parametrize("order", [0, -1, MAX_ORDER + 1])
def test_an_order_out_of_range_is_refused(corpus, order):
    with pytest.raises(InputError, match=rf"ngram.order is {order}; it must be from 1 to 255") as raised:
        count_ngrams(corpus, 10, order=order, progress=Progress())
    assert raised.value.param == "ngram.order"


def test_an_empty_corpus_is_refused():
    with pytest.raises(InputError, match="no sentence"):
        counts_by_words([], 2)


@pytest.mark.parametrize("word", [6, -1])
def test_ids_outside_the_vocabulary_are_refused(word):
    with pytest.raises(InputError, match=r"the vocabulary has ids from 0 to 5"):
        counts_by_words([[3, word]], 2)


@pytest.mark.parametrize("word", [BOS, EOS])
def test_control_ids_inside_a_sentence_are_refused(word):
    with pytest.raises(InputError, match=r"<s> or </s>"):
        counts_by_words([[3, word, 4]], 2)


def test_progress_tells_of_every_pass(corpus):
    class Recorder(Progress):
        def __init__(self):
            self.total = self.done = 0

        def start(self, description, total):  # noqa: ARG002 - the protocol's signature
            self.total = total

        def advance(self, amount=1, note=""):  # noqa: ARG002 - the protocol's signature
            self.done += amount

    recorder = Recorder()
    count_ngrams(corpus, 10, order=4, progress=recorder)
    assert recorder.done == recorder.total == 7


def corpus(seed=0, sentences=400):
    rng = np.random.default_rng(seed)
    return EncodedCorpus.from_sentences(
        [rng.integers(3, 7, size=rng.integers(1, 9)) for _ in range(sentences)]
    )


def observed(prune, order=4):
    return Observations(count_ngrams(corpus(), 7, order=order, progress=Progress()), prune=prune)


def spelt(orders):
    """Counts of each order, with n-grams reconstructed from prefixes."""
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
        ((1,), r"is \[1\]; the first threshold must be 0"),
        ((-1, 0), r"is \[-1, 0\]; the first threshold must be 0"),
        ((0, 2, 1), r"is \[0, 2, 1\]; a threshold must not be below the previous one"),
        ((0, 0, 0, 1, 1), r"thresholds of 5 orders, but ngram.order is 4"),
    ],
)
def test_wrong_thresholds_are_refused(prune, said):
    assert re.search(said, threshold_problem(prune, order=4))


def test_an_ngram_stays_if_it_occurs_more_often_than_its_threshold():
    everything, pruned = spelt(observed(()).orders()), spelt(observed((0, 1, 1, 3)).orders())
    for k, threshold in enumerate((0, 1, 1, 3)):
        expected = {g: c for g, c in everything[k].items() if k == 0 or c > threshold}
        assert pruned[k] == expected
    assert 0 < len(pruned[3]) < len(everything[3])


def test_continuations_are_pruned_by_their_occurrences():
    occurrences, everything = spelt(observed(()).orders()), spelt(observed(()).orders(continuations=True))
    pruned = spelt(observed((0, 2)).orders(continuations=True))
    assert pruned[1] == {g: everything[1][g] for g, c in occurrences[1].items() if c > 2}


def test_suffixes_of_those_that_stay_are_numbered_anew():
    words = [()]
    for order in observed((0, 1, 2)).orders():
        ngrams = order.ngrams
        longer = [(*words[p], int(w)) for p, w in zip(ngrams.prefixes, ngrams.words, strict=True)]
        if len(longer[0]) > 1:
            assert [words[s] for s in ngrams.suffixes] == [g[1:] for g in longer]
        words = longer


def test_totals_and_kinds_include_what_was_dropped():
    everything, pruned = list(observed(()).orders()), list(observed((0, 0, 15)).orders())
    assert np.array_equal(everything[2].totals, pruned[2].totals)
    assert np.array_equal(everything[2].types, pruned[2].types)
    assert np.array_equal(everything[3].counts_of_counts, pruned[3].counts_of_counts)
    assert np.bincount(pruned[2].ngrams.prefixes, pruned[2].counts).sum() < pruned[2].totals.sum()


def test_nothing_is_copied_where_nothing_is_dropped():
    counted = count_ngrams(corpus(), 7, order=3, progress=Progress())
    for one_order, order in zip(counted, Observations(counted).orders(), strict=True):
        assert order.ngrams.words is one_order.ngrams.words
        assert order.ngrams.suffixes is one_order.ngrams.suffixes
    assert counted[0].counts[BOS] == 400  # the caller's counts are unchanged


def test_an_order_of_which_nothing_is_left_keeps_its_place():
    orders = estimated_orders(corpus(), 7, order=3, prune=(0, 0, 10_000))
    (_, bigrams), (trigrams, _) = orders[1:]
    assert len(trigrams.words) == 0
    assert (bigrams.log10_backoffs == 0).all()
