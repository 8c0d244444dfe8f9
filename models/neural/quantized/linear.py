"""A linear layer in integers."""

from typing import NamedTuple

import numpy as np
from torch import nn

from models.arrays import FloatArray
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.matrix import PackedMatrix, pack


class Linear(NamedTuple):
    """W x + b.

    Attributes:
        matrix: W, [O, I].
        bias: b, [O rounded up to a multiple of 64], float32.
        size: O.
    """

    matrix: PackedMatrix
    bias: FloatArray
    size: int


def linear_of(layer: nn.Linear) -> Linear:
    """A layer, its weights rounded.

    Args:
        layer: one with a bias.
    """
    weight, bias = (part.detach().cpu().numpy() for part in (layer.weight, layer.bias))
    return linear(weight, bias, fill=0.0)


def linear(weight: FloatArray, bias: FloatArray, *, fill: float) -> Linear:
    """A layer of weights [O, I], which are rounded, and a bias [O].

    Args:
        weight: W.
        bias: b.
        fill: the bias of what is added to make O a multiple of 64.
    """
    size = len(bias)
    padded = np.full(-(-size // LANES) * LANES, fill, np.float32)
    padded[:size] = bias
    return Linear(pack(weight), padded, size)
