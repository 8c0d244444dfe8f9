"""How a recurrent network is trained: the recipe's `train.*` keys."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class TrainSettings(BaseModel):
    """Length, optimiser and bookkeeping of a training run.

    A run ends at whichever comes first of `max_minutes`, `epochs` and `max_steps`; the learning
    rate is annealed to zero over just that span, so a shorter run is a complete one.

    Attributes:
        max_minutes: wall-clock bound; None for none.
        epochs: passes over the text.
        max_steps: bound on the number of updates; None for none.
        batch_size: parallel streams that the text is cut into.
        bptt_length: tokens of each stream between two updates; gradients do not reach further back.
        reset: probability that a stream's state is emptied before an update. Sentences are mostly
            scored from an empty state: of 0, 0.1, 0.3 and 1, 0.1 gave the lowest perplexity for them,
            as low as training on single sentences, and kept most of what carrying gives running text.
        optimizer: AdamW (Loshchilov and Hutter 2019) or plain stochastic gradient descent.
        learning_rate: its peak.
        warmup: share of the run over which the rate rises to its peak.
        weight_decay: for AdamW decoupled; for SGD a part of the gradient, so far smaller values fit.
        clip_norm: gradients are scaled down to this Euclidean norm.
        precision: what the matrix products of training compute in; `auto` is bfloat16 where the
            CPU or GPU has instructions for it. Weights, and the model that results, are float32.
        validations: how often the validation text is scored, evenly spread over the run.
        valid_tokens: at most about so many of its tokens are scored.
        patience: stop after so many validations in a row without a better perplexity.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_minutes: float | None = Field(default=30.0, gt=0, allow_inf_nan=False)
    epochs: int = Field(default=10, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=32, ge=1, le=4096)
    bptt_length: int = Field(default=32, ge=1, le=4096)
    reset: float = Field(default=0.1, ge=0, le=1)
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float = Field(default=6e-3, gt=0, allow_inf_nan=False)
    warmup: float = Field(default=0.05, ge=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    validations: int = Field(default=10, ge=1)
    valid_tokens: int = Field(default=20_000, ge=1)
    patience: int = Field(default=4, ge=1)
