"""Configuration of a cache: window, similarity, half-life and weight; imports no kernels."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

MAX_WINDOW = 1 << 20
MAX_FLATNESS = 64.0  # e^64 times the longest window does not overflow single precision
CacheKind = Literal["continuous", "unigram"]
_Positive = Annotated[float, Field(gt=0)]
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class MarginalsConfig:
    """Dynamic marginals: cached tokens' frequencies change the wrapped model's distribution.

    p'(w) ∝ p(w) r_w^β, r_w = (C_w + m E_w + a) / (E_w + m E_w + a),
    C_w = Σ_i 1[x_i = w] 2^(−age_i / half-life), E_w = u_w Σ_i 2^(−age_i / half-life), over the cached tokens x_i.

    Source: Kneser, Peters and Klakow 1997, with counts that decay; r_w is a posterior mean under
    a Gamma prior of shape and rate m E_w + a.

    Attributes:
        half_life: age in tokens at which a count is halved.
        exponent: β.
        prior: m, pseudo-count of a token as a multiple of E_w.
        floor: a, pseudo-count of every token, in occurrences.

    Raises:
        pydantic.ValidationError: a value is outside its limits, or of another type.
    """

    half_life: _Positive
    exponent: float = Field(gt=0, le=4)
    prior: float = Field(ge=0, le=1e3)
    floor: float = Field(ge=1e-3, le=1)


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
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
        weight: λ; unused with a gate.
        prior: μ, in cached tokens whose context equals the current one; unused with a gate.
        gate: coefficients (c0, c1, c2) of the cache's share, 1 / (1 + exp(−(c0 + c1 log n + c2 log t))), instead of λ
            and μ: n is the sum of the cached tokens' weights, t the largest share of one token in it. None without.
        marginals: dynamic marginals; None for none.

    Raises:
        pydantic.ValidationError: a value is outside its limits, or of another type.
    """

    kind: CacheKind
    window: int = Field(ge=1, le=MAX_WINDOW)
    flatness: float = Field(default=0.0, ge=0, le=MAX_FLATNESS)
    half_life: _Positive | None
    weight: float = Field(gt=0, lt=1)
    prior: float = Field(default=0.0, ge=0)
    gate: tuple[float, float, float] | None = None
    marginals: MarginalsConfig | None = None

    @model_validator(mode="after")
    def _check_flatness(self) -> Self:
        if self.kind == "unigram" and self.flatness:
            raise ValueError(f"flatness must be 0 for a unigram cache, given {self.flatness:g}")
        return self
