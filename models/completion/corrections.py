"""Beginnings of words that may be meant by typed letters: with typing errors, or by keys.

Each typed letter has a probability for each letter that may be meant, and each
insertion, deletion, substitution or transposition (optimal string alignment,
Damerau 1964) costs a factor.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from math import exp, log
from operator import itemgetter, ne
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import Float64s, FloatArray, Int64s, UInt16s
from models.completion.token_trie import TokenTrie, fold_case
from models.completion.words import NextWords
from models.words import last_word_start

MAX_LETTERS = 32
"""Maximum letters of a word that are compared."""

MAX_LETTERS_MEANT = 10
"""Letters of a key that count, the most probable ones; the time of a search grows with them."""

MAX_EDITS = 2
"""Maximum typing errors that completions correct in a prefix."""

LETTERS_PER_EDIT = 2
"""Minimum letters of a prefix per edit."""

EDIT_PENALTY = 0.01
"""Factor of a prefix's probability per edit."""

FIRST_LETTER_PENALTY = 0.1
"""Further factor for another first letter, which is rarely mistyped."""

LETTER_PROBABILITY = 0.1
"""Assumed probability of a letter in a word, without a model call and a lexicon: 1 / perplexity."""

_MAX_FOUND, _MAX_COMPARED = 1 << 14, 256
"""Maximum beginnings that are found, and whose probabilities by the model are compared."""

_MAX_TEXTS = 64
"""Maximum texts of the most probable letters, without a lexicon."""

_LEAST = log(1e-7)
"""Natural logarithm of the least probability of typed letters, relative to the most probable letters."""

KeyLetters: TypeAlias = Mapping[str, float]
"""Probability of each letter that may be meant by a typed character."""

Gains: TypeAlias = Callable[[Sequence[tuple[str, str]], Sequence[int]], Float64s]
"""Probability of typing a text for another one with so many edits, relative to that of any such errors."""


_SPACE = b" "


class CorrectedPrefix(NamedTuple):
    """Prefix that may be meant.

    Attributes:
        spelled: its bytes, as for `CompletionSearch`.
        edits: number of insertions, deletions, substitutions and transpositions
            that no key explains.
        penalty: assumed probability of the typed letters; a factor of ranked
            completions' mass.
        weight: penalty times the prefix's mass by the model, for ranking prefixes.
    """

    spelled: bytes
    edits: int
    penalty: float
    weight: float

    @property
    def text(self) -> str:
        """Text of the prefix without the space."""
        return self.spelled.decode(errors="replace").removeprefix(" ")


class SortedLetters:
    """Letters of the words of a model, sorted, each as a number.

    Args:
        words: the words; only their first `MAX_LETTERS` letters count.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = sorted({word[:MAX_LETTERS] for word in words if word})
        letters = np.array(self.words, f"U{MAX_LETTERS}").view(np.uint32).reshape(-1, MAX_LETTERS)
        sizes = (letters != 0).sum(axis=1)
        alphabet, numbers = np.unique(letters[letters != 0], return_inverse=True)
        self.numbers = {chr(letter): number for number, letter in enumerate(alphabet.tolist())}
        self.letters: UInt16s = numbers.astype(np.uint16)
        self.starts: Int64s = np.concatenate([[0], np.cumsum(sizes)])
        differs = letters[1:] != letters[:-1]
        self.shared: Int64s = np.append(np.zeros(min(len(sizes), 1), np.int64), differs.argmax(axis=1))

    def num_with_prefix(self, text: str) -> int:
        """Return the number of words that begin with a text."""
        return bisect_left(self.words, text + chr(sys.maxunicode)) - bisect_left(self.words, text)

    @staticmethod
    def are_known(tokens: TokenTrie, *, ignore_case: bool) -> bool:
        """True if the letters of a model's words need not be sorted."""
        return _name(tokens, spaced=True, ignore_case=ignore_case) in tokens.derived

    @staticmethod
    def of(tokens: TokenTrie, *, spaced: bool, ignore_case: bool) -> "SortedLetters":
        """Return the letters of a model's words, made once.

        These are the words of its lexicon; without one, the texts of its tokens.

        Args:
            tokens: its tokens.
            spaced: without a lexicon, select tokens that start with a space, which
                is removed, or the others.
            ignore_case: use case-folded letters.
        """
        key = _name(tokens, spaced=spaced, ignore_case=ignore_case)
        found: SortedLetters | None = tokens.derived.get(key)
        if found is None:
            words = _words_of(tokens, spaced=spaced)
            found = SortedLetters(map(str.casefold, words) if ignore_case else words)
            tokens.derived[key] = found
        return found


def _name(tokens: TokenTrie, *, spaced: bool, ignore_case: bool) -> str:
    return f"letters {spaced and tokens.lexicon is None} {ignore_case}"


def _words_of(tokens: TokenTrie, *, spaced: bool) -> Iterable[str]:
    if tokens.lexicon is not None:
        return tokens.lexicon.forms()
    texts = (tokens.token_bytes[token].decode(errors="ignore") for token in tokens.exact.ids.tolist())
    return (text[spaced:] for text in texts if text.startswith(" ") == spaced)


def corrected_prefixes(
    tokens: TokenTrie,
    spelled: bytes,
    after: FloatArray | NextWords,
    edits: int,
    *,
    limit: int = 8,
    ignore_case: bool = False,
    keys: Sequence[KeyLetters] = (),
    gains: Gains | None = None,
) -> list[CorrectedPrefix]:
    """Return the most probable prefixes that may be meant by the typed one, best first.

    Without keys, these are prefixes within some edits of the typed one, which is
    not among them. At most one edit per two typed letters is allowed, and none in
    words of over about thirty letters. Prefixes are beginnings of the words of the
    model's lexicon. Without a lexicon they are beginnings of tokens; if a token
    spells only part of the prefix, the rest is assumed as typed.

    Args:
        tokens: the model's token trie.
        spelled: the typed prefix, as for `CompletionSearch`.
        after: log-probabilities of the next token after the context [V], or the
            next words.
        edits: maximum edits, at most 2.
        limit: maximum prefixes.
        ignore_case: ignore the case of letters.
        keys: what may be meant by each of the last typed letters, in the case of
            the typed one; the others are certain.
        gains: probability of errors relative to equally probable ones; default: all
            are equal.
    """
    spaced = spelled.startswith(_SPACE)
    typed = (fold_case(spelled) if ignore_case else spelled).decode(errors="replace").removeprefix(" ")
    edits = min(edits, len(typed) // LETTERS_PER_EDIT)
    if not (typed and (edits or keys)) or len(typed) > MAX_LETTERS - edits:
        return []
    table = SortedLetters.of(tokens, spaced=spaced, ignore_case=ignore_case)
    meant = letters_meant(typed, keys, ignore_case=ignore_case)
    if keys and tokens.lexicon is None and not tokens.whole_words:
        found = [_Meant(text, score, 0) for text, score in _likely_texts(meant)]
    else:
        found = _beginnings(tokens, table, typed, meant, edits, with_ties=gains is not None)
    texts: dict[str, tuple[int, float, int]] = {}
    for text, score, own in found:
        is_one_word = tokens.whole_words or not last_word_start(text)
        if is_one_word and text not in texts and (keys or text != typed):
            differing = sum(map(ne, text, typed)) if keys and not own else 0
            texts[text] = own + differing, score, own
    penalties = _penalties(typed, texts, is_typed=not keys, gains=gains)
    masses = _masses(tokens, after, [*texts], table, spaced=spaced, ignore_case=ignore_case)
    matches = [
        CorrectedPrefix(
            (" " * spaced + text).encode("utf-8", "surrogatepass"), number, penalty, penalty * mass
        )
        for (text, (number, _, _)), penalty, mass in zip(texts.items(), penalties, masses, strict=True)
    ]
    return nlargest(limit, matches, key=lambda one: one.weight)


class _Meant(NamedTuple):
    """Text that typed letters may mean, ln of their probability, and edits that no key explains."""

    text: str
    score: float
    edits: int


def _beginnings(
    tokens: TokenTrie,
    table: SortedLetters,
    typed: str,
    meant: Sequence[Mapping[str, float]],
    edits: int,
    *,
    with_ties: bool,
) -> list[_Meant]:
    """Return the beginnings of words with the most probable letters."""
    from models.completion.beginnings import find_beginnings  # compiled, and only used here

    evidence = np.full((len(typed), max(len(table.numbers), 1)), -np.inf)
    for at, shares in enumerate(meant):
        for letter in shares.keys() & table.numbers.keys():
            evidence[at, table.numbers[letter]] = log(shares[letter])
    most = sum(log(max(shares.values())) for shares in meant)
    found, scores = np.empty((_MAX_FOUND, 4), np.int64), np.empty(_MAX_FOUND)
    with_parts = tokens.lexicon is None and not tokens.whole_words
    count = find_beginnings(
        table.letters, table.starts, table.shared, evidence, log(EDIT_PENALTY),
        most + _LEAST, edits, with_ties, with_parts, found, scores,
    )  # fmt: skip
    best = np.argsort(-scores[:count], kind="stable")[:_MAX_COMPARED]
    return [
        _Meant(table.words[word][:depth] + typed[at:], score, own)
        for (word, depth, at, own), score in zip(found[best].tolist(), scores[best].tolist(), strict=True)
    ]


def _likely_texts(meant: Sequence[Mapping[str, float]]) -> list[tuple[str, float]]:
    """Return the texts of the most probable letters, words or not, with ln of their probabilities."""
    kept = [("", 0.0)]
    for shares in meant:
        longer = [
            (text + letter, score + log(share)) for text, score in kept for letter, share in shares.items()
        ]
        kept = nlargest(_MAX_TEXTS, longer, key=itemgetter(1))
    return kept


def letters_meant(typed: str, keys: Sequence[KeyLetters], *, ignore_case: bool) -> list[dict[str, float]]:
    """Return the probabilities of the letters meant by each typed one; without a key, it is certain."""
    meant: list[dict[str, float]] = []
    for at, letter in enumerate(typed, start=len(keys) - len(typed)):
        shares: dict[str, float] = {}
        known = nlargest(MAX_LETTERS_MEANT, keys[at].items(), key=itemgetter(1)) if at >= 0 else ()
        for one, share in known or [(letter, 1.0)]:
            cased = one.casefold() if ignore_case else one.upper() if letter.isupper() else one
            shares[cased] = shares.get(cased, 0.0) + share
        meant.append(shares)
    return meant


def share_of(word: str, meant: Sequence[Mapping[str, float]]) -> float:
    """Return the probability of the typed letters if a word is meant; 0 if it has fewer letters."""
    if len(word) < len(meant):
        return 0.0
    share = 1.0
    for letter, shares in zip(word, meant, strict=False):
        share *= shares.get(letter, 0.0)
        if not share:
            break
    return share


def _penalties(
    typed: str, texts: Mapping[str, tuple[int, float, int]], *, is_typed: bool, gains: Gains | None
) -> list[float]:
    """Return the assumed probability of the typed letters for each text."""
    penalties = [
        EDIT_PENALTY**own * (1.0 if text[0] == typed[0] else FIRST_LETTER_PENALTY) if is_typed else exp(score)
        for text, (_, score, own) in texts.items()
    ]
    if gains is None or not texts:
        return penalties
    edits = [own for _, _, own in texts.values()]
    relative = gains([(typed, text) for text in texts], edits)
    return [p * gain if own else p for p, gain, own in zip(penalties, relative.tolist(), edits, strict=True)]


def _masses(
    tokens: TokenTrie,
    after: FloatArray | NextWords,
    texts: Sequence[str],
    table: SortedLetters,
    *,
    spaced: bool,
    ignore_case: bool,
) -> Iterator[float]:
    """Yield the probability of each prefix by the next token."""
    order = tokens.folded if ignore_case else tokens.exact
    spellings = [(" " * spaced + text).encode("utf-8", "surrogatepass") for text in texts]
    if isinstance(after, NextWords):
        yield from (after.best(order.ids, *order.interval(spelled), 1)[1] for spelled in spellings)
        return
    sums = np.concatenate([[0.0], np.cumsum(np.exp(after.take(order.ids)), dtype=np.float64)])
    for text, spelled in zip(texts, spellings, strict=True):
        first, past = order.interval(spelled)
        mass = float(sums[past] - sums[first])
        for token in [] if tokens.whole_words else order.proper_prefixes_of(spelled).tolist():
            begun = max(len(tokens.token_bytes[token].decode(errors="ignore")) - spaced, 0)
            rest = LETTER_PROBABILITY ** (len(text) - begun)
            if tokens.lexicon is not None:
                rest = table.num_with_prefix(text) / max(table.num_with_prefix(text[:begun]), 1)
            mass = max(mass, exp(after[token]) * rest)
        yield mass
