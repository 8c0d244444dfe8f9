"""Layer normalisation of rows, in single precision."""

from typing import Any, NamedTuple

import numba
import numpy as np
from torch import nn

from models.arrays import FloatArray
from models.neural.elementary import fma
from models.neural.quantized.dot_products import ROW_LANES


class LayerNormWeights(NamedTuple):
    """Mean 0 and variance 1, then a scale and a shift of every place (Ba et al. 2016).

    Attributes:
        weight: [W].
        bias: [W].
        epsilon: added to the variance.
    """

    weight: FloatArray
    bias: FloatArray
    epsilon: float


def layer_norm_of(layer: nn.Module) -> LayerNormWeights | None:
    """A layer's normalisation; None if it is none."""
    if not isinstance(layer, nn.LayerNorm):
        return None
    weight, bias = (part.detach().cpu().numpy().copy() for part in (layer.weight, layer.bias))
    return LayerNormWeights(weight, bias, layer.eps)


@numba.njit(nogil=True, cache=True, error_model="numpy")
def normalise_rows(norm: Any, vectors: Any, normalised: Any) -> None:
    """Write the rows of vectors [N, W], each normalised."""
    size = vectors.shape[1]
    padded = np.zeros(-(-size // ROW_LANES) * ROW_LANES, np.float32)
    centred = padded[:size]
    for row in range(len(vectors)):
        centred[:] = vectors[row]
        centred -= _sum_lanes(padded) / np.float32(size)
        variance = _sum_lanes(padded * padded) / np.float32(size)
        inverse = np.float32(1) / np.sqrt(variance + np.float32(norm.epsilon))
        for place in range(size):
            normalised[row, place] = fma(centred[place] * inverse, norm.weight[place], norm.bias[place])


@numba.njit(nogil=True, cache=True)
def _sum_lanes(values: Any) -> Any:
    """The sum of as many values as a multiple of 64: in 64 lanes, and these by halves."""
    blocks = values.reshape(-1, ROW_LANES)
    lanes = np.zeros(ROW_LANES, np.float32)
    for block in range(len(blocks)):
        for lane in range(ROW_LANES):
            lanes[lane] += blocks[block, lane]
    width = ROW_LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[lane + width]
    return lanes[0]
