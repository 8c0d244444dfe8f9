"""A linear layer whose weights are packed."""

import numpy as np
import torch
from torch import Tensor, nn

from models.arrays import FloatArray
from models.neural.packed.matrix import PackedMatrix, Packing, load_or_pack, multiply, write
from models.neural.threads import run_row_slices
from models.shelf import PackedWeightCache


class PackedLinear(nn.Module):
    """W x + b, without a gradient.

    Args:
        layer: in single precision on a CPU; it is not changed.
        packing: how.
        shelf: where packed weights lie.
    """

    def __init__(self, layer: nn.Linear, packing: Packing, shelf: PackedWeightCache) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        weight = layer.weight.detach().numpy()
        bias = np.zeros(len(weight), np.float32) if layer.bias is None else layer.bias.detach().numpy()
        self.size = len(weight)
        self.matrix = load_or_pack(shelf, "weight", packing, lambda: weight, lambda: bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Products [..., O] of inputs [..., I]."""
        vectors = inputs.detach().reshape(-1, inputs.shape[-1]).contiguous().numpy()
        products = multiply_vectors(self.matrix, vectors)[:, : self.size]
        return torch.from_numpy(products).view(*inputs.shape[:-1], self.size)


def multiply_vectors(matrix: PackedMatrix, vectors: FloatArray) -> FloatArray:
    """The products [N, O rounded up] of a matrix with vectors [N, W], and its bias."""
    products = np.empty((len(vectors), matrix.size), np.float32)

    def work(rows: slice) -> None:
        some = vectors[rows]
        room = matrix.buffer_for(len(some))
        write(matrix, some, room, 0)
        multiply(matrix, room, len(some), products[rows])

    run_row_slices(work, len(vectors))
    return products
