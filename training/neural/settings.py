"""Training settings of a network: the recipe's `train.*` keys."""

import itertools
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_SAMPLING = ("sampled", "nce", "negative-sampling")
_EXACT = ("softmax", "auto")

ACTS_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "self_normalise": ("loss", _EXACT),
    "teacher": ("loss", (*_EXACT, "sampled")),
    "samples": ("loss", (*_SAMPLING, "auto")),
    "noise": ("loss", (*_SAMPLING, "auto")),
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
"""Keys that require certain values of another key to have an effect: that key and the values."""

BOUNDS = frozenset({"max_minutes", "epochs", "max_steps", "patience", "save_minutes", "tensorboard"})
"""Keys that may change on resume: limits of the run, saving and reports."""


class TrainSettings(BaseModel):
    """Length, optimiser, validation and saving of a training run.

    A run ends at the first limit it reaches: `max_minutes`, `epochs` or `max_steps`. The learning-rate
    schedule always spans the entire run.

    Attributes:
        max_minutes: time limit in minutes, including the time before a resume; None (from
            Python) for no limit.
        epochs: maximum number of passes over the training text.
        max_steps: maximum number of updates; unset means no limit.
        batch_size: number of parallel streams of text, over all processes.
        bptt_length: tokens per stream and update; gradients are truncated at this length.
        variable_bptt: vary the number of tokens per update around `bptt_length`, halve it
            for one update in twenty, and scale the learning rate in proportion (Merity et
            al. 2018).
        shuffle_block: shuffle the text anew for each pass, in blocks of whole sentences
            of about this many tokens; 0 keeps its order (Press 2019).
        unknown_share: if no word of the text is unknown, share of the words of one
            occurrence that are read as `<unk>`, others in each pass, so that the network
            learns how probable unknown words are.
        reset: probability that a stream's state is reset before an update. Sentences are
            mostly scored from an empty state; among 0, 0.1, 0.3 and 1, the value 0.1 gave
            the lowest sentence perplexity, as low as training on single sentences, and
            kept most of the gain of carried states on running text.
        optimizer: `adamw` (Loshchilov and Hutter 2019), `adam` (Kingma and Ba 2015),
            `sgd` or `rmsprop` (Tieleman and Hinton 2012).
        betas: decay rates of Adam and AdamW for the means of gradients and of squared
            gradients.
        momentum: momentum of SGD and RMSProp.
        learning_rate: peak learning rate.
        schedule: learning-rate schedule: `cosine` follows half a cosine to 0 (Loshchilov
            and Hutter 2017); `one-cycle` rises linearly from 1/25 of the peak, falls back
            to it, then to 0 (Smith 2018); `step` multiplies the rate by `decay_factor` at
            each point of `decay_at`; `constant`.
        warmup: share of the run over which every schedule raises the rate to its peak.
        anneal: share at the end of the run over which `one-cycle` lowers the rate to 0.
        decay_at: increasing shares of the run at which `step` lowers the rate.
        decay_factor: factor by which `step` multiplies the rate at each point.
        weight_decay: decay of matrices; biases, gains of norms and initial states have
            none. AdamW decouples it; the other optimisers add it to the gradient and need
            much smaller values.
        loss: training loss: `softmax`, cross-entropy over the full vocabulary. For large
            vocabularies, a loss over sampled tokens: `sampled`, sampled softmax (Jean et
            al. 2015); `nce`, noise-contrastive estimation (Mnih and Teh 2012);
            `negative-sampling` (Mikolov et al. 2013). `auto` is `sampled` where that
            saves much time, with an eighth of the vocabulary but at least 512 samples,
            until validations gain less than one per cent after half of the run, or nine
            tenths of it; then, and elsewhere, `softmax`. Evaluation always uses the exact
            softmax.
        base: address of a published network, the base, whose weights the training starts
            from; the key is `from`. Shape, tokenizer and unset keys of `neural` have the
            values of the base. If `tokenizer.min_count` is set, words and characters that
            occur that often in the new text are added to the vocabulary. For the family
            `ngram`, a published n-gram model, with which the model of the new text is
            mixed.
        teacher: models from whose distributions the network also learns (Hinton et al.
            2015): titles of earlier parts of the mixture, else addresses of published
            models, whose tokenizer is then used. The probabilities of several teachers
            are averaged.
        teacher_weight: weight α of the cross-entropy to the teachers' distribution; the
            cross-entropy to the text has the weight 1 − α.
        self_normalise: weight λ of the penalty ½ λ mean((log Z)²) on the log-normaliser,
            which makes logits usable as log-probabilities (`score_mode` of re-ranking); 0
            disables it.
        samples: number of noise tokens per update, shared by all its positions; at most,
            for `auto`.
        noise: distribution of the noise tokens: `unigram`, counts to the power of 3/4;
            `log-uniform`, by rank.
        sampled_share: initial share of the run that samples tokens; the rest uses the
            full softmax.
        clip_norm: maximum Euclidean norm of the gradient; longer gradients are scaled
            down.
        dropout_start: initial fraction of `neural.dropout`, `neural.input_dropout` and
            `neural.hidden_dropout`; it rises linearly to 1 at the end of the run (Morerio
            et al. 2017).
        dropout_passes: passes over the text after which that fraction is 1, whatever the
            length of the run; 0 for the end of the run. Text read for the first time
            needs no dropout.
        activation_penalty: weight α of the mean square of the last layer's outputs after
            dropout (AR; Merity et al. 2017).
        slowness_penalty: weight β of the mean square of the differences between the
            outputs of consecutive tokens, before dropout (TAR; Merity et al. 2017).
        average: weights to validate and publish: `none`, the weights of the last update;
            `ema`, an exponential moving average; `nt-asgd`, the mean over all updates
            since validation stopped improving (Merity et al. 2018).
        average_decay: decay of `ema` per update, at most (1 + t) / (10 + t) after t
            updates.
        average_start: share of the run at which `ema` begins.
        nonmonotone: number of latest validations that `nt-asgd` ignores; averaging begins
            when a validation is worse than the best of the validations before them.
        precision: type of the matrix products; `auto` is bfloat16 if the CPU or GPU has
            instructions for it, else float32. Weights and the published model are
            float32.
        validations: number of validations, evenly spaced over the run.
        validate_context: context of validation: `sentence`, each line alone; `stream`,
            running text.
        valid_tokens: approximate maximum number of tokens scored per validation.
        patience: number of consecutive validations without improvement after which the
            run ends.
        save_minutes: interval in minutes between saves of the state.
        tensorboard: folder for TensorBoard files; empty for none.
        embeddings: word2vec, fastText or GloVe text file with initial token vectors;
            `counts` for vectors computed of the training text, which learn faster than
            random ones; empty for random ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    max_minutes: float | None = Field(30.0, gt=0, allow_inf_nan=False)
    epochs: int = Field(10, ge=1)
    max_steps: int | None = Field(None, ge=1)
    batch_size: int = Field(32, ge=1, le=4096)
    bptt_length: int = Field(32, ge=1, le=4096)
    variable_bptt: bool = False
    shuffle_block: int = Field(0, ge=0)
    unknown_share: float = Field(0.5, ge=0, le=1)
    reset: float = Field(0.1, ge=0, le=1)
    optimizer: Literal["adamw", "adam", "sgd", "rmsprop"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = Field(0.0, ge=0, lt=1)
    learning_rate: float = Field(6e-3, gt=0, allow_inf_nan=False)
    schedule: Literal["cosine", "one-cycle", "step", "constant"] = "cosine"
    warmup: float = Field(0.05, ge=0, lt=1)
    anneal: float = Field(0.33, ge=0, lt=1)
    decay_at: tuple[float, ...] = (0.5, 0.75)
    decay_factor: float = Field(0.1, gt=0, lt=1)
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    loss: Literal["softmax", "sampled", "nce", "negative-sampling", "auto"] = "softmax"
    base: str | None = Field(None, min_length=1, alias="from")
    teacher: tuple[str, ...] = ()
    teacher_weight: float = Field(0.5, gt=0, le=1)
    self_normalise: float = Field(0.0, ge=0, allow_inf_nan=False)
    samples: int = Field(2048, ge=1)
    noise: Literal["unigram", "log-uniform"] = "unigram"
    sampled_share: float = Field(1.0, gt=0, le=1)
    clip_norm: float = Field(1.0, gt=0, allow_inf_nan=False)
    dropout_start: float = Field(1.0, ge=0, le=1, allow_inf_nan=False)
    dropout_passes: float = Field(0.0, ge=0, allow_inf_nan=False)
    activation_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    slowness_penalty: float = Field(0.0, ge=0, allow_inf_nan=False)
    average: Literal["none", "ema", "nt-asgd"] = "none"
    average_decay: float = Field(0.999, gt=0, lt=1)
    average_start: float = Field(0.0, ge=0, lt=1)
    nonmonotone: int = Field(5, ge=1)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    validations: int = Field(10, ge=1)
    validate_context: Literal["sentence", "stream"] = "sentence"
    valid_tokens: int = Field(20_000, ge=1)
    patience: int = Field(4, ge=1)
    save_minutes: float = Field(5.0, ge=0, allow_inf_nan=False)
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
            raise ValueError(f"must increase between 0 and 1, given {list(shares)}")
        return shares

    @model_validator(mode="after")
    def _check_warmup(self) -> Self:
        if self.schedule == "one-cycle" and self.warmup + self.anneal >= 1:
            problem = f"warmup and anneal together must be below 1, given {self.warmup} and {self.anneal}"
            raise ValueError(problem)
        return self

    def problem_with(self, output: str) -> str | None:
        """Return the reason why these settings cannot train the output layer `neural.output`; None if they can."""
        loss = f"loss={self.loss}" if self.loss not in _EXACT else ""
        key = loss or ("teacher" if self.teacher else "self_normalise" if self.self_normalise else "")
        is_trained = output == "softmax" or not key
        return None if is_trained else f"train.{key} requires neural.output=softmax, given {output}"

    def unused_key(self) -> str | None:
        """Return a message about a key that is set but has no effect; None without such a key."""
        for key, (condition, values) in ACTS_WITH.items():
            given = getattr(self, condition)
            if key in self.model_fields_set and given not in values:
                return f"{key} requires train.{condition}={' or '.join(values)}, given {given}"
        if "dropout_passes" in self.model_fields_set and self.dropout_start == 1:
            return f"dropout_passes requires train.dropout_start below 1, given {self.dropout_start:g}"
        if "teacher_weight" in self.model_fields_set and not self.teacher:
            return f"teacher_weight requires train.teacher, given {self.teacher_weight:g} without a teacher"
        if self.embeddings and self.base:
            return f"embeddings has no effect on the vectors of {self.base} (train.from), given {self.embeddings}"
        return None
