"""Recurrent layers in integers, one on top of the other."""

from typing import Any

import numpy as np

from models.arrays import TokenIds
from models.neural.config import NetworkConfig
from models.neural.gates import pad_gates
from models.neural.quantized.body import Activations, BodyOutputs, Int8Body
from models.neural.quantized.dot_products import ROW_LANES
from models.neural.quantized.layers import (
    ELMAN_KIND,
    GRU_KIND,
    LSTM_KIND,
    MINGRU_KIND,
    RELU_ELMAN_KIND,
    RecurrentLayer,
    run_recurrent_layer,
)
from models.neural.quantized.matrix import load_or_quantise
from models.neural.quantized.norm import layer_norm_of
from models.neural.quantized.rows import Int8Rows, zero_int8_rows
from models.neural.quantized.state import HiddenArrays
from models.neural.recurrent import Recurrent
from models.shelf import PackedWeightCache

_NO_CELLS = np.empty((0, 0), np.float32)


class Int8Recurrent(Int8Body):
    """The layers. Carries what `Recurrent` carries.

    Args:
        body: the layers in single precision.
        config: what they are.
        shelf: where their weights lie.
    """

    def __init__(self, body: Recurrent, config: NetworkConfig, shelf: PackedWeightCache) -> None:
        self.layers = [
            _pack_layer(layer, config, shelf.section(f"cells.{number}"))
            for number, layer in enumerate(body.cells)
        ]
        self.norms = [layer_norm_of(norm) for norm in body.norms]
        self.skips = body.skips
        self.sizes = config.layer_inputs

    def read(self, vectors: Int8Rows, alive: TokenIds, carried: HiddenArrays) -> BodyOutputs:
        """Read up to T vectors a row."""
        steps, batch, size = len(alive), carried[0].shape[1], carried[0].shape[2]
        carried = tuple(part.copy() for part in carried)
        stretch = Activations(vectors, None, (steps, batch, self.sizes[0]))
        for number, layer in enumerate(self.layers):
            below, inputs = stretch, stretch.normalised(self.norms[number]).rows
            outputs = np.zeros((steps, batch, size), np.float32)
            rows = zero_int8_rows((steps + 1) * batch, size)
            cells = carried[1][number] if len(carried) > 1 else _NO_CELLS
            run_recurrent_layer(layer, inputs, alive, carried[0][number], cells, outputs, rows)
            stretch = Activations(rows, outputs, (steps, batch, size))
            if self.skips[number]:
                stretch = stretch.plus(below)
        stretch = stretch.normalised(self.norms[-1])
        return BodyOutputs(stretch.floats, stretch.rows, carried)


def _pack_layer(layer: Any, config: NetworkConfig, shelf: PackedWeightCache) -> RecurrentLayer:
    kinds = {
        "lstm": (LSTM_KIND, 4),
        "gru": (GRU_KIND, 3),
        "elman": (ELMAN_KIND if config.activation == "tanh" else RELU_ELMAN_KIND, 1),
        "mingru": (MINGRU_KIND, 2),
    }
    kind, gates = kinds[config.cell]
    if kind == MINGRU_KIND:
        of_inputs, bias = (part.detach().cpu().numpy() for part in (layer.gates.weight, layer.gates.bias))
        of_hidden, biases = np.zeros((0, config.hidden_size), np.float32), [bias, np.zeros_like(bias)]
    else:
        of_inputs, of_hidden, *biases = (weight.detach().cpu().numpy() for weight in layer.weights())
    return RecurrentLayer(
        kind,
        load_or_quantise(shelf, "of_inputs", lambda: pad_gates(of_inputs, gates, ROW_LANES)),
        load_or_quantise(shelf, "of_hidden", lambda: pad_gates(of_hidden, gates, ROW_LANES)),
        np.stack([pad_gates(bias, gates, ROW_LANES) for bias in biases]),
    )
