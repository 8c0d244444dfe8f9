"""Recurrent layers: products in integers, gates in floats row by row."""

from typing import Any, NamedTuple

import numba
import numpy as np

from models.arrays import FloatArray
from models.neural.quantized.cells import (
    elman_step,
    gru_step,
    lstm_step,
    mingru_step,
    relu_in_place,
    tanh_in_place,
)
from models.neural.quantized.matrix import ROW_PADDING, Int8Matrix, multiply_rows
from models.neural.quantized.rows import quantise_row

INPUTS_PER_PRODUCT = 32
"""Inputs multiplied at once, so that the weights are read once for all of them."""

LSTM_KIND, GRU_KIND, ELMAN_KIND, RELU_ELMAN_KIND, MINGRU_KIND = range(5)


class RecurrentLayer(NamedTuple):
    """One recurrent layer's weights. G gates of P rows each, P being H rounded up to a multiple of 64.

    Attributes:
        kind: of the cell.
        of_inputs: [G P, I].
        of_hidden: [G P, H]; of no rows in cells whose gates look at the input alone.
        biases: of inputs and of hidden [2, G P], float32.
    """

    kind: int
    of_inputs: Int8Matrix
    of_hidden: Int8Matrix
    biases: FloatArray


@numba.njit(nogil=True, cache=True)
def run_recurrent_layer(layer: Any, inputs: Any, alive: Any, h: Any, c: Any, outputs: Any, rows: Any) -> None:
    """Read T inputs a row.

    Args:
        layer: a `RecurrentLayer`.
        inputs: `Rows` [(T + 1) * B], those of a step side by side, after B that are not read.
        alive: how many rows, the first ones, take part in each step [T], descending.
        h: outputs so far [B, H]; written over.
        c: memory cells [B, H]; written over, or left alone by cells that have none.
        outputs: written, [T, B, H].
        rows: written, `Rows` [(T + 1) * B]: the outputs so far, then those of each step.
    """
    batch = len(h)
    width = layer.biases.shape[1]
    together = max(1, INPUTS_PER_PRODUCT // max(1, batch))
    x = np.empty((min(together, len(alive)) * batch, width + ROW_PADDING), np.float32)
    u = np.empty((batch, width + ROW_PADDING), np.float32)
    for row in range(batch):
        quantise_row(h[row], rows, row)
    for step in range(len(alive)):
        place = step % together * batch
        if place == 0:
            end = min(step + together, len(alive)) - 1
            count = (end - step) * batch + alive[end]
            multiply_rows(layer.of_inputs, layer.biases[0], inputs, (step + 1) * batch, count, x)
        multiply_rows(layer.of_hidden, layer.biases[1], rows, step * batch, alive[step], u)
        for row in range(alive[step]):
            if layer.kind == LSTM_KIND:
                lstm_step(x[place + row, :width], u[row, :width], h[row], c[row])
            elif layer.kind == GRU_KIND:
                gru_step(x[place + row, :width], u[row, :width], h[row])
            elif layer.kind == MINGRU_KIND:
                mingru_step(x[place + row, :width], h[row])
            else:
                elman_step(x[place + row, :width], u[row, :width], h[row], layer.kind == RELU_ELMAN_KIND)
            outputs[step, row] = h[row]
            quantise_row(h[row], rows, (step + 1) * batch + row)


@numba.njit(nogil=True, cache=True)
def run_dense_layer(matrix: Any, bias: Any, inputs: Any, first: Any, rectified: Any, outputs: Any) -> None:
    """Outputs [N, H] of a layer f(W x + b), f being the hyperbolic tangent or the rectifier.

    Args:
        matrix: W, [H, I].
        bias: b, [H rounded up].
        inputs: `Rows`.
        first: of the N that are read.
        rectified: whether f is the rectifier.
        outputs: written, [N, H].
    """
    size = outputs.shape[1]
    sums = np.empty((INPUTS_PER_PRODUCT, len(bias)), np.float32)
    for start in range(0, len(outputs), INPUTS_PER_PRODUCT):
        count = min(INPUTS_PER_PRODUCT, len(outputs) - start)
        multiply_rows(matrix, bias, inputs, first + start, count, sums)
        for row in range(count):
            output = outputs[start + row]
            output[:] = sums[row, :size]
            if rectified:
                relu_in_place(output)
            else:
                tanh_in_place(output)
