"""The shape of a cache: which tokens it remembers and how far it trusts them."""

import math
from dataclasses import dataclass
from typing import Literal

from models.errors import InvalidInputError

MAX_WINDOW = 1 << 20
MAX_FLATNESS = 1e12
CacheKind = Literal["continuous", "unigram"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """How a cache predicts the next token from the last ones.

    p(w) = (1 − λ) p_inner(w) + λ p_cache(w), p_cache(w) ∝ Σ_i 1[x_i = w] exp(θ s_i), over the remembered
    tokens x_i. What s_i is, the kind says:

    continuous  the product of the features now and those that token i followed. Source: Grave, Joulin and
                Usunier 2017, equations 2 and 3.
    unigram     minus the token's age, so that θ is the rate at which tokens are forgotten. Source: Kuhn
                and De Mori 1990, with exponential decay as Clarkson and Robinson 1997.

    Attributes:
        kind: see above.
        window: how many tokens are remembered.
        flatness: θ; 0 gives every remembered token the same weight.
        weight: λ.

    Raises:
        InvalidInputError: a value is outside its limits.
    """

    kind: CacheKind
    window: int
    flatness: float
    weight: float

    def __post_init__(self) -> None:
        if self.kind not in {"continuous", "unigram"}:
            raise InvalidInputError(
                f"cache.kind is {self.kind!r}, it can be continuous or unigram", parameter="cache.kind"
            )
        if not 1 <= self.window <= MAX_WINDOW:
            raise InvalidInputError(
                f"cache.window is {self.window}, it must be from 1 to {MAX_WINDOW:,}",
                parameter="cache.window",
            )
        if not 0 <= self.flatness <= MAX_FLATNESS:
            raise InvalidInputError(
                f"cache.flatness is {self.flatness}, it must be from 0 to {MAX_FLATNESS:g}",
                parameter="cache.flatness",
            )
        if not (0 < self.weight < 1 and math.isfinite(self.weight)):
            raise InvalidInputError(
                f"cache.weight is {self.weight}, it must be above 0 and below 1", parameter="cache.weight"
            )
