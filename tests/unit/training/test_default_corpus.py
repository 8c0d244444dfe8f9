"""The corpus inside CPython."""

import pytest

from training.corpora.default import read_default_corpus
from training.progress import Silent


@pytest.fixture(scope="module")
def corpus():
    return read_default_corpus(Silent())


def test_it_has_a_few_hundred_thousand_words_and_a_twentieth_of_documents_held_out(corpus):
    words = [sum(len(s.split()) for s in part.sentences) for part in corpus]
    assert 150_000 < words[0] < 1_000_000
    assert all(0.01 < held_out / words[0] < 0.15 for held_out in words[1:])


def test_reading_it_again_gives_the_same_split(corpus):
    again = read_default_corpus(Silent())
    assert [part.sha256 for part in again] == [part.sha256 for part in corpus]


def test_no_sentence_of_some_length_is_in_two_parts(corpus):
    train, valid, test = ({s for s in part.sentences if len(s) >= 40} for part in corpus)
    assert not train & valid
    assert not (train | valid) & test
