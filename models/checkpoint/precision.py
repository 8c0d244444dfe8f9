"""Precision of a model's networks: float32, or int8 on a CPU."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from models.errors import InvalidInputError
from models.language_model import LanguageModel
from models.mixture import MixtureModel
from models.neural.config import CellName

Precision = Literal["auto", "float32", "int8"]
FLOAT32: Literal["float32"] = "float32"
INT8: Literal["int8"] = "int8"
PRECISIONS: tuple[Precision, ...] = ("auto", FLOAT32, INT8)

NEURAL_FAMILIES: tuple[str, ...] = get_args(CellName)
"""Families with weights that can be quantized."""

CACHE_FAMILY = "cache"
"""The family of caches around another model."""

MAX_INT8_COST = 0.005
"""Maximum relative increase of the perplexity with which int8 is the default."""


def check_precision(precision: str) -> Precision:
    """Check the name of a precision.

    Raises:
        InvalidInputError: the name is unknown.
    """
    if precision not in PRECISIONS:
        raise InvalidInputError(
            f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}", parameter="precision"
        )
    return precision


def is_int8_recommended(metrics: Mapping[str, Any]) -> bool:
    """True if int8 was measured at publishing and its cost is within `MAX_INT8_COST`."""
    measured = metrics.get(INT8)
    cost = measured.get("cost") if isinstance(measured, Mapping) else None
    return isinstance(cost, int | float) and cost <= MAX_INT8_COST


def to_int8(model: LanguageModel[Any]) -> LanguageModel[Any]:
    """Quantize a model's networks to int8, except those that `int8_problems` reports.

    Returns the model itself if there is nothing to quantize.
    """
    if isinstance(model, MixtureModel):
        parts = [to_int8(part) for part in model.parts]
        if all(part is before for part, before in zip(parts, model.parts, strict=True)):
            return model
        return MixtureModel(parts, model.weights, weights_by_context=model.weights_by_context)
    if model.family == CACHE_FAMILY:
        from models.cache.model import CacheModel  # imports numba

        cache: Any = model
        inner = to_int8(cache.inner)
        return model if inner is cache.inner else CacheModel(inner, cache.config)
    if model.family not in NEURAL_FAMILIES or int8_problems(model):
        return model
    from models.neural.model import Int8Model

    network: Any = model
    return Int8Model(network.network, model.vocabulary, weight_cache=network.weight_cache)


def int8_problems(model: LanguageModel[Any]) -> list[str]:
    """Return the reasons why networks of a model do not support int8; empty if all do or it has none."""
    if isinstance(model, MixtureModel):
        return [problem for part in model.parts for problem in int8_problems(part)]
    if model.family == CACHE_FAMILY:
        cache: Any = model
        return int8_problems(cache.inner)
    if model.family not in NEURAL_FAMILIES:
        return []
    from models.neural.int8.network import unsupported_reason  # imports torch

    network: Any = model
    problem = unsupported_reason(network.config)
    return [] if problem is None else [problem]
