"""What is remembered of a training run; needs no torch."""

from typing import NamedTuple


class HistoryRecord(NamedTuple):
    """Where a run stood.

    Attributes:
        step: updates made.
        epoch: the pass over the text, from 0.
        tokens: training tokens seen.
        seconds: since the run began.
        train_loss: nats per token, a moving average of the last fifty updates or so.
        valid_perplexity: per token in sentence context; None where it was not measured or is infinite.
        learning_rate: of the last update.
        grad_norm: of the last update, before clipping.
    """

    step: int
    epoch: int
    tokens: int
    seconds: float
    train_loss: float
    valid_perplexity: float | None
    learning_rate: float
    grad_norm: float
