"""A linear layer in integers."""

from typing import NamedTuple

import numpy as np
from torch import nn

from models.arrays import FloatArray
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.matrix import PackedMatrix, packed_once
from models.shelf import Shelf


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


def linear_of(layer: nn.Linear, shelf: Shelf, name: str) -> Linear:
    """A layer, its weights rounded.

    Args:
        layer: one with a bias.
        shelf: where they lie.
        name: under which they lie there.
    """
    weight, bias = (part.detach().cpu().numpy() for part in (layer.weight, layer.bias))
    return Linear(packed_once(shelf, name, lambda: weight), padded_bias(bias, fill=0.0), len(bias))


def padded_bias(bias: FloatArray, *, fill: float) -> FloatArray:
    """A bias [O] with `fill` added to it until O is a multiple of 64."""
    padded = np.full(-(-len(bias) // LANES) * LANES, fill, np.float32)
    padded[: len(bias)] = bias
    return padded
