"""Typed prefix of a text: the word in which it ends, and corrected prefixes for mistyped ones.

`split_prefix` splits a text into the context, which is tokenised, and the beginning of the current
word, which constrains the next tokens by its bytes. `corrected_prefixes` ranks prefixes within one
or two edits by an edit penalty and the probability of the next token.
"""

import re
import unicodedata
from collections.abc import Iterator
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.completion.text import MAX_LETTERS, LetterTable, last_word_start
from models.completion.token_trie import TokenTrie, fold_case
from models.tokenizers import SentencePieceTokenizer, Tokenizer, WordTokenizer
from models.vocabulary import UNK

_NO_SPACE_AFTER = frozenset(("Ps", "Pi", "Pc", "Sc"))
"""Unicode categories of characters that a word follows directly: opening brackets and quotes, currency signs."""

_NO_SPACE_AFTER_CHARACTERS = frozenset("/\\-@#")
_DASHES = frozenset("\u2013\u2014")
_QUOTES = frozenset("\"'")


class PrefixSplit(NamedTuple):
    """A text in two parts.

    Attributes:
        context: what is tokenised as it stands.
        prefix: the beginning of the current word, as typed; empty if the next word is to come.
        start: where the current word begins, in code points of the text.
        spelled: what the tokens after those of the context begin with.
        space: whether a completion brings a space, as the text does not end in one.
    """

    context: str
    prefix: str
    start: int
    spelled: bytes
    space: bool


def split_prefix(tokenizer: Tokenizer, text: str) -> PrefixSplit:
    """Find the word in which a text ends.

    For word tokenizers that is the last word, if a letter more would belong to it; for others the last run of
    word characters (see `last_word`). White space before it is read as the one space that pieces carry; a text
    of nothing else is read as empty.
    """
    start = (
        _last_word_offset(tokenizer, text) if isinstance(tokenizer, WordTokenizer) else last_word_start(text)
    )
    context, prefix = text[:start], text[start:]
    space = not prefix and _needs_space(tokenizer, text)
    spelled = _normalise(tokenizer, prefix)
    if tokenizer.leading_space:
        before = context.rstrip()
        if space or not before or len(before) < len(context) or isinstance(tokenizer, WordTokenizer):
            context, spelled = before, " " + spelled
    elif space:
        spelled = " "
    return PrefixSplit(context, prefix, start, spelled.encode("utf-8", "surrogatepass"), space)


def _last_word_offset(tokenizer: WordTokenizer, text: str) -> int:
    """Return the start of the last word of a word tokenizer; the text's length if the text ends in none."""
    if tokenizer.pattern is None:
        at_end = text and not text[-1].isspace()
        return len(text) - len(text.rsplit(maxsplit=1)[-1]) if at_end else len(text)
    read = text.lower() if tokenizer.lowercase else text
    pattern = re.compile(tokenizer.pattern)
    last = None
    for match in pattern.finditer(read):
        if match.group():
            last = match
    if last is None or last.end() < len(read) or not _may_continue(pattern, last.group()):
        return len(text)
    start = last.start()
    return start if len(read) == len(text) else _original_offset(text, len(read) - start)


def _may_continue(pattern: re.Pattern[str], word: str) -> bool:
    """Return whether the tokenizer's pattern takes a letter after a word as part of the word."""
    found = pattern.match(word + "a")
    return found is not None and found.end() > len(word)


def _original_offset(text: str, num_lowered: int) -> int:
    """Return the start of the last characters with `num_lowered` code points when lower-cased."""
    at = len(text)
    while at and num_lowered > 0:
        at -= 1
        num_lowered -= len(text[at].lower())
    return at


def _normalise(tokenizer: Tokenizer, prefix: str) -> str:
    """A prefix as the tokenizer reads it."""
    if isinstance(tokenizer, WordTokenizer) and tokenizer.lowercase:
        return prefix.lower()
    if isinstance(tokenizer, SentencePieceTokenizer):
        ids = tokenizer.encode(prefix)
        return prefix if UNK in ids else tokenizer.decode(ids)
    return prefix


def _needs_space(tokenizer: Tokenizer, text: str) -> bool:
    """Return whether a space comes between a text and the next word."""
    if not text or text[-1].isspace():
        return False
    if isinstance(tokenizer, WordTokenizer):
        return True
    last, before = text[-1], text[-2:-1]
    opens = not before or before.isspace() or unicodedata.category(before) in _NO_SPACE_AFTER
    if last in _QUOTES:
        return not opens
    if last in _DASHES:
        return opens  # one between spaces, not between words
    if unicodedata.category(last).startswith("P") and unicodedata.east_asian_width(last) in "WF":
        return False  # scripts that are written without spaces
    return last not in _NO_SPACE_AFTER_CHARACTERS and unicodedata.category(last) not in _NO_SPACE_AFTER


EDIT_PENALTY = 0.01
"""Factor of a prefix's probability per edit."""

FIRST_LETTER_PENALTY = 0.1
"""How much less probable yet, if the first letter is another: it is seldom mistyped."""

LETTER_PROBABILITY = 0.1
"""How probable a letter within a word is taken to be, where the model is not asked: the inverse of a perplexity."""

LETTERS_PER_EDIT = 2
"""Letters of a prefix per edit that is looked past."""

_MAX_MATCHES = 256


class CorrectedPrefix(NamedTuple):
    """A prefix that differs from the one typed.

    Attributes:
        spelled: it, as `CompletionSearch` takes it.
        edits: letters inserted, left out or replaced, or neighbours exchanged.
        penalty: how probable its being mistyped so is taken to be; times the mass of a completion it ranks it.
        weight: the penalty times the mass that the next token gives to it; to rank prefixes by.
    """

    spelled: bytes
    edits: int
    penalty: float
    weight: float

    @property
    def text(self) -> str:
        """The prefix as words begin with it."""
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
    """The likeliest prefixes within some edits of the one typed, that one aside, the best first.

    There is an edit for every two letters typed at most, and none in words of more than about thirty. Only the next
    token is looked at: if it spells a part of the prefix alone, the rest is taken to be as typed. So with characters
    for tokens only the first letter is corrected.

    Args:
        tokens: of the model.
        spelled: the prefix typed, as `CompletionSearch` takes it.
        log_probs: of the next token after the context [V].
        edits: at most 2.
        limit: how many at most.
        ignore_case: whether the case of letters does not matter.
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
    return nlargest(limit, matches, key=lambda prefix: prefix.weight)


def _whole_prefix_matches(
    table: LetterTable, typed: str, distances: npt.NDArray[np.int8], masses: FloatArray
) -> Iterator[tuple[str, tuple[int, float]]]:
    """Beginnings of tokens that may stand for all that was typed, with their edits and a token's mass."""
    size, edits = len(typed), distances.shape[1] - distances.shape[0]
    # of equally near ones the one as long as what was typed, then the longer
    lengths = sorted(range(size - edits, size + edits + 1), key=lambda length: (abs(length - size), -length))
    cells = distances[size, lengths]  # [K, N]; past a token's end they are no less than at it
    for token, which, distance in _best_matches(cells, masses, edits):
        yield table.texts[token][: lengths[which]], (distance, 0.0)


def _partial_prefix_matches(
    table: LetterTable, typed: str, distances: npt.NDArray[np.int8], masses: FloatArray
) -> Iterator[tuple[str, tuple[int, float]]]:
    """Tokens that may stand for the beginning of what was typed, each with the rest, its edits and mass."""
    size, edits = len(typed), distances.shape[1] - distances.shape[0]
    offsets = sorted(range(-edits, edits + 1), key=abs)
    num_typed = table.lengths + np.array(offsets)[:, None]  # letters that the token stands for [K, N]
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
    """The most probable tokens within some edits but not none: where they are, by which way, the edits.

    Args:
        cells: the edits of each way to read a token [K, N].
        masses: of the tokens [N].
        edits: at most so many.
    """
    nearest = cells.min(axis=0)
    columns = np.flatnonzero((nearest > 0) & (nearest <= edits))
    ranks = masses[columns] * EDIT_PENALTY ** nearest[columns].astype(np.float32)
    best = np.argsort(-ranks, kind="stable")[:_MAX_MATCHES]
    columns = columns[best[::-1]]  # the best last, whom none overwrites
    ways = cells[:, columns].argmin(axis=0)
    return zip(columns.tolist(), ways.tolist(), nearest[columns].tolist(), strict=True)
