"""Words of a text: split, map to ids and count them, without a Python object per word.

Words are runs of characters other than ASCII white space, as in KenLM, SRILM, Kaldi and jiwer, or
the matches of a pattern: a no-break space is part of a word. Tokenizers of earlier versions split
at all Unicode white space. The compiled `word_kernels` is imported at first use: a server of single
sentences does not need it.

Python's regular expressions try all ways for a repetition to read a text. A pattern in which a
repetition has several ways for one text is refused: their number may double per character. Any
other pattern reads a limited number of characters at a time, because it may read all from each one
on before it fails.
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Int32s, Int64s, UInt8s
from models.errors import InputError
from models.files import WORD, split_words
from models.language_model import UNK

_parser, _compiler = map(importlib.import_module, ("re._parser", "re._compiler"))  # no public ones
_UNICODE_WORD = re.compile(r"\S+")
_WIDE_SPACE = re.compile("[\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
"""White space as `str.isspace` defines it, other than ASCII's six characters."""

_WINDOW_CHARS, _MAX_WORD_CHARS = 512, 128
"""Characters that a pattern reads at once, and longest word never cut."""

_MANY_REPEATS = 16
"""Repeats from which on a repetition counts as unbounded."""

_CHARS = "".join(map(chr, (*range(0x400), *range(0x400, 0xD800, 31), *range(0xE000, 0x110000, 997))))
"""Characters of which two parts of a pattern are taken to share one if they read any."""


class RaggedIds(NamedTuple):
    """Ids of several texts.

    Attributes:
        ids: joined ids of all texts [N], int32.
        offsets: start of each text, then N [L + 1], int64.
    """

    ids: Int32s
    offsets: Int64s


class TextSize(NamedTuple):
    """Number of words and of UTF-8 bytes in lines, without line ends."""

    num_words: int
    num_bytes: int


class WordIndex:
    """Fixed map from words to ids, for texts of many words.

    Args:
        ids: words and their ids, such as `Vocabulary.ids`; every other word is `<unk>`.
        unicode_spaces: True if all white space of Unicode separates words.

    Attributes:
        table: the words.
        ids: id of each word of the table [W].
    """

    def __init__(self, ids: Mapping[str, int], *, unicode_spaces: bool = False) -> None:
        from models.word_kernels import WordTable

        self._unicode_spaces = unicode_spaces
        self.table = WordTable(ids).table
        self.ids = np.fromiter(ids.values(), np.int32, len(ids))

    def encode(self, lines: Sequence[str]) -> RaggedIds:
        """Return the ids of each line's words; releases the interpreter lock."""
        from models.word_kernels import encode_lines

        text = join_lines(lines, unicode_spaces=self._unicode_spaces)
        ids = np.empty((len(text) + 1) // 2, np.int32)
        # no lines are read as one empty
        offsets = np.zeros(max(len(lines), 1) + 1, np.int64)
        encode_lines(text, self.table, self.ids, UNK, ids, offsets)
        offsets = offsets[: len(lines) + 1]
        return RaggedIds(ids[: offsets[-1]], offsets)


class WordCounter:
    """Counter of the words of a text that is added in pieces."""

    def __init__(self) -> None:
        from models.word_kernels import WordTable

        self._words = WordTable()
        self._counts = np.zeros(self._words.capacity, np.int64)

    def add(self, lines: Sequence[str]) -> None:
        """Count the words of lines, without the interpreter lock."""
        from models.word_kernels import count_occurrences

        words, text, position = self._words, join_lines(lines), 0
        while True:
            position, words.size = count_occurrences(text, position, words.table, words.size, self._counts)
            if position == len(text):
                return
            words.grow(len(text) - position)
            self._counts.resize(words.capacity, refcheck=False)  # new entries are 0

    def counts(self) -> dict[str, int]:
        """Number of occurrences of each word, in order of first occurrence."""
        words = (word.decode("utf-8", "surrogatepass") for word in self._words.all_words())
        return dict(zip(words, self._counts[: self._words.size].tolist(), strict=True))


def measure_text(lines: Sequence[str]) -> TextSize:
    """Count the words and bytes in lines."""
    from models.word_kernels import ASCII_SPACES

    text = join_lines(lines)
    inside = np.append(False, ~ASCII_SPACES[text])
    num_words = int(np.count_nonzero(inside[1:] > inside[:-1]))
    return TextSize(num_words, len(text) - max(len(lines) - 1, 0))


def join_lines(lines: Sequence[str], *, unicode_spaces: bool = False) -> UInt8s:
    r"""Join lines with "\n", replaced inside lines so that their number stays; return the bytes.

    With `unicode_spaces`, other white space of Unicode is replaced by a space.
    """
    text = "\n".join(lines)
    if text.count("\n") > max(len(lines) - 1, 0):
        text = "\n".join(line.replace("\n", " ") for line in lines)
    if unicode_spaces:
        text = _WIDE_SPACE.sub(" ", text)
    return np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression that finds words in texts of clients.

    Raises:
        InputError: it is no regular expression, or can repeat a part in several ways that read one text:
            Python tries all ways, whose number may double with each character.
    """
    try:
        compiled, tree = re.compile(pattern), _parser.parse(pattern)
        _Positions(tree).check_loops()
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError.of(
            "tokenizer.pattern", f"{pattern!r} is not a regular expression that can be used: {error}"
        ) from None
    return compiled


class _Positions:
    """Parts of a pattern that read one character each, and those that can follow, once per way.

    Source: Glushkov 1961.

    Args:
        tree: the parsed pattern.
    """

    def __init__(self, tree: Any) -> None:
        self._state = tree.state
        self._parts: list[Any] = []
        self._following: list[list[int]] = []
        self._loops: list[range] = []
        self._add_all(tree)

    def check_loops(self) -> None:
        """Check that each character continues a repetition in one way.

        Raises:
            re.error: there are several.
        """
        for loop in self._loops:
            for position in loop:
                after = [other for other in self._following[position] if other in loop]
                counts = Counter(chain.from_iterable(map(self._characters, after)))
                if max(counts.values(), default=0) > 1:
                    raise re.error("a repetition reads one text in several ways")

    def _characters(self, position: int) -> set[str]:
        kind, _ = item = self._parts[position]
        if str(kind).startswith("GROUPREF"):
            return set(_CHARS)
        one = _compiler.compile(_parser.SubPattern(self._state, [item]))
        return set(one.findall(_CHARS + self._state.str))

    def _add_all(self, items: Any) -> tuple[bool, list[int], list[int]]:
        """Add a sequence; return whether it can be empty, and its first and last positions."""
        empty, firsts, lasts = True, list[int](), list[int]()
        for kind, given in items:
            skipped, first, last = self._add(kind, given)
            self._join(lasts, first)
            firsts = firsts + first if empty else firsts
            lasts = lasts + last if skipped else last
            empty = empty and skipped
        return empty, firsts, lasts

    def _add(self, kind: Any, given: Any) -> tuple[bool, list[int], list[int]]:
        name = str(kind)
        if name in {"ASSERT", "ASSERT_NOT"}:
            self._add_all(given[1])
        if name in {"AT", "ASSERT", "ASSERT_NOT"}:
            return True, [], []
        if name in {"SUBPATTERN", "ATOMIC_GROUP"}:
            return self._add_all(given[-1] if name == "SUBPATTERN" else given)
        if name == "BRANCH":
            empty, firsts, lasts = zip(*map(self._add_all, given[1]), strict=True)
            return any(empty), [*chain(*firsts)], [*chain(*lasts)]
        if name.endswith("_REPEAT"):
            return self._repeat(*given)
        self._parts.append((kind, given))
        self._following.append([])
        return False, [len(self._parts) - 1], [len(self._parts) - 1]

    def _repeat(self, least: int, most: int, items: Any) -> tuple[bool, list[int], list[int]]:
        begin = len(self._parts)
        empty, firsts, lasts = self._add_all(items)
        if most > max(least, 1):
            self._join(lasts, firsts)
        if most > _MANY_REPEATS:
            self._loops.append(range(begin, len(self._parts)))
        return empty or not least, firsts, lasts

    def _join(self, lasts: list[int], firsts: list[int]) -> None:
        for position in lasts:
            self._following[position] += firsts


class WordSplitter:
    """Splitter of normalised text into words, also to count words before a vocabulary exists.

    Args:
        pattern: a regular expression whose matches are the words; None splits at white space.
        unicode_spaces: True to split at all Unicode white space, not only ASCII's.

    Raises:
        InputError: the pattern is refused, see `compile_pattern`.
    """

    def __init__(self, pattern: str | None, *, unicode_spaces: bool = False) -> None:
        self._pattern = None if pattern is None else compile_pattern(pattern)
        self._word = _UNICODE_WORD if unicode_spaces else WORD

    def __call__(self, text: str) -> list[str]:
        """Return the words of a text, in order."""
        if self._pattern is None:
            return text.split() if self._word is _UNICODE_WORD else split_words(text)
        return [match.group() for match in self._matches(self._pattern, text) if match.group()]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the start and end of each word, in characters."""
        found = self._word.finditer(text) if self._pattern is None else self._matches(self._pattern, text)
        return [match.span() for match in found if match.group()]

    def _matches(self, pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
        begin = 0
        while len(text) - begin > _WINDOW_CHARS:
            start, end = begin, begin + _WINDOW_CHARS
            begin = end - _MAX_WORD_CHARS
            for match in pattern.finditer(text, start, end):
                # it may go on behind the window
                if match.end() > begin and match.start() > start:
                    begin = min(match.start(), begin)
                    break
                yield match
                begin = max(match.end(), begin)
        yield from pattern.finditer(text, begin)
