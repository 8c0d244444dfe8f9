"""Sentences, words and spellings of a text: boundaries, tokens per word, edit strings.

A line is a sentence; one of more than `MAX_SENTENCE_TOKENS` tokens is split into consecutive parts.
For word tokenizers a word is a token, for others see `models.words`. A token belongs to the word
with its first visible character, so a word's tokens include the space before it but not the one
after it, as in the `words` of /v1/score. Tokens between words belong to no word.

The model reads an unknown word in the form that it knows: with fewer capitals, composed, without
ligatures. All positions are those of the text as given.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from math import log
from typing import NamedTuple

import numpy as np
from typing_extensions import override

from models.arrays import Float64s, Int64s, TokenIds, code_points
from models.files import ASCII_WHITESPACE, WORD
from models.language_model import EOS, UNK
from models.tokenizers import CharacterTokenizer, Tokenizer, WordTokenizer
from models.words import (
    MAX_WORD_LENGTH,
    PLAIN,
    find_no_words,
    is_in_capitals,
    is_mark,
    plain_form,
    word_forms,
    word_pattern,
)

MAX_SENTENCE_TOKENS = 512
"""Maximum tokens of a sentence; longer lines are split."""

_UNICODE_SPACE = re.compile(rf"[^\S{ASCII_WHITESPACE}]")
_AFTER_SIGN = re.compile(r"[^\w\s]\w")

_END_OF_LINE = np.array([EOS], np.int64)

MAX_CHARS = 255
"""The most frequent characters have their own counts; others share one."""

_OTHER_CHARS = 1 << 16
"""About so many rare characters share one count."""

_ADDED_COUNT = 0.1
_END = 0
_OTHER = 1

_MIN_PART_LENGTH = 2
"""Minimum letters on both sides of a missing space."""


class Word(NamedTuple):
    """A word of a text.

    Attributes:
        text: the word as it appears in the text.
        start: its start in the whole text, in code points.
        end: its end.
        first: index of its first token in the sentence.
        last: index of the token after its last one.
        known: True if one token spells it; for characters, if all are in the vocabulary.
        checked: False in an address or the like, and if it is a part of a letter.
    """

    text: str
    start: int
    end: int
    first: int
    last: int
    known: bool
    checked: bool = True


class Sentence(NamedTuple):
    """A line of a text, or a part of a long one.

    Attributes:
        text: the line or part.
        offset: its start in the whole text, in code points.
        ids: its tokens [T].
        begins: position in `text` of each token's first visible character; for character tokenizers,
            of its character [T], non-decreasing. A composed character begins where its parts do.
        words: its words, in order.
        after: tokens that follow: `</s>`, or the next of a long line.
        continues_line: True if it continues the previous sentence's line.
    """

    text: str
    offset: int
    ids: TokenIds
    begins: Int64s
    words: tuple[Word, ...]
    after: TokenIds
    continues_line: bool = False

    @property
    def ends(self) -> bool:
        """True if it is the last part of its line."""
        return len(self.after) == 1 and self.after[0] == EOS


class SentenceSplitter:
    """Splits texts into sentences, words and tokens for one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._unit = word_pattern()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text as the model reads it."""
        return self.tokenizer.encode(self.read(text)[0])

    def read(self, text: str) -> tuple[str, Int64s]:
        """Return a text in the forms that the model knows best, and its characters' origins.

        This is the first form with the fewest tokens, of those without unknown tokens or else of all.

        Returns:
            The text, and the position in the given text of each character and of its end [N + 1].
        """
        if self._is_plain(text):
            return text, np.arange(len(text) + 1)
        pieces = []
        origins = []
        at = 0
        for found in self._unit.finditer(text):
            (start, end), word = found.span(), found.group()
            form = self._best_form(word)
            space = " " if start and not text[start - 1].isspace() and self.lacks_space(form) else ""
            if form != word or space:
                pieces += [text[at:start], space, form]
                origins += [np.arange(at, start), np.full(len(space), start), start + _origins(word, form)]
                at = end
        return "".join([*pieces, text[at:]]), np.concatenate([*origins, np.arange(at, len(text) + 1)])

    def _is_plain(self, text: str) -> bool:
        """True if the model reads a text as it is."""
        return text.isascii() and text == text.lower()

    def lacks_space(self, word: str) -> bool:  # noqa: ARG002 - overriding methods use the word
        """True if the model reads a word after a sign (bracket) as after a space."""
        return False

    def _best_form(self, word: str) -> str:
        if len(word) > MAX_WORD_LENGTH or (word.isascii() and word == word.lower()):
            return word
        forms = self._forms(word)
        return min(forms, key=self._cost) if len(forms) > 1 else word

    def _forms(self, word: str) -> Sequence[str]:
        """Return the forms in which the model may read a word."""
        return word_forms(word)

    def has_case(self, word: str) -> bool:  # noqa: ARG002 - overriding methods use the word
        """True if the model reads a word with its capitals; for tokenizers with parts of words."""
        return True

    def _cost(self, form: str) -> tuple[bool, int]:
        ids = self.tokenizer.encode(form)
        return UNK in ids, len(ids)

    def sentences(self, text: str, *, lookahead: int, offset: int = 0) -> Iterator[Sentence]:
        r"""Yield the lines of a text that have at least one token; `\n` ends a line.

        Args:
            text: any text.
            lookahead: maximum tokens in `after` of a part of a long line.
            offset: start of `text` in the whole text, in code points.
        """
        for line in text.split("\n"):
            sentence = self._tokenise(line, offset)
            if len(sentence.ids):
                yield from self._parts(sentence, lookahead)
            offset += len(line) + 1

    def sentence(self, line: str) -> Sentence:
        """Tokenise one line."""
        sentence = self._tokenise(line, 0)
        return sentence._replace(words=tuple(self._checked_words(sentence)))

    def _tokenise(self, line: str, offset: int) -> Sentence:
        """Return the sentence without its words."""
        text, origins = self.read(line)
        ids, begins = self.tokenizer.encode(text), origins[self.tokenizer.token_starts(text)]
        return Sentence(line, offset, np.array(ids, np.int64), begins, (), _END_OF_LINE)

    def _checked_words(self, sentence: Sentence) -> Iterator[Word]:
        """Find a sentence's words, and which of them belong to what is no word."""
        text, size = sentence.text, len(sentence.text) + 1
        spans = chain(find_no_words(text), [(size, size)])
        begin, end = next(spans)
        for word in self._words(sentence):
            first, past = word.start - sentence.offset, word.end - sentence.offset
            while end <= first:
                begin, end = next(spans)
            is_part = begin < past or is_mark(text[first]) or (past < len(text) and is_mark(text[past]))
            yield word._replace(checked=False) if is_part else word

    def _words(self, sentence: Sentence) -> Iterator[Word]:
        """Find a sentence's words, not all at once, as a line may have very many."""
        matches = word_pattern().finditer(sentence.text)
        while found := list(islice(matches, MAX_SENTENCE_TOKENS)):
            tokens = np.searchsorted(sentence.begins, [one.span() for one in found]).tolist()
            for one, (first, last) in zip(found, tokens, strict=True):
                (start, end), text = one.span(), one.group()
                is_known = self._is_known(text, sentence.ids[first:last])
                yield Word(text, sentence.offset + start, sentence.offset + end, first, last, is_known)

    def _is_known(self, text: str, ids: TokenIds) -> bool:  # noqa: ARG002 - overriding methods use the text
        """True if the tokens spell a word as the vocabulary has it."""
        return UNK not in ids

    def tokens_in(self, sentence: Sentence, left: int, right: int) -> slice:
        """Return the tokens whose first visible character is in `sentence.text[left:right]`."""
        return slice(*np.searchsorted(sentence.begins, [left, right]).tolist())

    def _start_of(self, sentence: Sentence, token: int) -> int:
        """Start of a token in a sentence, including the spaces before its word."""
        return int(sentence.begins[token])

    def _parts(self, sentence: Sentence, lookahead: int) -> Iterator[Sentence]:
        """Yield a sentence, or parts of at most `MAX_SENTENCE_TOKENS`, each from a word on."""
        size, words = len(sentence.ids), self._checked_words(sentence)
        if size <= MAX_SENTENCE_TOKENS:
            yield sentence._replace(words=tuple(words))
            return
        begin, ahead = 0, list[Word]()
        while begin < size:
            limit = begin + MAX_SENTENCE_TOKENS
            while not (ahead and ahead[-1].first > limit) and (word := next(words, None)):
                ahead.append(word)
            end = size
            if limit < size:
                starts = [one.first for one in ahead if one.first < one.last and one.first <= limit]
                end = starts[-1] if starts and starts[-1] > begin else limit
            own = [
                word._replace(first=word.first - begin, last=min(word.last, end) - begin)
                for word in ahead
                if word.first < end
            ]
            left = 0
            if begin:  # with a leading space, tokenizers already spell the first word's
                has_space = self.tokenizer.leading_space
                left = int(sentence.begins[begin]) if has_space else self._start_of(sentence, begin)
            right = self._start_of(sentence, end) if end < size else len(sentence.text)
            yield Sentence(
                sentence.text[left:right],
                sentence.offset + left,
                sentence.ids[begin:end],
                sentence.begins[begin:end] - left,
                tuple(own),
                sentence.ids[end : end + lookahead] if end < size else _END_OF_LINE,
                continues_line=begin > 0,
            )
            del ahead[: len(own)]
            begin = end


class WordSentenceSplitter(SentenceSplitter):
    """Splitter for word tokenizers: a token is a word.

    Two words made of one character, as by NFKC, both span it.
    """

    tokenizer: WordTokenizer

    def __init__(self, tokenizer: WordTokenizer) -> None:
        super().__init__(tokenizer)
        if tokenizer.pattern is None:
            self._unit = WORD

    @override
    def read(self, text: str) -> tuple[str, Int64s]:
        return super().read(WORD.sub(self._separate, text) if _UNICODE_SPACE.search(text) else text)

    def _separate(self, found: re.Match[str]) -> str:
        """Return a word with a no-break space or the like, or, if unknown, the words around it."""
        word = found.group()
        is_torn = _UNICODE_SPACE.search(word) is not None and UNK in self.tokenizer.encode(word)
        return _UNICODE_SPACE.sub(" ", word) if is_torn else word

    @override
    def _tokenise(self, line: str, offset: int) -> Sentence:
        text, origins = self.read(line)
        ids, read = self.tokenizer.encode(text), self.tokenizer.normaliser(text)
        spans = self.tokenizer.token_spans(read)
        given = origins[self.tokenizer.normaliser.offsets(text)]
        begins, last = given[spans[:, 0]], given[spans[:, 1] - 1]
        ends = given[np.searchsorted(given, last, side="right")]
        words = tuple(
            Word(line[begin:end], offset + begin, offset + end, index, index + 1, ids[index] != UNK)
            for index, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
        )
        return Sentence(line, offset, np.array(ids, np.int64), begins, words, _END_OF_LINE)

    @override
    def _words(self, sentence: Sentence) -> Iterator[Word]:
        return iter(sentence.words)


class CharacterSplitter(SentenceSplitter):
    """Splitter for character tokenizers: a token is a character."""

    @override
    def _words(self, sentence: Sentence) -> Iterator[Word]:
        return super()._words(sentence._replace(begins=_first_visible(sentence)))


class SubwordSplitter(SentenceSplitter):
    """Splitter for subword tokenizers: a word's first piece includes the space before it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._listed = frozenset(tokenizer.lexicon)
        self._is_spaced = np.array([spelled.startswith(b" ") for spelled in tokenizer.token_bytes])

    @override
    def _forms(self, word: str) -> Sequence[str]:
        if self.has_case(word):
            return word_forms(word, cases=False)
        forms = word_forms(word)
        return forms[-1].lower(), *(filter(self.has_case, forms) if is_in_capitals(word) else forms)

    @override
    def _is_plain(self, text: str) -> bool:
        return super()._is_plain(text) and _AFTER_SIGN.search(text) is None

    @override
    def lacks_space(self, word: str) -> bool:
        # most words are pieces with the space before them
        return len(self.tokenizer.encode("(" + word)) > 2

    @override
    def has_case(self, word: str) -> bool:
        return word in self._listed if self._listed else not is_in_capitals(word)

    @override
    def _tokenise(self, line: str, offset: int) -> Sentence:
        sentence = super()._tokenise(line, offset)
        begins = np.where(self._is_spaced[sentence.ids], _first_visible(sentence), sentence.begins)
        return sentence._replace(begins=begins)

    @override
    def _start_of(self, sentence: Sentence, token: int) -> int:
        begin = int(sentence.begins[token])
        spelled = self.tokenizer.token_bytes[sentence.ids[token]]
        is_spaced = sentence.text[begin - 1 : begin].isspace()
        return max(begin - len(spelled) + len(spelled.lstrip(b" ")), 0) if is_spaced else begin

    @override
    def _is_known(self, text: str, ids: TokenIds) -> bool:
        read = self.tokenizer.normaliser(self.read(text)[0])
        return len(ids) == 1 and self.tokenizer.token_bytes[ids[0]].lstrip(b" ") == read.encode()


def sentence_splitter_for(tokenizer: Tokenizer) -> SentenceSplitter:
    """Create the splitter for a tokenizer's kind."""
    if isinstance(tokenizer, WordTokenizer):
        return WordSentenceSplitter(tokenizer)
    if isinstance(tokenizer, CharacterTokenizer):
        return CharacterSplitter(tokenizer)
    return SubwordSplitter(tokenizer)


def _first_visible(sentence: Sentence) -> Int64s:
    """Return where each token begins behind its white space, in characters [T]."""
    text, begins = sentence.text, sentence.begins
    visible = np.append(np.flatnonzero([not one.isspace() for one in text]), len(text))
    ends = np.append(begins, len(text))[1:]
    firsts: Int64s = np.minimum(visible[np.searchsorted(visible, begins)], ends)
    return firsts


def _origins(word: str, form: str) -> Int64s:
    """Map each character of a form of a word to its origin in the word [N]."""
    if len(form) == len(word):
        return np.arange(len(word))
    kept = np.array([at for at, character in enumerate(word) if plain_form(character)], np.int64)
    plain = PLAIN.offsets("".join(word[at] for at in kept.tolist()))[:-1]
    return kept[plain if len(plain) == len(form) else np.minimum(np.arange(len(form)), len(kept) - 1)]


class SpellingModel:
    """P(characters of a word and its end), by a character bigram model with add-k smoothing.

    Estimated from a list of words, each counted once, because an unlisted word resembles the rare
    words of the list more than the frequent ones.
    """

    def __init__(self, words: Sequence[str]) -> None:
        codes, _ = code_points(words)
        characters, counts = np.unique(codes, return_counts=True)
        common = characters[np.argsort(-counts, kind="stable")[:MAX_CHARS]]
        self._size = len(common) + 2
        # stands for all codes above those of the words
        highest = int(codes.max(initial=0)) + 1
        self._indices = np.full(highest + 1, _OTHER, np.int64)
        self._indices[common] = np.arange(_OTHER + 1, self._size)
        counted = np.bincount(self._pairs(words), minlength=self._size**2) + _ADDED_COUNT
        table = counted.reshape(self._size, self._size)
        table = np.log(table / table.sum(axis=1, keepdims=True))
        table[:, _OTHER] -= log(_OTHER_CHARS)
        self._log_probs = table.ravel()

    def log_prob(self, word: str) -> float:
        """Return ln P(string); over all strings, P sums to at most 1."""
        return float(self.log_probs([word])[0])

    def log_probs(self, words: Sequence[str]) -> Float64s:
        """Return ln P of each string [N]; they are padded to the longest."""
        sizes = np.fromiter(map(len, words), np.int64, len(words)) + 1
        terms = np.zeros((len(words), int(sizes.max(initial=1))))
        terms[np.arange(terms.shape[1]) < sizes[:, None]] = self._log_probs[self._pairs(words)]
        sums: Float64s = np.cumsum(terms, axis=1)[:, -1]  # in order of the characters
        return sums

    def _pairs(self, words: Sequence[str]) -> Int64s:
        """Return each pair of characters, ends included, as a place in the table [P]."""
        codes, lengths = code_points(words)
        indices = self._indices[np.minimum(codes, len(self._indices) - 1)]
        ended = np.insert(indices, np.cumsum(lengths), _END)  # after each word
        return np.append(_END, ended)[:-1] * self._size + ended


def one_edit_strings(word: str, letters: str) -> list[str]:
    """Return the distinct deletions, transpositions, substitutions and insertions, without the word.

    Args:
        word: not empty.
        letters: letters to insert or substitute.

    Source: Norvig 2007, How to write a spelling corrector.
    """
    cuts = [(word[:index], word[index:]) for index in range(len(word) + 1)]
    changed = (left + letter + right[1:] for left, right in cuts if right for letter in letters)
    longer = (left + letter + right for left, right in cuts for letter in letters)
    return _edited(word, chain(changed, longer))


def common_typo_corrections(word: str) -> list[str]:
    """Return corrections of frequent typos: an extra letter, two swapped, a missing double."""
    return _edited(word, (word[: index + 1] + word[index:] for index in range(len(word))))


def _edited(word: str, others: Iterable[str]) -> list[str]:
    """Return a word without a letter, with two letters swapped, and others; distinct, without the word."""
    cuts = [(word[:index], word[index:]) for index in range(len(word))]
    shortened = (left + right[1:] for left, right in cuts)
    swapped = (left + right[1::-1] + right[2:] for left, right in cuts if len(right) > 1)
    found = dict.fromkeys(chain(shortened, swapped, others))
    return [one for one in found if one not in {word, ""}]


def word_splits(word: str) -> list[tuple[str, str]]:
    """Split a word at each possible missing space, `_MIN_PART_LENGTH` or more from its ends."""
    cuts = range(_MIN_PART_LENGTH, len(word) - _MIN_PART_LENGTH + 1)
    return [(word[:index], word[index:]) for index in cuts]
