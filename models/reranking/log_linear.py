"""A log-linear model over candidates: total = Σ_f w_f · feature_f.

Three features are computed here and not given: `lm`, the language model's natural-log
probability, divided by `tokens` ** length_exponent before it is weighted; `words`, runs
between white space; `tokens`, as many as `lm` sums over. Weights on the last two are
insertion bonuses. So a client can re-weight what it was told without scoring again.

Several models may score the candidates: a model called `small` adds the features `lm:small` and
`tokens:small`, each with its own weight. Weights are signed and nothing is normalised again: only the order
of a list's candidates counts. A negative weight takes away what a model knows already, such as the
language model inside a recogniser (density ratio, McDermott et al. 2019).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.scoring import count_words, finite

LM, WORDS, TOKENS = "lm", "words", "tokens"
COMPUTED = frozenset({LM, WORDS, TOKENS})
MAX_LENGTH_EXPONENT = 4.0
MAX_WEIGHT = 1e6
MAX_FEATURE = 1e12
"""Beyond these, in either direction, totals would no longer be exact, and at last not finite."""

_OF_MODEL = ":"


class ModelScore(NamedTuple):
    """What one of several models says of a candidate.

    Attributes:
        logprob: natural-log probability of the whole; may be minus infinity.
        num_tokens: tokens of that model that `logprob` sums over.
    """

    logprob: float
    num_tokens: int


class Scored(NamedTuple):
    """A candidate's text with what the language model says of it.

    Attributes:
        text: the hypothesis.
        logprob: natural-log probability of the whole; may be minus infinity.
        num_tokens: tokens that `logprob` sums over.
        features: given by the caller, such as an acoustic score.
        models: what further models say of it, by the names they are called.
    """

    text: str
    logprob: float
    num_tokens: int
    features: Mapping[str, float]
    models: Mapping[str, ModelScore] = MappingProxyType({})

    def all_features(self) -> dict[str, float]:
        """The caller's features and the computed ones."""
        of_models = {
            feature_of(kind, name): value
            for name, score in self.models.items()
            for kind, value in ((LM, finite(score.logprob)), (TOKENS, float(score.num_tokens)))
        }
        return {
            **self.features,
            **of_models,
            LM: finite(self.logprob),
            WORDS: float(count_words(self.text)),
            TOKENS: float(self.num_tokens),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinearModel:
    """Weights of the features; a feature without a weight does not count.

    Attributes:
        weights: signed, by feature.
        length_exponent: 0 takes the sum of the tokens' log-probabilities, 1 their mean.

    Raises:
        InvalidInputError: a weight or the exponent is outside its limits.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {LM: 1.0})
    length_exponent: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not abs(weight) <= MAX_WEIGHT:
                raise InvalidInputError(
                    f"weights.{name} is {weight}; it must be from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
                    parameter=f"weights.{name}",
                )
        if not 0 <= self.length_exponent <= MAX_LENGTH_EXPONENT:
            raise InvalidInputError(
                f"length_exponent is {self.length_exponent}; it must be from 0 to {MAX_LENGTH_EXPONENT:g}",
                parameter="length_exponent",
            )

    @property
    def models(self) -> frozenset[str]:
        """The further models that a weight speaks of, by the names they are called."""
        kinds = (name.partition(_OF_MODEL) for name in self.weights)
        return frozenset(name for kind, colon, name in kinds if colon and kind in {LM, TOKENS})

    def check_features(
        self, features: Mapping[str, float], *, parameter: str, models: Collection[str] = ()
    ) -> None:
        """Refuse features that this model cannot weigh.

        Args:
            features: given by the caller.
            parameter: what they are called in the message.
            models: the further models that score the candidates.

        Raises:
            InvalidInputError: a computed feature is given, one that has a weight is not, or one
                is outside its limits.
        """
        computed = COMPUTED | {feature_of(kind, name) for name in models for kind in (LM, TOKENS)}
        for name, value in features.items():
            if not abs(value) <= MAX_FEATURE:
                raise InvalidInputError(
                    f"{parameter}.{name} is {value}; it must be from {-MAX_FEATURE:g} to {MAX_FEATURE:g}",
                    parameter=f"{parameter}.{name}",
                )
            if name in computed:
                raise InvalidInputError(
                    f"{parameter}.{name} is given, but {name} is computed by the service",
                    parameter=f"{parameter}.{name}",
                )
        for name in self.weights:
            if name not in features and name not in computed:
                raise InvalidInputError(
                    f"{parameter} has no {name!r}, but weights.{name} is {self.weights[name]}",
                    parameter=parameter,
                )

    def totals(self, features: Sequence[Mapping[str, float]]) -> npt.NDArray[np.float64]:
        """The weighted sum of each candidate's features, [C]."""
        totals = np.zeros(len(features))
        for name, weight in self.weights.items():
            values = np.array([candidate[name] for candidate in features])
            kind, colon, of = name.partition(_OF_MODEL)
            if kind == LM:
                counts = np.array([candidate[TOKENS + colon + of] for candidate in features])
                values /= np.maximum(counts, 1.0) ** self.length_exponent
            totals += weight * values
        return totals


def feature_of(kind: str, model: str) -> str:
    """The name of a feature, `lm` or `tokens`, of one of several models."""
    return kind + _OF_MODEL + model
