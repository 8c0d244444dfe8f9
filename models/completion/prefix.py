"""Typed prefix of a text: the word at its end, and corrected prefixes for typing errors."""

import re
import unicodedata
from collections.abc import Iterator
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.completion.token_trie import MAX_LETTERS, LetterTable, TokenTrie, fold_case
from models.language_model import UNK
from models.tokenizers import Tokenizer, WordTokenizer
from models.words import JOINERS, last_word_start

_NO_SPACE_AFTER = frozenset(("Ps", "Pi", "Pc", "Sc"))
"""Unicode categories of characters directly before a word: opening brackets, quotes, currency signs."""

_NO_SPACE_AFTER_CHARS = frozenset("/\\-@#")
_DASHES = frozenset("\u2013\u2014")
_QUOTES = frozenset("\"'`")
_CLOSING = frozenset(("Pe", "Pf", "Po"))
"""Unicode categories of characters directly after a word, such as closing brackets and commas."""

_NOT_CLOSING = frozenset("&*@#\\\u00a1\u00bf")
_JOINED = re.compile(rf"\w[{JOINERS}]$")

MAX_TAKEN_BYTES = 48
"""Maximum bytes taken back from a prompt: tokenisations multiply with the length."""

EDIT_PENALTY = 0.01
"""Factor of a prefix's probability per edit."""

FIRST_LETTER_PENALTY = 0.1
"""Further factor for another first letter, which is rarely mistyped."""

LETTER_PROBABILITY = 0.1
"""Assumed probability of a letter in a word, without a model call: 1 / perplexity."""

MAX_EDITS = 2
"""Maximum typing errors that completions correct in a prefix."""

LETTERS_PER_EDIT = 2
"""Minimum letters of a prefix per edit."""

_MAX_MATCHES = 256


class PrefixSplit(NamedTuple):
    """Text split into context and prefix.

    Attributes:
        context: text to tokenise.
        prefix: typed beginning of the current word, in the tokenizer's Unicode form, case as typed; empty if the
            next word has not started.
        start: start of the current word, in code points of the text.
        spelled: bytes that the tokens after the context must start with.
        space: True if completions start with a space, because the text ends without one.
    """

    context: str
    prefix: str
    start: int
    spelled: bytes
    space: bool


def split_prefix(tokenizer: Tokenizer, text: str) -> PrefixSplit:
    """Split a text at the start of the word at its end.

    For word tokenizers this is the last word, if another letter would belong to it; else the last run of
    word characters (see `last_word_start`). White space before it is read as the single space of the word's first
    piece; a text of white space is read as empty.
    """
    start = (
        _last_word_offset(tokenizer, text) if isinstance(tokenizer, WordTokenizer) else last_word_start(text)
    )
    context, prefix = text[:start], text[start:]
    space = not prefix and needs_space(text)
    spelled = tokenizer.normalise_word(prefix)
    if tokenizer.leading_space:
        before = context.rstrip()
        if space or not before or len(before) < len(context) or isinstance(tokenizer, WordTokenizer):
            context, spelled = before, " " + spelled
    elif space:
        spelled = " "
    elif tokenizer.joins_spaces and context.endswith(" "):  # byte-level tokens hold space and word
        context, spelled = context[:-1], " " + spelled
    typed = tokenizer.normaliser.compose(prefix)
    return PrefixSplit(context, typed, start, spelled.encode("utf-8", "surrogatepass"), space)


def take_back(tokenizer: Tokenizer, tokens: TokenTrie, text: str) -> tuple[list[int], bytes]:
    """Tokenise a text without its last tokens, which may be part of a longer one.

    The last word's tokens are taken back, at most `MAX_TAKEN_BYTES`: pieces do not cross a space. If the
    tokenizer drops white space at the end, only this space is taken back.

    Args:
        tokenizer: any tokenizer.
        tokens: its token trie.
        text: a nonempty text.

    Returns:
        The ids of the remaining tokens, and the bytes the next ones must start with; none if no token can.
    """
    ids, spelled = tokenizer.encode(text), tokenizer.token_bytes
    if isinstance(tokenizer, WordTokenizer):
        split = split_prefix(tokenizer, text)
        if split.space or not len(tokens.exact.with_prefix(split.spelled)):
            return ids, b""
        return tokenizer.encode(split.context), split.spelled
    if text[-1].isspace() and ids == tokenizer.encode(text[:-1]):
        return ids, b" "
    first, taken = len(ids), b""
    for token in reversed(ids):
        longer = spelled[token] + taken
        if token == UNK or not spelled[token] or taken.startswith(b" ") or len(longer) > MAX_TAKEN_BYTES:
            break
        first, taken = first - 1, longer
    return ids[:first], taken


def _last_word_offset(tokenizer: WordTokenizer, text: str) -> int:
    """Return the start of a word tokenizer's last word; the text's length if it ends in none."""
    if tokenizer.pattern is None:
        at_end = text and not text[-1].isspace()
        return len(text) - len(text.rsplit(maxsplit=1)[-1]) if at_end else len(text)
    read = tokenizer.normaliser(text)
    start, end = max(tokenizer.split.spans(read), default=(0, 0))
    if not end or end < len(read):
        return len(text)
    longer = tokenizer.split.spans(read[start:] + "a")
    # a further letter would not belong to the word
    if longer[:1] != [(0, end - start + 1)]:
        return len(text)
    return start if read == text else int(tokenizer.normaliser.offsets(text)[start])


def needs_space(text: str, following: str = "") -> bool:
    """True if a space separates a text from what follows; default: any word."""
    if not text or text[-1].isspace():
        return False
    last, before, first = text[-1], text.rstrip(text[-1])[-1:], following[:1]
    closes = unicodedata.category(first or "a") in _CLOSING and first not in _NOT_CLOSING
    if first in _QUOTES:
        closes = text.count(first) % 2 > 0
    if (
        closes
        or (first == last and not first.isalnum())
        or any(map(_JOINED.search, (text[-2:], last + first)))
    ):
        return False
    opens = not before or before.isspace() or unicodedata.category(before) in _NO_SPACE_AFTER
    if last in _QUOTES:
        return not opens
    if last in _DASHES:
        return opens  # a dash between spaces, not between words
    if unicodedata.category(last).startswith("P") and unicodedata.east_asian_width(last) in "WF":
        return False  # scripts without spaces
    return last not in _NO_SPACE_AFTER_CHARS and unicodedata.category(last) not in _NO_SPACE_AFTER


def join_words(phrase: str) -> str:
    """Return a phrase with spaces where they belong, none before a comma."""
    joined, *words = phrase.split(" ")
    for word in words:
        joined += " " * needs_space(joined, word) + word
    return joined


class CorrectedPrefix(NamedTuple):
    """Prefix that differs from the typed one.

    Attributes:
        spelled: its bytes, as for `CompletionSearch`.
        edits: number of insertions, deletions, substitutions and transpositions.
        penalty: assumed probability of the typing error; a factor of ranked completions' mass.
        weight: penalty times the prefix's mass by the next token, for ranking prefixes.
    """

    spelled: bytes
    edits: int
    penalty: float
    weight: float

    @property
    def text(self) -> str:
        """Text of the prefix without the space."""
        return self.spelled.decode(errors="replace").removeprefix(" ")


def corrected_prefixes(
    tokens: TokenTrie,
    spelled: bytes,
    log_probs: FloatArray,
    edits: int,
    *,
    limit: int = 8,
    ignore_case: bool = False,
) -> list[CorrectedPrefix]:
    """Return the most probable prefixes within some edits of the typed one, without it, best first.

    At most one edit per two typed letters is allowed, and none in words of over about thirty letters. Only the
    next token is used: if it spells only part of the prefix, the rest is assumed as typed. With character
    tokens, therefore, only the first letter is corrected.

    Args:
        tokens: the model's token trie.
        spelled: the typed prefix, as for `CompletionSearch`.
        log_probs: log-probabilities of the next token after the context [V].
        edits: maximum edits, at most 2.
        limit: maximum prefixes.
        ignore_case: ignore the case of letters.
    """
    spaced = spelled.startswith(b" ")
    key = fold_case(spelled) if ignore_case else spelled
    typed = key.decode(errors="replace").removeprefix(" ")
    edits = min(edits, len(typed) // LETTERS_PER_EDIT)
    if not edits or len(typed) > MAX_LETTERS - edits:
        return []
    table = tokens.letters(spaced=spaced, ignore_case=ignore_case)
    masses = np.exp(log_probs.take(table.ids))
    distances = table.distances(typed, edits)
    texts = dict(_whole_prefix_matches(table, typed, distances, masses))
    if not tokens.whole_words:
        texts = dict(_partial_prefix_matches(table, typed, distances, masses)) | texts
        texts = {text: found for text, found in texts.items() if not last_word_start(text)}
    order = tokens.folded if ignore_case else tokens.exact
    matches = []
    for text, (distance, mass) in texts.items():
        variant = (" " * spaced + text).encode()
        reaching = float(np.exp(log_probs.take(order.with_prefix(variant))).sum())
        penalty = EDIT_PENALTY**distance * (1.0 if text[0] == typed[0] else FIRST_LETTER_PENALTY)
        matches.append(CorrectedPrefix(variant, distance, penalty, penalty * max(mass, reaching)))
    return nlargest(limit, matches, key=lambda one: one.weight)


def _whole_prefix_matches(
    table: LetterTable, typed: str, distances: npt.NDArray[np.int8], masses: FloatArray
) -> Iterator[tuple[str, tuple[int, float]]]:
    """Yield token prefixes that can replace the typed one, with edits, no mass yet."""
    size, edits = len(typed), distances.shape[1] - distances.shape[0]
    # among equal distances prefer the typed length, then longer prefixes
    lengths = sorted(range(size - edits, size + edits + 1), key=lambda length: (abs(length - size), -length))
    # [K, N]; distances beyond a token's end are not smaller
    cells = distances[size, lengths]
    for token, which, distance in _best_matches(cells, masses, edits):
        yield table.texts[token][: lengths[which]], (distance, 0.0)


def _partial_prefix_matches(
    table: LetterTable, typed: str, distances: npt.NDArray[np.int8], masses: FloatArray
) -> Iterator[tuple[str, tuple[int, float]]]:
    """Yield tokens that can replace part of the typed prefix, with the rest, edits and mass."""
    size, edits = len(typed), distances.shape[1] - distances.shape[0]
    offsets = sorted(range(-edits, edits + 1), key=abs)
    # typed letters the token replaces [K, N]
    num_typed = table.lengths + np.array(offsets)[:, None]
    width = distances.shape[1] - 1
    cells = distances[np.clip(num_typed, 0, size), np.minimum(table.lengths, width), np.arange(len(masses))]
    cells[(num_typed < 1) | (num_typed >= size) | (table.lengths > width)] = edits + 1
    num_left = np.maximum(size - table.lengths, 0)
    reached = masses * LETTER_PROBABILITY ** num_left.astype(np.float32)
    for token, which, distance in _best_matches(cells, reached, edits):
        yield table.texts[token] + typed[num_typed[which, token] :], (distance, float(reached[token]))


def _best_matches(
    cells: npt.NDArray[np.int8], masses: FloatArray, edits: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the most probable tokens at 1 to `edits` edits: column, row of least distance, distance.

    `cells` has the edits of each reading of a token [K, N].
    """
    nearest = cells.min(axis=0)
    columns = np.flatnonzero((nearest > 0) & (nearest <= edits))
    ranks = masses[columns] * EDIT_PENALTY ** nearest[columns].astype(np.float32)
    best = np.argsort(-ranks, kind="stable")[:_MAX_MATCHES]
    columns = columns[best[::-1]]  # the best last, so no other overwrites it
    continuations = cells[:, columns].argmin(axis=0)
    return zip(columns.tolist(), continuations.tolist(), nearest[columns].tolist(), strict=True)
