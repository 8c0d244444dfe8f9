"""Configuration of a cache: window, similarity, half-life and weight; imports no kernels."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict

from models.errors import InvalidInputError

MAX_WINDOW = 1 << 20
MAX_FLATNESS = 64.0  # e^64 times the longest window does not overflow single precision
CacheKind = Literal["continuous", "unigram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalsConfig:
    """Configuration of dynamic marginals: how the frequencies of cached tokens change the wrapped model's distribution.

    p'(w) ∝ p(w) r_w^β, r_w = (C_w + m E_w + a) / (E_w + m E_w + a),
    C_w = Σ_i 1[x_i = w] 2^(−age_i / half-life), E_w = u_w Σ_i 2^(−age_i / half-life), over the cached tokens x_i.

    Source: Kneser, Peters and Klakow 1997, with counts that decay, and a Gamma distribution as the prior of r.

    Attributes:
        half_life: age in tokens at which a count is halved.
        exponent: β.
        prior: m, in expected occurrences.
        floor: a, in occurrences.

    Raises:
        InvalidInputError: a value is outside its limits, or of another type.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    half_life: float
    exponent: float
    prior: float
    floor: float

    def __post_init__(self) -> None:
        checks = (
            ("half_life", _is_number(self.half_life) and self.half_life > 0, "above 0"),
            ("exponent", _is_number(self.exponent) and 0 < self.exponent <= 4, "above 0 and at most 4"),
            ("prior", _is_number(self.prior) and 0 <= self.prior <= 1e3, "from 0 to 1,000"),
            ("floor", _is_number(self.floor) and 1e-3 <= self.floor <= 1, "from 0.001 to 1"),
        )
        _check(self, "cache.marginals", checks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """Configuration of a cache model.

    p(w) = (1 − λ) p_inner(w) + λ p_cache(w),
    p_cache(w) ∝ μ p_inner(w) + Σ_i 1[x_i = w] exp(θ (cos(s, s_i) − 1)) · 2^(−age_i / half-life), over the
    cached tokens x_i. p_inner is adapted by dynamic marginals, if configured.

    continuous  s is the model's current feature vector, s_i the feature vector before token i. Source: Grave,
                Joulin and Usunier 2017, equations 2 and 3, here with unit vectors.
    unigram     without features: θ is 0, and only age counts. Source: Kuhn and De Mori 1990.

    Exponential decay is from Clarkson and Robinson 1997, the prior from MacKay and Peto 1995: if few tokens
    are cached, or none in a similar context, the cache's distribution approaches the model's.

    Attributes:
        kind: see above.
        window: number of cached tokens.
        flatness: θ; 0 weights every cached token equally, and is the only value for a unigram cache.
        half_life: age in tokens at which a weight is halved; None for no decay within
            the window.
        weight: λ.
        prior: μ, in cached tokens whose context equals the current one.
        gate: coefficients (c0, c1, c2) of λ = σ(c0 + c1 log n + c2 log s), which replaces λ and μ: n is the sum of the
            cached tokens' weights, s the largest share of one word in it. None for a constant λ.
        marginals: dynamic marginals; None for none.

    Raises:
        InvalidInputError: a value is outside its limits, or of another type.
    """

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")
    kind: CacheKind
    window: int
    flatness: float = 0.0
    half_life: float | None
    weight: float
    prior: float = 0.0
    gate: tuple[float, float, float] | None = None
    marginals: MarginalsConfig | None = None

    def __post_init__(self) -> None:
        highest = MAX_FLATNESS if self.kind == "continuous" else 0
        window, half_life = self.window, self.half_life
        checks = (
            ("kind", self.kind in ("continuous", "unigram"), "continuous or unigram"),
            (
                "window",
                type(window) is int and 1 <= window <= MAX_WINDOW,
                f"a whole number from 1 to {MAX_WINDOW:,}",
            ),
            (
                "flatness",
                _is_number(self.flatness) and 0 <= self.flatness <= highest,
                f"from 0 to {highest:g}" if highest else "0 for a unigram cache",
            ),
            ("half_life", half_life is None or (_is_number(half_life) and half_life > 0), "above 0, or none"),
            ("weight", _is_number(self.weight) and 0 < self.weight < 1, "above 0 and below 1"),
            ("prior", _is_number(self.prior) and self.prior >= 0, "at least 0"),
            (
                "gate",
                self.gate is None or (len(self.gate) == 3 and all(map(_is_number, self.gate))),
                "three numbers, or none",
            ),
        )
        _check(self, "cache", checks)


def _check(config: object, name: str, checks: Iterable[tuple[str, bool, str]]) -> None:
    """Raise an error for the first field that does not fit its limits."""
    for field, fits, limits in checks:
        if not fits:
            raise InvalidInputError(
                f"{name}.{field} is {getattr(config, field)!r:.80}, it must be {limits}",
                parameter=f"{name}.{field}",
            )


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 1 << 63) or (type(value) is float and math.isfinite(value))
