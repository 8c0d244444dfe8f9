"""A linear layer in integers."""

from typing import NamedTuple

import numpy as np
from torch import nn

from models.arrays import FloatArray
from models.neural.quantized.dot_products import ROW_LANES
from models.neural.quantized.matrix import Int8Matrix, load_or_quantise
from models.shelf import PackedWeightCache


class Int8Linear(NamedTuple):
    """W x + b.

    Attributes:
        matrix: W, [O, I].
        bias: b, [O rounded up to a multiple of 64], float32.
        size: O.
    """

    matrix: Int8Matrix
    bias: FloatArray
    size: int


def quantise_linear(layer: nn.Linear, shelf: PackedWeightCache, name: str) -> Int8Linear:
    """A layer, its weights rounded.

    Args:
        layer: one with a bias.
        shelf: where they lie.
        name: under which they lie there.
    """
    weight, bias = (part.detach().cpu().numpy() for part in (layer.weight, layer.bias))
    return Int8Linear(load_or_quantise(shelf, name, lambda: weight), pad_bias(bias, fill=0.0), len(bias))


def pad_bias(bias: FloatArray, *, fill: float) -> FloatArray:
    """A bias [O] with `fill` added to it until O is a multiple of 64."""
    padded = np.full(-(-len(bias) // ROW_LANES) * ROW_LANES, fill, np.float32)
    padded[: len(bias)] = bias
    return padded
