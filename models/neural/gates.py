"""Weights of a recurrent layer's gates, as kernels read them."""

import numpy as np

from models.arrays import FloatArray


def pad_gates(weights: FloatArray, gates: int, multiple: int) -> FloatArray:
    """Each gate's rows of [G H, …], H rounded up to a multiple with zeros."""
    size = len(weights) // gates
    padded = np.zeros((gates, -(-size // multiple) * multiple, *weights.shape[1:]), np.float32)
    padded[:, :size] = weights.reshape(gates, size, *weights.shape[1:])
    return padded.reshape(-1, *weights.shape[1:])
