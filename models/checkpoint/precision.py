"""Precision of a model's networks: float32, int8 on a CPU, or bfloat16 for pretrained models."""

from collections.abc import Mapping
from operator import is_
from typing import Any, Literal, cast, get_args

from models.errors import InputError
from models.language_model import LanguageModel
from models.neural.config import CellName

Precision = Literal["auto", "float32", "int8", "bfloat16"]
FLOAT32: Literal["float32"] = "float32"
INT8: Literal["int8"] = "int8"
BFLOAT16: Literal["bfloat16"] = "bfloat16"
PRECISIONS: tuple[Precision, ...] = ("auto", FLOAT32, INT8, BFLOAT16)

NEURAL_FAMILIES: tuple[str, ...] = get_args(CellName)
"""Families of networks trained here; their results in int8 are exact."""

PRETRAINED_FAMILY = "pretrained"
"""Family of pretrained transformers; results in int8 depend on rounding."""

QUANTISABLE_FAMILIES = frozenset({*NEURAL_FAMILIES, PRETRAINED_FAMILY})
"""Families that can compute in int8."""

MAX_INT8_COST = 0.005
"""Maximum relative increase of the perplexity for int8 to be the default."""


def check_precision(precision: str) -> Precision:
    """Return the precision of a name, or raise InputError if it is unknown."""
    if precision not in PRECISIONS:
        raise InputError.of("precision", f"is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    return precision


def is_int8_recommended(metrics: Mapping[str, Any]) -> bool:
    """True if int8's cost, measured at publishing, is within `MAX_INT8_COST`."""
    measured = metrics.get(INT8)
    cost = measured.get("cost") if isinstance(measured, Mapping) else None
    return isinstance(cost, int | float) and cost <= MAX_INT8_COST


def to_int8(model: LanguageModel) -> LanguageModel:
    """Quantize a model's networks but those that `int8_problems` reports.

    Returns the model itself if there is nothing to quantize.
    """
    if model.family in NEURAL_FAMILIES:
        from models.neural.int8.model import Int8Model  # imports numba

        network = cast("Any", model).network
        return model if int8_problems(model) else Int8Model(network.weights(), model.vocabulary)
    if model.family == PRETRAINED_FAMILY:
        quantised: LanguageModel = cast("Any", model).in_int8()
        return quantised
    parts, composite = _parts(model), cast("Any", model)
    rounded = [to_int8(part) for part in parts]
    return model if all(map(is_, rounded, parts)) else composite.with_parts(rounded)


def has_pretrained(model: LanguageModel) -> bool:
    """True if a model or a part of it is a pretrained transformer."""
    return model.family == PRETRAINED_FAMILY or any(map(has_pretrained, _parts(model)))


def int8_problems(model: LanguageModel) -> list[str]:
    """Return why a model's networks lack int8; empty if none do."""
    if model.family in NEURAL_FAMILIES:
        problem: str | None = cast("Any", model).config.int8_problem
        return [] if problem is None else [problem]
    return [problem for part in _parts(model) for problem in int8_problems(part)]


def _parts(model: LanguageModel) -> tuple[LanguageModel, ...]:
    """Return the models in a mixture or a cache; empty for others."""
    return getattr(model, "parts", ())
