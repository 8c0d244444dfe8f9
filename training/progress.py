"""Progress reporting of long work, and the records of a network's training; needs no torch."""

from typing import NamedTuple


class HistoryRecord(NamedTuple):
    """Record of a training run at one step.

    Attributes:
        step: updates made.
        epoch: the pass over the text, from 0.
        tokens: training tokens seen.
        seconds: since the run began.
        train_loss: nats per token, a moving average over about fifty updates.
        valid_perplexity: per token, of the averaged weights once they exist, in the context
            `train.validate_context`; None where it was not measured or is infinite.
        learning_rate: of the last update.
        grad_norm: of the last update, before clipping.
        clipped_norm: after clipping.
        tokens_per_second: since the last record, time of validations included; None
            where no time passed.
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
    """Receives progress, and drops it; the command line draws a bar from it or writes log lines."""

    def start(self, description: str, total: float | None) -> None:
        """Begin a stage of `total` units of work; None if unknown."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Add `amount` finished units; `note`, such as the current loss, replaces the last note."""

    def finish(self) -> None:
        """End the stage."""


class Silent(Progress):
    """No-op progress."""


SILENT: Progress = Silent()
"""Shared no-op progress."""
