"""A corpus as numbers."""

from models.vocabulary import BOS, EOS
from training.corpus import EncodedCorpus


def test_every_sentence_stands_between_control_tokens():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8, 9, 10]])
    expected = [BOS, 3, 4, 5, EOS, BOS, EOS, BOS, 6, EOS, BOS, 7, 8, 9, 10, EOS]
    assert corpus.with_boundaries().tolist() == expected


def test_no_sentence_gives_no_text():
    assert EncodedCorpus.from_sentences([]).with_boundaries().tolist() == []


def test_reversing_turns_every_sentence_around_in_its_place():
    corpus = EncodedCorpus.from_sentences([[3, 4, 5], [], [6], [7, 8]], num_words=6, num_bytes=11)
    mirrored = corpus.reversed()
    assert [mirrored.sentence(i).tolist() for i in range(4)] == [[5, 4, 3], [], [6], [8, 7]]
    assert (mirrored.num_words, mirrored.num_bytes) == (6, 11)
    assert EncodedCorpus.from_sentences([]).reversed().num_sentences == 0
