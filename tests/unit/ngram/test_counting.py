"""Counting: what is an n-gram of a text, how often, and where its prefix and suffix are."""

import numpy as np
import pytest

from models.errors import InvalidInputError
from models.vocabulary import BOS, EOS, UNK
from training.corpus import EncodedCorpus
from training.ngram.counts import MAX_ORDER, count_ngrams
from training.progress import Silent


def counts_by_words(sentences, order, vocab_size=6):
    """The counted n-grams of the highest order, spelt out by following prefixes."""
    counted = count_ngrams(
        EncodedCorpus.from_sentences(sentences), vocab_size, order=order, progress=Silent()
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


def test_suffixes_drop_the_first_word(corpus):
    _, bigrams, trigrams = count_ngrams(corpus, 10, order=3, progress=Silent())
    assert np.array_equal(bigrams.ngrams.words[trigrams.ngrams.suffixes], trigrams.ngrams.words)
    second = bigrams.ngrams.words[trigrams.ngrams.prefixes]  # the middle word, from either side
    assert np.array_equal(bigrams.ngrams.prefixes[trigrams.ngrams.suffixes], second)


@pytest.mark.parametrize("order", [0, -1, MAX_ORDER + 1])
def test_an_order_out_of_range_is_refused(corpus, order):
    with pytest.raises(InvalidInputError, match=rf"ngram.order is {order}, it can be 1 to 255") as raised:
        count_ngrams(corpus, 10, order=order, progress=Silent())
    assert raised.value.parameter == "ngram.order"


def test_an_empty_corpus_is_refused():
    with pytest.raises(InvalidInputError, match="no sentence"):
        counts_by_words([], 2)


@pytest.mark.parametrize("word", [6, -1])
def test_ids_outside_the_vocabulary_are_refused(word):
    with pytest.raises(InvalidInputError, match=r"the vocabulary's are 0 to 5"):
        counts_by_words([[3, word]], 2)


@pytest.mark.parametrize("word", [BOS, EOS])
def test_control_ids_inside_a_sentence_are_refused(word):
    with pytest.raises(InvalidInputError, match=r"<s> or </s>"):
        counts_by_words([[3, word, 4]], 2)


def test_progress_tells_of_every_pass(corpus):
    class Recorder(Silent):
        def __init__(self):
            self.total = self.done = 0

        def start(self, description, total):  # noqa: ARG002 - the protocol's signature
            self.total = total

        def advance(self, amount=1, note=""):  # noqa: ARG002 - the protocol's signature
            self.done += amount

    recorder = Recorder()
    count_ngrams(corpus, 10, order=4, progress=recorder)
    assert recorder.done == recorder.total == 7
