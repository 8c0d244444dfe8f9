"""Which tokens change when a text stands in the place of another."""

import pytest

from models.checking.candidates import Replacer
from models.checking.sentences import sentence_splitter_for
from tests.checked import trigram

TEXTS = ["the cat sat on the mat", "  (the cat), sat!  on", "\u05e9\u05dc the \U0001f600 cat"]


@pytest.mark.parametrize("kind", ["word", "char", "unigram"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("new", ["dog", "old house", "cats"])
def test_replaced_tokens_are_those_of_the_replaced_text(kind, text, new):
    """Of pieces too: what stands between white space is tokenised by itself."""
    cutter = sentence_splitter_for(trigram(kind)[1])
    sentence = cutter.sentence(text)
    start = text.index("cat")
    change = Replacer(cutter, sentence, start, start + 3).put(new)
    ids = sentence.ids.tolist()
    assert change is not None
    replaced = [*ids[: change.first], *change.tokens, *ids[change.last :]]
    assert replaced == cutter.sentence(text[:start] + new + text[start + 3 :]).ids.tolist()


def test_no_more_tokens_change_than_must():
    cutter = sentence_splitter_for(trigram()[1])
    sentence = cutter.sentence("the cat sat on the mat")
    change = Replacer(cutter, sentence, 4, 11).put("cat ran")
    assert (change.first, change.last, len(change.tokens)) == (2, 3, 1)


def test_the_same_text_changes_nothing():
    cutter = sentence_splitter_for(trigram()[1])
    assert Replacer(cutter, cutter.sentence("the cat"), 4, 7).put("cat") is None


@pytest.mark.parametrize("kind", ["word", "unigram"])
def test_a_word_that_is_left_out_takes_its_space_with_it(kind):
    cutter = sentence_splitter_for(trigram(kind)[1])
    sentence = cutter.sentence("the cat sat")
    change = Replacer(cutter, sentence, 4, 7).put("")
    ids = sentence.ids.tolist()
    assert [*ids[: change.first], *ids[change.last :]] == cutter.sentence("the sat").ids.tolist()


def test_an_unknown_word_for_another_is_a_change():
    cutter = sentence_splitter_for(trigram()[1])
    assert Replacer(cutter, cutter.sentence("the newt sat"), 4, 8).put("gnu") == (1, 2, (0,))
