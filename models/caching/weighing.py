"""How much each remembered token counts, by how alike its place is and by its age.

The weight is exp(θ cos) · 2^(−age / half-life) in single precision, the same bits wherever it is computed.
Weights are summed by stretches that begin where the window does, in lanes, and the stretches in double
precision: so a sum, too, depends on its window alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import types

from models.arrays import FloatArray
from models.neural.elementary import exp

SEGMENT_TOKENS = 2_048
"""Tokens of a window that are weighed together; a multiple of `LANES`."""

SUM_LANES = 64
"""Weights that are summed side by side."""

_SMALLEST_NORMAL = 2.0**-126  # below it, numbers are slow and say nothing


class SimilarityDecay(NamedTuple):
    """F values of θ and H half-lives, and what each half-life leaves of a token.

    Attributes:
        flatnesses: values of θ [F], float32.
        decays: 2^(−age / half-life) of the tokens in a full window, the oldest first, then `LANES` zeros
            [H, window + LANES], float32.
    """

    flatnesses: FloatArray
    decays: FloatArray

    @classmethod
    def of(
        cls, flatnesses: Sequence[float], half_lives: Sequence[float | None], *, window: int
    ) -> "SimilarityDecay":
        """The weighing of the last tokens.

        Args:
            flatnesses: values of θ [F].
            half_lives: in tokens [H]; None where nothing is forgotten.
            window: how many tokens are remembered.
        """
        decays = np.zeros((len(half_lives), window + SUM_LANES), dtype=np.float32)
        for row, half_life in zip(decays, half_lives, strict=True):
            _write_decays(np.inf if half_life is None else half_life, row[:window])
        return cls(np.array(flatnesses, dtype=np.float32), decays)


@numba.njit([types.void(types.float64, types.float32[::1])], nogil=True, cache=True, error_model="numpy")
def _write_decays(half_life: float, decays: FloatArray) -> None:
    """Write 2^(−age / half-life) for the ages N − 1, …, 1, 0 into [N]; the newest token has age 0."""
    for place in range(len(decays)):
        decay = 2.0 ** ((place + 1 - len(decays)) / half_life)
        decays[place] = decay if decay >= _SMALLEST_NORMAL else 0.0


@numba.njit(nogil=True, cache=True)
def similarity_weights(likeness: Any, flatness: Any, out: Any) -> Any:
    """Write exp(θ cos) of up to `SEGMENT_TOKENS` tokens [N], then zeros.

    Returns:
        Where the zeros end, the next multiple of `LANES`.
    """
    size = len(likeness)
    for place in range(size):
        out[place] = exp(flatness * likeness[place])
    end = (size + SUM_LANES - 1) // SUM_LANES * SUM_LANES
    out[size:end] = 0
    return end


@numba.njit(nogil=True, cache=True)
def sum_weights(alike: Any, decays: Any, lanes: Any) -> Any:
    """The sum of alike[i] · decays[i] over as many as a multiple of `LANES`, in double precision.

    Args:
        alike: what `similarity_weights` wrote [N].
        decays: of the same tokens [N]; what stands beside zeros does not count.
        lanes: [LANES]; written over.
    """
    lanes[:] = 0
    some, others = alike.reshape(-1, SUM_LANES), decays.reshape(-1, SUM_LANES)
    for block in range(len(some)):
        for lane in range(SUM_LANES):
            lanes[lane] += some[block, lane] * others[block, lane]
    width = SUM_LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return np.float64(lanes[0])
