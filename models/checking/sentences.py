"""Sentences, words and spellings of a text: boundaries, tokens per word, edit strings.

A line is a sentence; a line of more than `MAX_SENTENCE_TOKENS` tokens is split, and its parts
follow one another. For word tokenizers a word is a token. For all others it is a run of letters,
digits, combining marks and underscores, with apostrophes and hyphens between two of those. A token
belongs to the word in which its first visible character lies, so a word's tokens include the space
before it and not the one after it, as in the `words` of /v1/score. Tokens between words belong to
none.

`SpellingModel` is a character bigram model with add-k smoothing. `one_edit_strings` follows Norvig
2007, How to write a spelling corrector.
"""

import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from models.arrays import TokenIds
from models.completion.text import JOINERS
from models.tokenizers import CharacterTokenizer, Tokenizer, WordSplitter, WordTokenizer
from models.vocabulary import EOS, UNK

Indices = npt.NDArray[np.int64]
MAX_SENTENCE_TOKENS = 512
"""Of a sentence that is looked at as a whole; a longer line is cut, and its parts follow one another."""

_CONTINUATION_BITS, _CONTINUATION = 0xC0, 0x80  # of a byte of UTF-8 that is not a character's first
_NON_SPACE = re.compile(r"\S+")
_LAST_COMBINING_MARK = 0x1E94A
"""No combining mark lies higher, but for variation selectors, which join no words."""


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        text: as it was given.
        start: where it begins in the whole text, in code points.
        end: where it ends.
        first: its first token among those of its sentence.
        last: the token after its last.
        known: whether the model has a token that spells it; of characters, whether it knows them all.
    """

    text: str
    start: int
    end: int
    first: int
    last: int
    known: bool


class Sentence(NamedTuple):
    """A line of a text, or a part of a long one.

    Attributes:
        text: the line, or the part.
        offset: where it begins in the whole text, in code points.
        ids: its tokens [T].
        begins: where the first visible character of each lies in `text` [T], never falling.
        words: in order.
        after: tokens that follow: `</s>`, or the next of a long line.
        continues_line: whether it follows the sentence before it in one line.
    """

    text: str
    offset: int
    ids: TokenIds
    begins: Indices
    words: tuple[Word, ...]
    after: TokenIds
    continues_line: bool = False

    @property
    def ends(self) -> bool:
        """Whether its line ends with it."""
        return len(self.after) == 1 and self.after[0] == EOS


class SentenceSplitter(ABC):
    """Cuts texts for one tokenizer.

    Args:
        tokenizer: whose tokens.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def sentences(self, text: str, *, lookahead: int, offset: int = 0) -> Iterator[Sentence]:
        r"""The lines of a text that have a token; `\n` ends a line.

        Args:
            text: any.
            lookahead: tokens after a part of a long line that are told.
            offset: where it begins in the whole text, in code points.
        """
        for line in text.split("\n"):
            sentence = self.sentence(line, offset)
            if len(sentence.ids):
                yield from self._parts(sentence, lookahead)
            offset += len(line) + 1

    @abstractmethod
    def sentence(self, line: str, offset: int = 0) -> Sentence:
        """One line, which begins so many characters into its text."""

    def tokens_in(self, sentence: Sentence, left: int, right: int) -> slice:
        """The tokens whose first visible character lies in some of a sentence's characters."""
        return slice(*np.searchsorted(sentence.begins, [left, right]).tolist())

    def _start_of(self, sentence: Sentence, token: int) -> int:
        """Start of a token's characters in a sentence, the spaces before its word included."""
        return int(sentence.begins[token])

    def _parts(self, sentence: Sentence, lookahead: int) -> Iterator[Sentence]:
        """A sentence, or a long one in parts of bounded size that begin where words do."""
        size = len(sentence.ids)
        if size <= MAX_SENTENCE_TOKENS:
            yield sentence
            return
        firsts = np.array([word.first for word in sentence.words if word.first < word.last], dtype=np.int64)
        begin = 0
        while begin < size:
            end = size
            if size - begin > MAX_SENTENCE_TOKENS:
                last = int(np.searchsorted(firsts, begin + MAX_SENTENCE_TOKENS, side="right")) - 1
                whole_words = last >= 0 and firsts[last] > begin
                end = int(firsts[last]) if whole_words else begin + MAX_SENTENCE_TOKENS
            yield self._part(sentence, begin, end, lookahead)
            begin = end

    def _part(self, sentence: Sentence, begin: int, end: int, lookahead: int) -> Sentence:
        """Segment of a sentence's tokens, the text that they spell, and the words that begin in it."""
        size = len(sentence.ids)
        left = 0
        if begin:  # where the tokenizer puts a space before a text, it spells that of the first word
            has_space = self.tokenizer.leading_space
            left = int(sentence.begins[begin]) if has_space else self._start_of(sentence, begin)
        right = self._start_of(sentence, end) if end < size else len(sentence.text)
        return Sentence(
            sentence.text[left:right],
            sentence.offset + left,
            sentence.ids[begin:end],
            sentence.begins[begin:end] - left,
            tuple(
                word._replace(first=word.first - begin, last=min(word.last, end) - begin)
                for word in sentence.words
                if begin <= word.first < end
            ),
            sentence.ids[end : end + lookahead] if end < size else _END_OF_LINE,
            continues_line=begin > 0,
        )


class WordSentenceSplitter(SentenceSplitter):
    """A token is a word."""

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer)
        self.lowercase = tokenizer.lowercase
        self._split = WordSplitter(tokenizer.pattern, lowercase=tokenizer.lowercase)

    @override
    def sentence(self, line: str, offset: int = 0) -> Sentence:
        ids = self.tokenizer.encode(line)
        ends = self._split.ends(line)
        begins = [end - len(word) for word, end in zip(self._split(line), ends, strict=True)]
        if self._split.length(line) != len(line):  # a character became two when it was lower-cased
            given = _offsets_before_lowercasing(line)
            begins, ends = [given[i] for i in begins], [given[i] for i in ends]
        words = tuple(
            Word(line[begin:end], offset + begin, offset + end, index, index + 1, ids[index] != UNK)
            for index, (begin, end) in enumerate(zip(begins, ends, strict=True))
        )
        return Sentence(line, offset, _ids(ids), np.array(begins, dtype=np.int64), words, _END_OF_LINE)


class CharacterSentenceSplitter(SentenceSplitter):
    """A token is a character."""

    @override
    def sentence(self, line: str, offset: int = 0) -> Sentence:
        ids = _ids(self.tokenizer.encode(line))
        begins = np.arange(len(ids)) + np.fromiter((c.isspace() for c in line), bool, len(line))
        sentence = Sentence(line, offset, ids, begins, (), _END_OF_LINE)
        return sentence._replace(words=_find_words(sentence, lambda _, ids: UNK not in ids))

    @override
    def tokens_in(self, sentence: Sentence, left: int, right: int) -> slice:
        return slice(left, right)

    @override
    def _start_of(self, sentence: Sentence, token: int) -> int:
        return token


class SubwordSentenceSplitter(SentenceSplitter):
    """Tokens are pieces of words, with the space before a word in its first piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        spelled = tokenizer.token_bytes
        self._num_bytes = np.fromiter(map(len, spelled), np.int64, len(spelled))
        self._num_spaces = np.fromiter(
            (len(s) - len(s.lstrip(b" ")) for s in spelled), np.int64, len(spelled)
        )

    @override
    def sentence(self, line: str, offset: int = 0) -> Sentence:
        # where the tokenizer changes characters, what stands between white space is tokenised by itself, so that at
        # least that is certain to be where it was
        ids = _ids(self.tokenizer.encode(line))
        begins = self._begins(line, ids)
        if begins is None:
            ids, begins = self._by_chunks(line)
        sentence = Sentence(line, offset, ids, begins, (), _END_OF_LINE)
        return sentence._replace(words=_find_words(sentence, self._is_whole))

    def _begins(self, text: str, ids: TokenIds) -> Indices | None:
        """Offsets of tokens in the text that they spell; None if they spell another."""
        if self.tokenizer.decode(ids.tolist()) != text:
            return None
        raw = np.frombuffer(text.encode(), dtype=np.uint8)
        is_first = (raw & _CONTINUATION_BITS) != _CONTINUATION
        character_of = np.concatenate([np.cumsum(is_first) - 1, [len(text)]])
        sizes = self._num_bytes[ids]
        own_space = int(sizes.sum()) - len(raw)
        visible = np.cumsum(sizes) - sizes - own_space + self._num_spaces[ids]
        begins: Indices = character_of[np.clip(visible, 0, len(raw))]
        return begins

    @override
    def _start_of(self, sentence: Sentence, token: int) -> int:
        return max(int(sentence.begins[token] - self._num_spaces[sentence.ids[token]]), 0)

    def _by_chunks(self, line: str) -> tuple[TokenIds, Indices]:
        ids: list[TokenIds] = []
        begins: list[Indices] = []
        for found in _NON_SPACE.finditer(line):
            chunk_ids = _ids(self.tokenizer.encode(found.group()))
            inside = self._begins(found.group(), chunk_ids)
            ids.append(chunk_ids)
            begins.append(
                found.start() + (np.zeros(len(chunk_ids), dtype=np.int64) if inside is None else inside)
            )
        if not ids:
            return _ids([]), np.zeros(0, dtype=np.int64)
        return np.concatenate(ids), np.concatenate(begins)

    def _is_whole(self, text: str, ids: TokenIds) -> bool:
        return len(ids) == 1 and self.tokenizer.token_bytes[ids[0]].lstrip(b" ") == text.encode()


def sentence_splitter_for(tokenizer: Tokenizer) -> SentenceSplitter:
    """The cutter for a tokenizer's kind."""
    if isinstance(tokenizer, WordTokenizer):
        return WordSentenceSplitter(tokenizer)
    return (
        CharacterSentenceSplitter(tokenizer)
        if isinstance(tokenizer, CharacterTokenizer)
        else SubwordSentenceSplitter(tokenizer)
    )


@cache
def word_pattern() -> re.Pattern[str]:
    """Finds runs of word characters."""
    marks = [chr(c) for c in range(0x300, _LAST_COMBINING_MARK + 1) if unicodedata.category(chr(c))[0] == "M"]
    one = rf"[\w{''.join(marks)}]+"
    return re.compile(rf"{one}(?:[{JOINERS}]{one})*")


_END_OF_LINE = np.array([EOS], dtype=np.int64)


def _ids(ids: list[int]) -> TokenIds:
    return np.array(ids, dtype=np.int64)


def _find_words(sentence: Sentence, is_known: Callable[[str, TokenIds], bool]) -> tuple[Word, ...]:
    """The runs of word characters of a sentence, with their tokens."""
    found = list(word_pattern().finditer(sentence.text))
    firsts = np.searchsorted(sentence.begins, [one.start() for one in found]).tolist()
    lasts = np.searchsorted(sentence.begins, [one.end() for one in found]).tolist()
    return tuple(
        Word(
            one.group(),
            sentence.offset + one.start(),
            sentence.offset + one.end(),
            first,
            last,
            is_known(one.group(), sentence.ids[first:last]),
        )
        for one, first, last in zip(found, firsts, lasts, strict=True)
    )


def _offsets_before_lowercasing(line: str) -> list[int]:
    """For each character of the lower-cased line, and its end, the one it was made of."""
    indices = [index for index, character in enumerate(line) for _ in character.lower()]
    return [*indices, len(line)]


class WordParts(NamedTuple):
    """A token that spells a word of letters.

    Attributes:
        affixes: the punctuation on both of its sides.
        core: the word.
    """

    affixes: tuple[str, str]
    core: str


NO_AFFIXES = ("", "")
"""No punctuation on either side."""

MAX_WORD_LENGTH = 256
"""Characters of a word; longer runs, which may be of any length, are not looked into."""


def split_affixes(token: str) -> WordParts | None:
    """The word that a token spells; None if it spells none, or several, or is longer than `LONGEST`."""
    if len(token) > MAX_WORD_LENGTH:
        return None
    if token.isalpha():
        return WordParts(NO_AFFIXES, token)
    found = word_pattern().search(token)
    if found is None or not is_alphabetic(found.group()):
        return None
    before, after = token[: found.start()], token[found.end() :]
    return None if word_pattern().search(after) else WordParts((before, after), found.group())


def is_alphabetic(word: str) -> bool:
    """Whether a run of word characters has letters, and apostrophes, hyphens and combining marks at most besides.

    One longer than `LONGEST` is not looked into.
    """
    if len(word) > MAX_WORD_LENGTH:
        return False
    return word.isalpha() or (
        word_pattern().fullmatch(word) is not None
        and any(map(str.isalpha, word))
        and not any(c.isdecimal() or c == "_" for c in word)
    )


def match_case(typed: str, word: str) -> str:
    """A word of a lower-cased vocabulary in the case of what was typed."""
    if len(typed) > 1 and typed.isupper():
        return word.upper()
    return word[:1].upper() + word[1:] if typed[:1].isupper() else word


MAX_CHARACTERS = 255
"""The commonest characters have counts of their own; all others share one."""

_OTHER_CHARACTERS = 1 << 16
"""Among which a rare character is one, roughly."""

_ADDED_COUNT = 0.1
_END = 0
_OTHER = 1


class SpellingModel:
    """P(characters of a word, its end) by bigrams of characters with add-k smoothing.

    It is estimated from a list of words, each counted once: a word that is not in the list is more like its rare
    words than like its common ones.

    Args:
        words: to learn from.
    """

    def __init__(self, words: Sequence[str]) -> None:
        codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        characters, counts = np.unique(codes, return_counts=True)
        common = characters[np.argsort(-counts, kind="stable")[:MAX_CHARACTERS]]
        self._indices = {chr(code): index for index, code in enumerate(common.tolist(), start=_OTHER + 1)}
        size = len(common) + 2
        lookup = np.full(int(codes.max(initial=0)) + 1, _OTHER, dtype=np.int64)
        lookup[common] = np.arange(_OTHER + 1, size)
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        ended = np.insert(lookup[codes], np.cumsum(lengths), _END)  # after each word
        pairs = np.concatenate([[_END], ended[:-1]]) * size + ended if len(ended) else ended
        table = np.bincount(pairs, minlength=size * size).reshape(size, size) + _ADDED_COUNT
        self._log_probs = np.log(table / table.sum(axis=1, keepdims=True)).tolist()

    def log_prob(self, word: str) -> float:
        """The natural logarithm of a string's probability; over all strings they sum to 1 or less."""
        indices, rows = self._indices, self._log_probs
        total, before = 0.0, _END
        for character in word:
            index = indices.get(character, _OTHER)
            total += rows[before][index]
            if index == _OTHER:
                total -= log(_OTHER_CHARACTERS)
            before = index
        return total + float(rows[before][_END])


_MIN_PART_LENGTH = 2
"""Letters of a word that a space may have been lost beside."""


def one_edit_strings(word: str, letters: str) -> list[str]:
    """Deletions, swaps of neighbours, substitutions and insertions, each string once, without the word itself.

    Args:
        word: not empty.
        letters: that may be put in.

    Source: Norvig 2007, How to write a spelling corrector.
    """
    cuts = [(word[:index], word[index:]) for index in range(len(word) + 1)]
    found = _shortened_or_swapped(word)
    found |= dict.fromkeys(left + letter + right[1:] for left, right in cuts if right for letter in letters)
    found |= dict.fromkeys(left + letter + right for left, right in cuts for letter in letters)
    return [string for string in found if string not in {word, ""}]


def common_typo_corrections(word: str) -> list[str]:
    """Words meant if the commonest slips were made: a letter too many, two swapped, one not doubled.

    Args:
        word: as typed; not empty.
    """
    doubled = (word[: index + 1] + word[index:] for index in range(len(word)))
    found = _shortened_or_swapped(word) | dict.fromkeys(doubled)
    return [string for string in found if string not in {word, ""}]


def _shortened_or_swapped(word: str) -> dict[str, None]:
    cuts = [(word[:index], word[index:]) for index in range(len(word))]
    found = dict.fromkeys(left + right[1:] for left, right in cuts)
    return found | dict.fromkeys(
        left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1
    )


def word_splits(word: str) -> list[tuple[str, str]]:
    """A word cut in two wherever a space may have been lost: each part has at least `_MIN_PART_LENGTH` letters."""
    cuts = range(_MIN_PART_LENGTH, len(word) - _MIN_PART_LENGTH + 1)
    return [(word[:index], word[index:]) for index in cuts]
