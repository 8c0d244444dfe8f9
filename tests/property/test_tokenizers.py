"""SentencePiece and streamed decoding for any text; white space of the word index."""

import functools
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.language_model import BOS, EOS
from models.tokenizers import Detokenizer
from models.word_index import WordCounter, WordIndex, WordSplitter, measure_text
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

# U+2581 is SentencePiece's sign for a space, the only character that is not restored
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\u2581"), max_size=40)
KINDS = ["bpe", "unigram"]


@functools.cache
def tokenizer(kind):
    text = ["the cat sat on the mat", "naïve café <s> </s>", "0x41 <0x41> 漢字"] * 40
    return learn_tokenizer(TokenizerSettings(kind=kind, vocab_size=280), text, progress=Progress())


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_text_round_trips(kind, text):
    pieces = tokenizer(kind)
    ids = pieces.encode(text)
    assert pieces.decode(ids) == text
    assert not {BOS, EOS} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), continues=st.booleans())
def test_text_decoded_token_by_token_is_the_text_decoded_whole(kind, data, continues):
    """For any ids, including partial characters."""
    pieces = tokenizer(kind)
    ids = data.draw(st.lists(st.integers(0, len(pieces.vocabulary) - 1), max_size=20))
    stream = Detokenizer(pieces, continues=continues)
    streamed = "".join([*(stream.push(i) for i in ids), stream.flush()])
    whole = pieces.decode([0, *ids]) if continues else pieces.decode(ids)
    assert streamed == (whole.removeprefix(pieces.decode([0])) if continues else whole)


SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace()]
NEIGHBOURS = [chr(ord(c) + step) for c in SPACES for step in (-1, 1)]
LEADS = ["\x00", "a", "é", "\u0080", "\u1680a", "\u2000", "\u2019", "\u2027", "\u3001", "\u4000", "𝄞"]
LINE = st.lists(st.sampled_from(SPACES + NEIGHBOURS + LEADS) | st.characters(), max_size=12).map("".join)


def ascii_words(text):
    """Words as Python splits bytes: at ASCII white space only."""
    return [word.decode(errors="surrogatepass") for word in text.encode(errors="surrogatepass").split()]


FORMS = pytest.mark.parametrize(("unicode_spaces", "split"), [(False, ascii_words), (True, str.split)])


@FORMS
def test_every_character_separates_words_if_python_says_so(unicode_spaces, split):
    lines = [f"a{chr(c)}b" for c in range(sys.maxunicode + 1)]
    index = WordIndex({"a": 3, "b": 4}, unicode_spaces=unicode_spaces)
    offsets = index.encode(lines).offsets
    counts = [len(split(line)) for line in lines]
    assert (offsets[1:] - offsets[:-1]).tolist() == counts
    words = WordSplitter(None, unicode_spaces=unicode_spaces)
    assert [len(words(line)) for line in lines] == [len(words.spans(line)) for line in lines] == counts
    if not unicode_spaces:
        assert measure_text(lines).num_words == sum(counts)


@FORMS
@given(st.lists(LINE, max_size=6), st.lists(LINE, max_size=3))
def test_any_lines_are_split_as_python_splits_them(unicode_spaces, split, lines, known):
    words = {word: number + 3 for number, word in enumerate({w for line in known for w in split(line)})}
    ids, offsets = WordIndex(words, unicode_spaces=unicode_spaces).encode(lines)
    rows = [ids[begin:end].tolist() for begin, end in pairwise(offsets)]
    assert rows == [[words.get(word, 0) for word in split(line)] for line in lines]


@given(st.lists(LINE, max_size=6))
def test_any_words_are_counted_as_python_counts_them(lines):
    counter = WordCounter()
    counter.add(lines)
    expected = [word for line in lines for word in ascii_words(line)]
    assert counter.counts() == {word: expected.count(word) for word in expected}
    assert measure_text(lines).num_words == len(expected)


def test_lower_casing_makes_no_white_space():
    """Lower-casing a text therefore leaves its number of words unchanged."""
    letters = [chr(c) for c in range(sys.maxunicode + 1) if not chr(c).isspace()]
    assert not any(character.isspace() for letter in letters for character in letter.lower())
