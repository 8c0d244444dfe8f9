"""A log-linear model over candidates: total = Σ_f w_f · feature_f.

Weights are signed and nothing is normalised again: only the order of a list's candidates counts. Weights of
`words` and `tokens` are insertion bonuses, a negative one of `unk` is a penalty for unknown words. A negative weight
of a model takes away what is known already, such as the language model inside a recogniser (density ratio,
McDermott et al. 2019).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking import derived
from models.reranking.features import COMPUTED_FEATURES, LM, LM_SUM, feature_model

MAX_LENGTH_EXPONENT = 4.0
MAX_WEIGHT = 1e6
"""Beyond it, in either direction, totals would no longer be exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLinearModel:
    """Weights of the features; a feature without a weight does not count.

    Attributes:
        weights: signed, by feature.
        length_exponent: `lm` is divided by `tokens` to this power: 0 takes the sum of the tokens'
            log-probabilities, 1 their mean.

    Raises:
        InvalidInputError: a weight or the exponent is outside its limits.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {LM: 1.0})
    length_exponent: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in self.weights.items():
            if not abs(weight) <= MAX_WEIGHT:
                raise _weight_error(
                    name, f"weights.{name} is {weight}; it must be from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}"
                )
        if not 0 <= self.length_exponent <= MAX_LENGTH_EXPONENT:
            raise InvalidInputError(
                f"length_exponent is {self.length_exponent}; it must be from 0 to {MAX_LENGTH_EXPONENT:g}",
                parameter="length_exponent",
            )

    def check(self, models: Collection[str]) -> None:
        """Refuse weights of what can be neither computed nor given.

        Args:
            models: what further models are called.

        Raises:
            InvalidInputError: a weight is of a model that does not score, of a derived feature that there is not, or
                of undivided sums where nothing is divided.
        """
        for name in self.weights:
            model = feature_model(name)
            if model is not None and model not in models:
                called = ", ".join(sorted(models)) or "none"
                raise _weight_error(
                    name,
                    f"weights.{name} is given, but no model is called {model!r}; those that are: {called}",
                )
            if name.partition(":")[0] == LM_SUM and not self.length_exponent:
                raise _weight_error(
                    name, f"weights.{name} is given, but without length_exponent the sum is the feature {LM}"
                )
            if derived.is_derived(name):
                derived.check_derived(name)

    @property
    def given(self) -> tuple[str, ...]:
        """The features that must be given with every candidate, because weights need them."""
        needed = dict.fromkeys(
            derived.base_feature(name) if derived.is_derived(name) else name for name in self.weights
        )
        return tuple(
            n for n in needed if n is not None and n not in COMPUTED_FEATURES and feature_model(n) is None
        )

    def totals(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The weighted sum of each candidate's features [N].

        Args:
            values: of the features that have weights, in the order of the weights [N, W].
        """
        totals = np.zeros(len(values))
        for place, weight in enumerate(self.weights.values()):  # one by one: the same sum in whatever company
            totals += weight * values[:, place]
        return totals


def _weight_error(feature: str, message: str) -> InvalidInputError:
    return InvalidInputError(message, parameter=f"weights.{feature}")
