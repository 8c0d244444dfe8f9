"""Patterns of words: ambiguous repetitions are refused, and long texts are read in windows."""

import random
import re

import pytest

from models.errors import InputError
from models.word_index import WordSplitter, compile_pattern

SAFE = [
    r"\w+|[^\w\s]",
    r"\w+(?:['’-]\w+)*|[^\w\s]",  # noqa: RUF001 - an apostrophe
    r"(?:[A-Z]\.)+|\$?\d+(?:\.\d+)?%?|\w+(?:-\w+)*",
    r"\d{1,3}(?:,\d{3})*|\w+",
    r"(?:[A-Z][a-z]+)+",
    r"(?:\w+[.-])*\w+",
    r"(?i)(?:a|b)*c",
    r"(?:[\w-]+\.)+\w+|\S",
    r"the cat|\w+(?=\s|$)",
    r"(\w)\1|(?>\w+)",
    "|".join(f"w{number}" for number in range(1000)),
]


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+b",
        r"x(a+)+b",
        r"(a*)*b",
        r"(\w+\s?)*!",
        r"(x+x+)+y",
        r"(.*)*x",
        r"(?:foo|fo|o)+x",
        r"(?:\d{1,3},?)*;",
        r"(?:a?b?)+c",
        r"(?:a+?|b){9,}?(?=(c+)+d)",
        r"(?=(c+)+d)",
        r"(a|bc)+(?:\1b*)*d",
    ],
)
def test_a_repetition_with_several_ways_for_one_text_is_refused(pattern):
    with pytest.raises(InputError, match="a repetition reads one text in several ways") as refused:
        WordSplitter(pattern)
    assert refused.value.param == "tokenizer.pattern"


@pytest.mark.parametrize("pattern", SAFE)
def test_a_long_text_has_the_words_of_the_whole(pattern):
    parts = ["ab", "Ab ", "don't ", "1,234.5% ", " ", "x-y", "x" * 60, "a.b.c ", "\u4e2d", "the cat", "!"]
    rng = random.Random(1)
    for size in (5, 200, 400):
        text = "".join(rng.choices(parts, k=size))
        found = [match.span() for match in re.finditer(pattern, text) if match.group()]
        assert WordSplitter(pattern).spans(text) == found
        assert WordSplitter(pattern)(text) == [text[begin:end] for begin, end in found]


class Watched:
    """Pattern that records the lengths of the texts it reads."""

    def __init__(self, pattern):
        self._pattern, self.sizes = compile_pattern(pattern), []

    def finditer(self, text, start=0, end=1 << 30):
        self.sizes.append(min(end, len(text)) - start)
        return self._pattern.finditer(text, start, end)


@pytest.mark.parametrize("pattern", [r"a*b", r"\w+(?=\.)", r"\w+"])
def test_a_pattern_reads_a_limited_number_of_characters_at_a_time(pattern):
    splitter = WordSplitter(pattern)
    splitter._pattern = watched = Watched(pattern)
    text = "a" * 20_000
    pieces = splitter(text)
    assert max(watched.sizes) <= 512
    assert sum(watched.sizes) < 2 * len(text)
    assert "".join(pieces) == ("" if pattern != r"\w+" else text)
