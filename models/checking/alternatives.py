"""What may have been meant, in arrays: places of a text, and token sequences that may stand there instead."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.checking.sentences import Sentence

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Slot(NamedTuple):
    """A place where something else may have been meant: a word, two neighbours, or a span of a caller's.

    Attributes:
        start: where it begins in the whole text, in code points.
        end: where it ends.
        first: its first token, by its place among those of the batch.
        last: the token after its last.
        known: whether the model knows its words.
        exempt: whether it cannot be wrong, since it is in the caller's dictionary.
        log_weight: ln of how probable it is to be typed so when it is meant, spellings of unknown words included.
    """

    start: int
    end: int
    first: int
    last: int
    known: bool
    exempt: bool
    log_weight: float


class Corrections(NamedTuple):
    """M token sequences that may stand in the place of some tokens of a batch.

    Attributes:
        slots: the place of each [M].
        firsts: the token that each begins at, by its place among those of the batch [M].
        lasts: the token that follows each [M].
        tokens: of all, one after the other [K].
        offsets: where the tokens of each begin, and K at the end [M + 1].
        log_weights: ln of how probable what was typed is when this is meant [M].
        edits: how far each is from what was typed [M].
        texts: how each is spelled; None where its one token says so [M].
    """

    slots: Indices
    firsts: Indices
    lasts: Indices
    tokens: TokenIds
    offsets: Indices
    log_weights: Floats
    edits: Indices
    texts: npt.NDArray[Any]

    @property
    def number(self) -> int:
        """How many there are, M."""
        return len(self.slots)

    @property
    def lengths(self) -> Indices:
        """Tokens of each [M]."""
        return np.diff(self.offsets)

    def select(self, rows: Indices) -> "Corrections":
        """Some of them."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - self.offsets[rows], lengths)
        return Corrections(
            self.slots[rows],
            self.firsts[rows],
            self.lasts[rows],
            self.tokens[inside],
            offsets,
            self.log_weights[rows],
            self.edits[rows],
            self.texts[rows],
        )


def concatenate_corrections(parts: Sequence[Corrections]) -> Corrections:
    """All alternatives of several; at least one."""
    if len(parts) == 1:
        return parts[0]
    offsets, end = [np.zeros(1, dtype=np.int64)], 0
    for part in parts:
        offsets.append(part.offsets[1:] + end)
        end += len(part.tokens)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Corrections(*columns)._replace(offsets=np.concatenate(offsets))


def single_token_corrections(
    slots: Indices, positions: Indices, tokens: TokenIds, log_weights: Floats, edits: npt.NDArray[Any]
) -> Corrections:
    """Words of the vocabulary, each in the place of one token."""
    count = len(tokens)
    return Corrections(
        slots,
        positions,
        positions + 1,
        tokens,
        np.arange(count + 1),
        log_weights,
        edits.astype(np.int64),
        np.full(count, None, dtype=object),
    )


class CorrectionsBuilder:
    """Collects alternatives that are found one at a time; such are few."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, float, int, str]] = []
        self._tokens: list[int] = []
        self._offsets = [0]

    def add(
        self,
        slot: int,
        span: tuple[int, int],
        tokens: Sequence[int],
        *,
        log_weight: float,
        edits: int,
        text: str,
    ) -> None:
        """One more.

        Args:
            slot: its place.
            span: the first token that it replaces and the one after the last, among those of the batch.
            tokens: that stand there instead.
            log_weight: see `Corrections`.
            edits: likewise.
            text: as it is told to people.
        """
        self._rows.append((slot, *span, log_weight, edits, text))
        self._tokens += tokens
        self._offsets.append(len(self._tokens))

    def build(self) -> Corrections:
        """All of them."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * 6
        slots, firsts, lasts, weights, edits, texts = columns
        return Corrections(
            np.array(slots, dtype=np.int64),
            np.array(firsts, dtype=np.int64),
            np.array(lasts, dtype=np.int64),
            np.array(self._tokens, dtype=np.int64),
            np.array(self._offsets, dtype=np.int64),
            np.array(weights, dtype=np.float64),
            np.array(edits, dtype=np.int64),
            np.array(texts, dtype=object),
        )


class SentenceBatch:
    """Sentences side by side: all their tokens in one array, each sentence with what follows it.

    Args:
        sentences: at least one; one that goes on with the sentence before it stands alone.

    Attributes:
        sentences: these.
        lengths: tokens of each with those that follow it [S].
        bases: where each begins in `tokens` [S].
        tokens: of all [P].
        sentence_of: of each token [P].
    """

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self.sentences = tuple(sentences)
        runs = [np.concatenate([sentence.ids, sentence.after]) for sentence in sentences]
        self.lengths = np.fromiter(map(len, runs), np.int64, len(runs))
        self.bases = np.cumsum(self.lengths) - self.lengths
        self.tokens = np.concatenate(runs)
        self.sentence_of = np.repeat(np.arange(len(runs)), self.lengths)

    @property
    def ends(self) -> Indices:
        """Where the tokens of each sentence, with what follows it, end [S]."""
        return self.bases + self.lengths
