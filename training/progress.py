"""Progress reporting of long work, and the records of a network's training; needs no torch."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class HistoryRecord(NamedTuple):
    """Where a run stood.

    Attributes:
        step: updates made.
        epoch: the pass over the text, from 0.
        tokens: training tokens seen.
        seconds: since the run began.
        train_loss: nats per token, a moving average of the last fifty updates or so.
        valid_perplexity: per token, of the averaged weights once there are such, in the context that
            `train.validate_context` names; None where it was not measured or is infinite.
        learning_rate: of the last update.
        grad_norm: of the last update, before clipping.
        clipped_norm: the same after clipping.
        tokens_per_second: training tokens since the record before, validations included; None
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


def with_speed(history: Sequence[HistoryRecord], record: HistoryRecord) -> HistoryRecord:
    """A record with the speed since the last one of a history filled in."""
    last = history[-1] if history else None
    elapsed = record.seconds - (last.seconds if last else 0.0)
    tokens = record.tokens - (last.tokens if last else 0)
    return record._replace(tokens_per_second=tokens / elapsed if elapsed > 0 else None)


class Progress(Protocol):
    """Receives progress; the command line draws a bar from it or writes log lines."""

    def start(self, description: str, total: float | None) -> None:
        """A stage begins; `total` units of work lie ahead, None if nobody knows."""
        ...

    def advance(self, amount: float = 1, note: str = "") -> None:
        """So many units are done; `note` replaces the stage's remark, such as the current loss."""
        ...

    def finish(self) -> None:
        """The stage is over."""
        ...


class Silent:
    """Shows nothing."""

    def start(self, description: str, total: float | None) -> None:
        """Ignore it."""

    def advance(self, amount: float = 1, note: str = "") -> None:
        """Ignore it."""

    def finish(self) -> None:
        """Ignore it."""


SILENT: Progress = Silent()
"""For callers who do not want to know."""
