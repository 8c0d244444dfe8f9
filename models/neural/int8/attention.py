"""Attention over an int8 body's last outputs; see `models.neural.attention`.

Queries, keys and the projection are int8 products. Scores and their softmax are computed in single precision, term
by term in the order of time, so the results of a row do not depend on the batch or the segmentation of its text.
"""

import math
from typing import Any

import numpy as np
from numba import types
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.kernels.compilation import kernel
from models.kernels.math import exp, greater, tanh
from models.neural.config import NetworkConfig
from models.neural.int8.layers import Activations, Int8Body, last_vectors, row_lengths
from models.neural.int8.matrix import FLOATS, IDS, Int8Linear, Int8Rows, Parameters
from models.neural.int8.output import multiply, to_int8_rows
from models.neural.network_model import HiddenArrays


class Int8Attention(Int8Body):
    """`AttentionBody` in int8, with the same state.

    Args:
        inner: the inner body.
        config: shape of the network.
        parameters: parameters of the body.
    """

    def __init__(self, inner: Int8Body, config: NetworkConfig, parameters: Parameters) -> None:
        self._inner, self._before = inner, config.attention_window - 1
        width = config.hidden_size
        memory = np.zeros((self._before, 1, width), np.float32), np.zeros((1, 1, 1), np.float32)
        self.start = (*inner.start, *memory)
        scores, is_additive = parameters.part("scores"), config.attention == "additive"
        self._queries = scores.linear("queries.weight", scores["queries.bias"] if is_additive else None)
        self._keys = None if config.attention == "multiplicative" else scores.linear("keys.weight")
        self._projection = parameters.linear("projection.weight")
        self._reduction = scores["reduction.weight"][0].copy() if is_additive else np.zeros(0, np.float32)
        self._scale = np.float32(1 / math.sqrt(config.attention_size) if config.attention == "scaled" else 1)

    @override
    def read(
        self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays
    ) -> tuple[Activations, HiddenArrays]:
        activations, inner = self._inner.read(vectors, alive, carried[:-2])
        outputs = activations.floats
        past, filled = carried[-2:]
        steps, batch, width = outputs.shape
        seen = np.ascontiguousarray(np.concatenate([past, outputs]))  # [n - 1 + T, B, W]
        queries = self._multiplied(self._queries, outputs)
        keys = seen if self._keys is None else self._multiplied(self._keys, seen)
        context = np.empty_like(outputs)
        first = self._before - filled[0, :, 0].astype(np.int64)  # first valid vector of each row in `seen`
        _attend(queries, keys, seen, first, self._reduction, self._scale, context)
        attended = outputs + self._multiplied(self._projection, context)
        lengths = row_lengths(alive, batch)
        last = last_vectors(seen, alive, self._before)
        count = np.minimum(filled + lengths[None, :, None].astype(np.float32), np.float32(self._before))
        return Activations(None, attended, (steps, batch, width)), (*inner, last, count)

    @staticmethod
    def _multiplied(layer: Int8Linear, vectors: FloatArray) -> FloatArray:
        """Return the products [T, B, O] of a layer with vectors [T, B, I]."""
        products = multiply(layer, to_int8_rows(vectors.reshape(-1, vectors.shape[-1])))
        return np.ascontiguousarray(products).reshape(*vectors.shape[:-1], layer.size)


@kernel(
    types.void(*[types.float32[:, :, ::1]] * 3, IDS, FLOATS, types.float32, types.float32[:, :, ::1]),
    error_model="numpy",
)
def _attend(queries: Any, keys: Any, seen: Any, first: Any, reduction: Any, scale: Any, context: Any) -> None:
    """Write the weighted sums of the vectors that each query attends to.

    Args:
        queries: [T, B, S].
        keys: [M + T, B, S].
        seen: vectors [M + T, B, W].
        first: first valid vector of each row [B].
        reduction: weights of additive scores [S]; empty for products of queries and keys.
        scale: scale of the products.
        context: written, [T, B, W].
    """
    steps, batch, _ = context.shape
    before = len(seen) - steps
    scores = np.empty(before + 1, np.float32)
    for row in range(batch):
        for step in range(steps):
            begin, end = max(step, first[row]), step + before + 1
            highest = np.float32(-np.inf)
            for position in range(begin, end):
                score = np.float32(0)
                for unit in range(queries.shape[2]):
                    if len(reduction):
                        total = queries[step, row, unit] + keys[position, row, unit]
                        score += reduction[unit] * tanh(total)
                    else:
                        score += queries[step, row, unit] * scale * keys[position, row, unit]
                scores[position - begin] = score
                highest = greater(highest, score)
            normaliser = np.float32(0)
            context[step, row] = 0
            for position in range(begin, end):
                weight = exp(scores[position - begin] - highest)
                normaliser += weight
                for column in range(context.shape[2]):
                    context[step, row, column] += weight * seen[position, row, column]
            for column in range(context.shape[2]):
                context[step, row, column] /= normaliser
