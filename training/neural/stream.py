"""The corpus as parallel streams of tokens, cut into the stretches that one update sees."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from training.corpora.encoded import EncodedCorpus


class Stretch(NamedTuple):
    """What one update learns from.

    Attributes:
        epoch: the pass over the text, from 0.
        first: whether an epoch begins here, so that nothing is carried into it.
        inputs: ids [T, B].
        targets: the ids that follow, [T, B]; those that are `<s>` are not to be predicted.
    """

    epoch: int
    first: bool
    inputs: TokenIds
    targets: TokenIds


class Streams:
    """A text cut into parallel streams.

    Each epoch starts at another place of the text, taken as a ring, so that the cuts between
    streams and between stretches fall elsewhere.

    Args:
        corpus: the text.
        batch_size: streams, B; fewer if the text is too short to fill them.
        bptt_length: tokens in a stretch, T.
        seed: of the places where epochs start.

    Raises:
        InvalidInputError: the text has no tokens.
    """

    def __init__(self, corpus: EncodedCorpus, *, batch_size: int, bptt_length: int, seed: int) -> None:
        self._ring = corpus.with_boundaries().astype(np.int64)
        if len(self._ring) < 2:
            raise InvalidInputError("the training text has no sentences", parameter="corpus")
        self.batch_size = max(1, min(batch_size, len(self._ring) // (bptt_length + 1)))
        self._length = (len(self._ring) - 1) // self.batch_size  # of each stream
        self._bptt_length = min(bptt_length, self._length)
        self._generator = np.random.default_rng(seed)

    @property
    def steps_per_epoch(self) -> int:
        """Updates in one pass; a last, shorter stretch is left out."""
        return self._length // self._bptt_length

    def stretches(self, epochs: int) -> Iterator[Stretch]:
        """The stretches of so many passes, in order."""
        width = self.batch_size * self._length
        for epoch in range(epochs):
            ring = np.roll(self._ring, -int(self._generator.integers(len(self._ring))))
            inputs = ring[:width].reshape(self.batch_size, self._length).T  # [L, B]
            targets = ring[1 : width + 1].reshape(self.batch_size, self._length).T
            for step in range(self.steps_per_epoch):
                cut = slice(step * self._bptt_length, (step + 1) * self._bptt_length)
                yield Stretch(
                    epoch, step == 0, np.ascontiguousarray(inputs[cut]), np.ascontiguousarray(targets[cut])
                )
