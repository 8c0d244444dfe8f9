"""The models that score the candidates of one request: one, or a linear mixture, and further ones beside it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from models.errors import InvalidInputError, UnsupportedParameterError
from models.protocol import is_self_normalised
from models.reranking.features import check_model_names
from service.engine.hosted import LoadedModel

MAX_MODELS = 8
"""Parts of a mixture, and further models, at most."""


@dataclass(frozen=True, slots=True)
class ScoringModels:
    """Who scores.

    Attributes:
        parts: the main model, whose score is the feature `lm`; or several, whose probabilities are mixed at every
            token. Without any there are no such features.
        mixture_weights: of the parts; positive, summing to 1.
        extra: by the names that they are called in features, such as `lm:old`.

    Raises:
        InvalidInputError: there are too many models; the weights are no distribution over the parts; the parts do not
            read texts as the same tokens; or a name cannot be one.
    """

    parts: tuple[LoadedModel, ...]
    mixture_weights: tuple[float, ...] = (1.0,)
    extra: Mapping[str, LoadedModel] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_model_counts(len(self.parts), len(self.extra))
        check_model_names(list(self.extra), parameter="models")
        if len(self.parts) > 1:
            check_mixture_weights(self.mixture_weights)
            for place, part in enumerate(self.parts[1:], start=1):
                _check_compatible(self.parts[0], part, place)

    @property
    def all(self) -> tuple[LoadedModel, ...]:
        """Every model, the parts first."""
        return (*self.parts, *self.extra.values())

    def check_score_mode(self, mode: str) -> None:
        """Refuse unnormalised scores of models that were not trained for them, and of mixtures.

        Raises:
            UnsupportedParameterError: they cannot be had.
        """
        if mode == "normalised":
            return
        if len(self.parts) > 1:
            raise UnsupportedParameterError(
                f"score_mode is {mode!r}, but only probabilities can be mixed; use 'normalised'",
                parameter="score_mode",
            )
        for loaded in self.all:
            if not is_self_normalised(loaded.model):
                raise UnsupportedParameterError(
                    f"score_mode is {mode!r}, but model {loaded.address} was not trained for unnormalised scores "
                    "(train.self_normalise or train.loss=nce); use 'normalised'",
                    parameter="score_mode",
                )


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which models are to score, by their addresses.

    Attributes:
        main: parts of the main model, each with its weight; None for the service's default model.
        extra: names of further models and their addresses.

    Raises:
        InvalidInputError: there are too many, weights are no distribution, or a name cannot be one.
    """

    main: tuple[tuple[str | None, float], ...] = ((None, 1.0),)
    extra: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_model_counts(len(self.main), len(self.extra))
        check_model_names([name for name, _ in self.extra], parameter="models")
        if self.main:
            check_mixture_weights([weight for _, weight in self.main])

    def resolve(self, resolve: Callable[[str | None], LoadedModel]) -> ScoringModels:
        """The models themselves.

        Args:
            resolve: finds a model by its address.

        Raises:
            InvalidInputError: the parts of a mixture cannot be mixed.
        """
        parts = tuple(resolve(address) for address, _ in self.main)
        weights = tuple(weight for _, weight in self.main)
        return ScoringModels(parts, weights, {name: resolve(address) for name, address in self.extra})


def check_model_counts(num_parts: int, num_further: int) -> None:
    """Refuse more models than one request may ask.

    Raises:
        InvalidInputError: there are too many.
    """
    for parameter, count in (("mixture", num_parts), ("models", num_further)):
        if count > MAX_MODELS:
            raise InvalidInputError(
                f"{parameter} has {count} models; at most {MAX_MODELS} are accepted", parameter=parameter
            )


def check_mixture_weights(weights: Sequence[float]) -> None:
    """Refuse weights that do not make a mixture.

    Raises:
        InvalidInputError: one is not positive, or they do not sum to 1.
    """
    if not all(weight > 0 for weight in weights) or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
        raise InvalidInputError(
            f"the weights of mixture are {list(weights)}; they must be positive and sum to 1",
            parameter="mixture",
        )


def _check_compatible(first: LoadedModel, part: LoadedModel, place: int) -> None:
    """Probabilities are mixed token by token: so texts must be the same tokens to all parts, in the same order."""
    why = None
    if part.model.vocabulary.fingerprint != first.model.vocabulary.fingerprint:
        why = "has another vocabulary than"
    elif part.tokenizer.fingerprint != first.tokenizer.fingerprint:
        why = "cuts texts into tokens otherwise than"
    elif part.reads_backward != first.reads_backward:
        why = "reads in another direction than"
    if why is not None:
        raise InvalidInputError(
            f"mixture[{place}].model is {part.address}, which {why} {first.address}: their probabilities cannot be "
            "mixed at every token; give it in models, with a weight of its own",
            parameter=f"mixture[{place}].model",
        )
