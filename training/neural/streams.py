"""Corpus as parallel token streams, cut into segments, one per update."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from models.arrays import Int64s, TokenIds
from models.errors import InputError
from models.vocabulary import BOS, UNK
from training.corpus import EncodedCorpus
from training.neural.settings import TrainSettings

_LENGTH_DEVIATION = 5.0  # standard deviation of lengths, in tokens
_HALF_LENGTH_SHARE = 0.05
_MEAN = 1 - _HALF_LENGTH_SHARE / 2
_SHORTEST_VARIABLE = 10  # shorter segments do not vary


class StreamSegment(NamedTuple):
    """Tokens of one update.

    Attributes:
        epoch: index of the pass over the text, from 0.
        first: True for an epoch's first segment, which starts without carried state.
        inputs: input ids [T, B].
        targets: next ids [T, B]; `<s>` is not predicted.
        positions: the targets' positions in the text with boundaries [T, B].
    """

    epoch: int
    first: bool
    inputs: TokenIds
    targets: TokenIds
    positions: TokenIds


class Streams:
    """Text cut into parallel streams.

    The text is cyclic; each epoch cuts it at other tokens. An epoch depends only
    on seed and index, so a resumed run needs only the number of updates.

    Args:
        corpus: the text.
        settings: streams, B, fewer if the text cannot fill them;
            tokens per segment, T; order of the text and share of unknown words.
        seed: random seed of offsets, lengths and order.

    Raises:
        InputError: the text has no tokens.
    """

    def __init__(self, corpus: EncodedCorpus, settings: TrainSettings, *, seed: int) -> None:
        self._text = corpus.with_boundaries().astype(np.int64)
        if len(self._text) < 2:
            raise InputError("the training text has no sentences", param="corpus")
        self.batch_size = max(1, min(settings.batch_size, len(self._text) // (settings.bptt_length + 1)))
        self._length = (len(self._text) - 1) // self.batch_size  # of each stream
        self.bptt_length = min(settings.bptt_length, self._length)
        self._variable = settings.variable_bptt and self.bptt_length >= _SHORTEST_VARIABLE
        learns_unknown = settings.unknown_share > 0 and UNK not in self._text
        self._once = np.flatnonzero(np.bincount(self._text)[self._text] == 1) if learns_unknown else None
        self._settings = settings
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Updates per pass; the remainder of the streams is omitted."""
        if self._variable:
            return max(1, int(self._length / (_MEAN * self.bptt_length)))
        return self._length // self.bptt_length

    def segments(self, epochs: int, *, skip: int = 0) -> Iterator[StreamSegment]:
        """Yield the segments of `epochs` passes in order, without the first `skip`."""
        first_epoch, first_step = divmod(skip, self.steps_per_epoch)
        for epoch in range(first_epoch, epochs):
            generator = np.random.default_rng([self._seed, epoch])
            starts = generator.integers(len(self._text)) + self._length * np.arange(self.batch_size)  # [B]
            ends = np.cumsum(self._lengths(generator))  # [steps_per_epoch]
            order = self._order(generator)
            text = self._text
            if self._once is not None:  # some words of one occurrence are unknown
                text = text.copy()
                text[self._once[generator.random(len(self._once)) < self._settings.unknown_share]] = UNK
            for step in range(first_step if epoch == first_epoch else 0, len(ends)):
                steps = np.arange(ends[step - 1] if step else 0, ends[step] + 1)
                positions = order[(starts + steps[:, None]) % len(self._text)]  # [T + 1, B]
                tokens = text[positions]
                yield StreamSegment(epoch, step == 0, tokens[:-1], tokens[1:], positions[1:])

    def _order(self, generator: np.random.Generator) -> Int64s:
        """Return text positions in an epoch's order; blocks begin with a sentence (Press 2019)."""
        order = np.arange(len(self._text))
        block = self._settings.shuffle_block
        if not block:
            return order
        sentences = np.flatnonzero(self._text == BOS)
        cuts = sentences[np.searchsorted(sentences, order[::block]) % len(sentences)]
        blocks = np.split(order, np.unique(cuts))
        return np.concatenate([blocks[number] for number in generator.permutation(len(blocks))])

    def _lengths(self, generator: np.random.Generator) -> Int64s:
        """Sample an epoch's segment lengths [steps_per_epoch], at most a stream in total."""
        count, mean = self.steps_per_epoch, self.bptt_length
        if not self._variable:
            return np.full(count, mean)
        halved = generator.random(count) < _HALF_LENGTH_SHARE
        spread = min(_LENGTH_DEVIATION, mean / 7)
        lengths = generator.normal(np.where(halved, mean / 2, mean), spread)
        lengths = lengths.clip(mean / 2 - 2 * spread, mean + 2 * spread)
        return np.asarray(lengths * min(1.0, self._length / lengths.sum()), np.int64)
