"""Recurrent layers in integers, one on top of the other."""

from typing import Any

import numpy as np

from models.arrays import TokenIds
from models.neural.config import NetworkConfig
from models.neural.gates import padded_gates
from models.neural.quantized.body import QuantizedBody, Reading, Stretch
from models.neural.quantized.dot_products import LANES
from models.neural.quantized.layers import (
    ELMAN,
    GRU,
    LSTM,
    MINGRU,
    RECTIFIED_ELMAN,
    Layer,
    run_layer,
)
from models.neural.quantized.matrix import packed_once
from models.neural.quantized.norm import norm_of
from models.neural.quantized.rows import Rows, new_rows
from models.neural.quantized.state import Hidden
from models.neural.recurrent import Recurrent
from models.shelf import Shelf

_NO_CELLS = np.empty((0, 0), np.float32)


class QuantizedRecurrent(QuantizedBody):
    """The layers. Carries what `Recurrent` carries.

    Args:
        body: the layers in single precision.
        config: what they are.
        shelf: where their weights lie.
    """

    def __init__(self, body: Recurrent, config: NetworkConfig, shelf: Shelf) -> None:
        self.layers = [
            _packed(layer, config, shelf.section(f"cells.{number}"))
            for number, layer in enumerate(body.cells)
        ]
        self.norms = [norm_of(norm) for norm in body.norms]
        self.skips = body.skips
        self.sizes = config.layer_inputs

    def read(self, vectors: Rows, alive: TokenIds, carried: Hidden) -> Reading:
        """Read up to T vectors a row."""
        steps, batch, size = len(alive), carried[0].shape[1], carried[0].shape[2]
        carried = tuple(part.copy() for part in carried)
        stretch = Stretch(vectors, None, (steps, batch, self.sizes[0]))
        for number, layer in enumerate(self.layers):
            below, inputs = stretch, stretch.normalised(self.norms[number]).rows
            outputs = np.zeros((steps, batch, size), np.float32)
            rows = new_rows((steps + 1) * batch, size)
            cells = carried[1][number] if len(carried) > 1 else _NO_CELLS
            run_layer(layer, inputs, alive, carried[0][number], cells, outputs, rows)
            stretch = Stretch(rows, outputs, (steps, batch, size))
            if self.skips[number]:
                stretch = stretch.plus(below)
        stretch = stretch.normalised(self.norms[-1])
        return Reading(stretch.floats, stretch.rows, carried)


def _packed(layer: Any, config: NetworkConfig, shelf: Shelf) -> Layer:
    kinds = {
        "lstm": (LSTM, 4),
        "gru": (GRU, 3),
        "elman": (ELMAN if config.activation == "tanh" else RECTIFIED_ELMAN, 1),
        "mingru": (MINGRU, 2),
    }
    kind, gates = kinds[config.cell]
    if kind == MINGRU:
        of_inputs, bias = (part.detach().cpu().numpy() for part in (layer.gates.weight, layer.gates.bias))
        of_hidden, biases = np.zeros((0, config.hidden_size), np.float32), [bias, np.zeros_like(bias)]
    else:
        of_inputs, of_hidden, *biases = (weight.detach().cpu().numpy() for weight in layer.weights())
    return Layer(
        kind,
        packed_once(shelf, "of_inputs", lambda: padded_gates(of_inputs, gates, LANES)),
        packed_once(shelf, "of_hidden", lambda: padded_gates(of_hidden, gates, LANES)),
        np.stack([padded_gates(bias, gates, LANES) for bias in biases]),
    )
