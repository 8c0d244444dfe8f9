"""Prefixes that may have been meant where one was mistyped."""

from collections.abc import Iterator
from heapq import nlargest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray
from models.completion.letters import MAX_LETTERS, LetterTable
from models.completion.spelled import TokenTrie, fold_case
from models.completion.words import last_word_start

EDIT_PENALTY = 0.01
"""How much less probable each edit makes a prefix."""

FIRST_LETTER_PENALTY = 0.1
"""How much less probable yet, if the first letter is another: it is seldom mistyped."""

LETTER_PROBABILITY = 0.1
"""How probable a letter within a word is taken to be, where the model is not asked: the inverse of a perplexity."""

_LETTERS_PER_EDIT = 2
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
    edits = min(edits, len(typed) // _LETTERS_PER_EDIT)
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
    near = []
    for text, (distance, mass) in texts.items():
        variant = (" " * spaced + text).encode()
        reaching = float(np.exp(log_probs.take(order.with_prefix(variant))).sum())
        penalty = EDIT_PENALTY**distance * (1.0 if text[0] == typed[0] else FIRST_LETTER_PENALTY)
        near.append(CorrectedPrefix(variant, distance, penalty, penalty * max(mass, reaching)))
    return nlargest(limit, near, key=lambda prefix: prefix.weight)


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
    places = np.flatnonzero((nearest > 0) & (nearest <= edits))
    ranks = masses[places] * EDIT_PENALTY ** nearest[places].astype(np.float32)
    best = np.argsort(-ranks, kind="stable")[:_MAX_MATCHES]
    places = places[best[::-1]]  # the best last, whom none overwrites
    ways = cells[:, places].argmin(axis=0)
    return zip(places.tolist(), ways.tolist(), nearest[places].tolist(), strict=True)
