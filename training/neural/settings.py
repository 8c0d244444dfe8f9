"""Settings of a network's training: the recipe's `train.*` keys."""

import itertools
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LossName = Literal["softmax", "sampled", "nce", "negative-sampling"]
_SAMPLING = ("sampled", "nce", "negative-sampling")

ACTS_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "self_normalise": ("loss", ("softmax",)),
    "samples": ("loss", _SAMPLING),
    "noise": ("loss", _SAMPLING),
    "sampled_share": ("loss", _SAMPLING),
    "betas": ("optimizer", ("adamw", "adam")),
    "momentum": ("optimizer", ("sgd", "rmsprop")),
    "anneal": ("schedule", ("one-cycle",)),
    "decay_at": ("schedule", ("step",)),
    "decay_factor": ("schedule", ("step",)),
    "average_decay": ("average", ("ema",)),
    "average_start": ("average", ("ema",)),
    "nonmonotone": ("average", ("nt-asgd",)),
}
"""Keys that act only with certain values of another key: that key and those values."""

BOUNDS = frozenset({"max_minutes", "epochs", "max_steps", "patience", "save_minutes", "tensorboard"})
"""Keys that may change when a run is resumed: they set its end and its reports, not its learning."""


class TrainSettings(BaseModel):
    """Length, optimiser and bookkeeping of a training run.

    A run ends at whichever comes first of `max_minutes`, `epochs` and `max_steps`; the schedule of
    the learning rate spans just that, so a shorter run is a complete one.

    Attributes:
        max_minutes: wall-clock bound; None for none. Time before resuming counts.
        epochs: passes over the text.
        max_steps: bound on the number of updates; None for none.
        batch_size: number of parallel streams of the text, summed over all processes.
        bptt_length: tokens of each stream between two updates; gradients do not reach further back.
        variable_bptt: whether the length varies around `bptt_length` between updates, with one in twenty half
            as long, and the learning rate in proportion (Merity et al. 2018).
        reset: probability of resetting a stream's state before an update. Sentences are mostly scored
            from an empty state: of 0, 0.1, 0.3 and 1, 0.1 gave the lowest perplexity for them, as low
            as training on single sentences, and preserved most of the gain of carried states on running text.
        optimizer: `adamw` (Loshchilov and Hutter 2019), `adam` (Kingma and Ba 2015), `sgd` or
            `rmsprop` (Tieleman and Hinton 2012).
        betas: of Adam and AdamW: decay rates of the means of gradients and of their squares.
        momentum: of SGD and RMSProp.
        learning_rate: its peak.
        schedule: of the learning rate: `cosine` falls along half a cosine to zero (Loshchilov and
            Hutter 2017); `one-cycle` rises from and falls to a 25th of the peak in straight lines, then
            to zero (Smith 2018); `step` is multiplied at certain shares of the run; `constant`.
        warmup: share of the run over which the rate rises to its peak, with every schedule.
        anneal: share of the run, at its end, over which `one-cycle` goes to zero.
        decay_at: shares of the run at which `step` lowers the rate, rising.
        decay_factor: factor of the rate there.
        weight_decay: of matrices only, not of biases, gains of norms and initial states. For AdamW
            decoupled; for the others a part of the gradient, so far smaller values are suitable.
        loss: the minimised loss: `softmax`, cross-entropy over the whole vocabulary; or, for large
            vocabularies, losses that need only sampled tokens: `sampled`, the softmax over them (Jean et al.
            2015); `nce`, noise-contrastive estimation (Mnih and Teh 2012); `negative-sampling` (Mikolov
            et al. 2013). Models are evaluated by the exact softmax whatever the loss.
        self_normalise: weight of the mean squared log-normaliser added to the loss, so that logits can be
            used as log-probabilities (`score_mode` of re-ranking); 0 for none.
        samples: noise tokens sampled for each update, shared by all its positions.
        noise: distribution of the samples: `unigram`, by their counts to the power of 3/4; `log-uniform`, by rank.
        sampled_share: share of the run, from its start, with sampled tokens; the rest uses all tokens.
        clip_norm: gradients are scaled down to this Euclidean norm.
        dropout_start: initial fraction of the network's dropout of values; it rises linearly to 1 at the end
            of the run (Morerio et al. 2017).
        activation_penalty: α, weight of the mean square of the body's outputs after dropout (Merity
            et al. 2017, "AR").
        slowness_penalty: β, weight of the mean square of their changes from token to token, before
            dropout (the same, "TAR").
        average: the weights that are validated, kept and published, once they exist: `none`, the
            last update's; `ema`, an exponential moving average; `nt-asgd`, the mean of all updates since
            validation stopped improving (Merity et al. 2018).
        average_decay: of `ema`: share of the average that an update retains; less at first,
            (1 + t) / (10 + t) after t updates.
        average_start: share of the run at which `ema` begins.
        nonmonotone: of `nt-asgd`: number of last validations excluded from the comparison.
        precision: of the matrix products in training; `auto` is bfloat16 if the CPU or GPU has
            instructions for it. Weights, and the resulting model, are float32.
        validations: number of validations, evenly spread over the run.
        validate_context: context of the validation text: `sentence`, each line on its own; `stream`,
            running text.
        valid_tokens: approximate number of its tokens that are scored, at most.
        patience: number of validations in a row without a better perplexity that ends the run.
        save_minutes: interval between saved states.
        tensorboard: folder for TensorBoard's files; empty for none.
        embeddings: file of word2vec, fastText or GloVe with initial vectors of tokens; empty for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_minutes: float | None = Field(default=30.0, gt=0, allow_inf_nan=False)
    epochs: int = Field(default=10, ge=1)
    max_steps: int | None = Field(default=None, ge=1)
    batch_size: int = Field(default=32, ge=1, le=4096)
    bptt_length: int = Field(default=32, ge=1, le=4096)
    variable_bptt: bool = False
    reset: float = Field(default=0.1, ge=0, le=1)
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = Field(default=0.0, ge=0, lt=1)
    learning_rate: float = Field(default=6e-3, gt=0, allow_inf_nan=False)
    schedule: Literal["cosine", "one-cycle", "step", "constant"] = "cosine"
    warmup: float = Field(default=0.05, ge=0, lt=1)
    anneal: float = Field(default=0.33, ge=0, lt=1)
    decay_at: tuple[float, ...] = (0.5, 0.75)
    decay_factor: float = Field(default=0.1, gt=0, lt=1)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    loss: LossName = "softmax"
    self_normalise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    samples: int = Field(default=2048, ge=1)
    noise: Literal["unigram", "log-uniform"] = "unigram"
    sampled_share: float = Field(default=1.0, gt=0, le=1)
    clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    dropout_start: float = Field(default=1.0, ge=0, le=1, allow_inf_nan=False)
    activation_penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    slowness_penalty: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    average: Literal["none", "ema", "nt-asgd"] = "none"
    average_decay: float = Field(default=0.999, gt=0, lt=1)
    average_start: float = Field(default=0.0, ge=0, lt=1)
    nonmonotone: int = Field(default=5, ge=1)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    validations: int = Field(default=10, ge=1)
    validate_context: Literal["sentence", "stream"] = "sentence"
    valid_tokens: int = Field(default=20_000, ge=1)
    patience: int = Field(default=4, ge=1)
    save_minutes: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    tensorboard: str = ""
    embeddings: str = ""

    @field_validator("betas")
    @classmethod
    def _check_betas(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"both must be at least 0 and below 1, given {list(betas)}")
        return betas

    @field_validator("decay_at")
    @classmethod
    def _check_decay_points(cls, shares: tuple[float, ...]) -> tuple[float, ...]:
        bounded = (0.0, *shares, 1.0)
        if not all(low < high for low, high in itertools.pairwise(bounded)):
            raise ValueError(f"must rise between 0 and 1, given {list(shares)}")
        return shares

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if self.schedule == "one-cycle" and self.warmup + self.anneal >= 1:
            raise ValueError(
                f"warmup and anneal together must be below 1, given {self.warmup} and {self.anneal}"
            )
        return self

    @property
    def self_normalises(self) -> bool:
        """Whether training makes logits approximate log-probabilities: by `self_normalise` or by `nce`."""
        return self.self_normalise > 0 or (self.loss == "nce" and self.sampled_share == 1)

    def problem_with(self, output: str) -> str | None:
        """Describe why these settings cannot train an output layer, `neural.output`; None if they can."""
        if output == "softmax":
            return None
        if self.loss != "softmax":
            return f"train.loss={self.loss} trains neural.output=softmax only, given {output}"
        if self.self_normalise:
            return f"train.self_normalise acts with neural.output=softmax only, given {output}"
        return None

    def unused_key(self) -> str | None:
        """Describe a key that was set but has no effect; None if there is none."""
        for key, (condition, values) in ACTS_WITH.items():
            given = getattr(self, condition)
            if key in self.model_fields_set and given not in values:
                return f"{key} acts with train.{condition}={' or '.join(values)} only, given {given}"
        return None
