"""Progress reporting of long operations, and records of a network's training; needs no torch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class HistoryRecord(NamedTuple):
    """Record of a run at one step.

    Attributes:
        step: number of updates.
        epoch: index of the pass over the text, from 0.
        tokens: training tokens seen.
        seconds: seconds since the run began.
        train_loss: nats per token, a moving average of about fifty updates.
        valid_perplexity: validation perplexity per token, of the averaged weights once they exist, in the
            context `train.validate_context`; None if not measured or infinite.
        learning_rate: learning rate of the last update.
        grad_norm: gradient norm of the last update, before clipping.
        clipped_norm: gradient norm after clipping.
        tokens_per_second: since the last record, with validation time; None if no time passed.
    """

    step: int
    epoch: int
    tokens: int
    seconds: float
    train_loss: float
    valid_perplexity: float | None
    learning_rate: float
    grad_norm: float
    clipped_norm: float | None = None
    tokens_per_second: float | None = None


class Progress:
    """Receiver that ignores progress; the command line's draw a bar or log lines."""

    def start(self, description: str, total: float | None) -> None:
        """Begin a stage of `total` units of work; None if unknown."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add `amount` finished units; `note`, such as the current loss, replaces the last."""

    def finish(self) -> None:
        """End the stage."""

    @contextmanager
    def stage(self, description: str, total: float | None = None) -> Iterator[None]:
        """Begin a stage, and end it after the block unless that raised."""
        self.start(description, total)
        yield
        self.finish()


SILENT = Progress()
"""Shared no-op progress."""
