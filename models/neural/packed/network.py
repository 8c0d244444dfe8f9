"""Networks with packed matrices: recurrent layers with all steps in one kernel, gates included."""

import copy
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from models.arrays import FloatArray
from models.neural.cells import GRU, LSTM, Cell, CellState, Elman, TorchCell
from models.neural.int8.layers import elman_step, gru_step, lstm_step, pad_gates
from models.neural.network import Network
from models.neural.packed.matrix import PackedLinear, PackedMatrix, Packing, load_or_pack, multiply, write
from models.neural.packed.softmax import PackedSoftmax
from models.neural.packed.split_products import MAX_SPLIT_WIDTH
from models.neural.softmax import Softmax
from models.neural.threads import run_row_slices
from models.tensor_files import PackedWeightCache, PrivateWeightCache

PACKED_INPUTS_PER_PRODUCT = 128
"""Inputs of one product, which reads the weights once for all of them."""

_MULTIPLE = 64
"""Each gate's rows are rounded up to a multiple of it."""

_LSTM, _GRU, _ELMAN, _RECTIFIED_ELMAN = range(4)


class PackedCell(Cell):
    """A packed recurrent layer without gradients; a row's results do not depend on the rest of the batch.

    Args:
        cell: an LSTM, a GRU or an Elman layer in single precision on a CPU; it is not changed.
        packing: of the weights.
        weight_cache: cache of packed weights.
    """

    def __init__(self, cell: TorchCell, packing: Packing, weight_cache: PackedWeightCache) -> None:
        super().__init__()
        self.parts = cell.parts
        self.cell = cell
        self.size = cell.kernel.hidden_size
        self._kind, gates = _kind_of(cell)
        of_inputs, of_hidden, *biases = (
            partial(pad_gates, weight.detach().numpy(), gates, _MULTIPLE) for weight in cell.weights()
        )
        self._of_inputs = load_or_pack(weight_cache, "of_inputs", packing, of_inputs, biases[0])
        self._of_hidden = load_or_pack(weight_cache, "of_hidden", packing, of_hidden, biases[1])

    @override
    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        vectors = inputs.detach().numpy()
        after = [part.detach().numpy().copy(order="C") for part in carried]
        outputs = np.empty((*vectors.shape[:2], self.size), np.float32)

        def work(rows: slice) -> None:
            segment = np.ascontiguousarray(vectors[:, rows])
            outputs[:, rows] = self._read(segment, after[0][rows], after[-1][rows])

        run_row_slices(work, vectors.shape[1])
        return torch.from_numpy(outputs), tuple(torch.from_numpy(part) for part in after)

    @override
    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        if len(inputs) < self._of_inputs.fewest:
            return self.cell.step(inputs, carried)
        return super().step(inputs, carried)

    def _read(self, inputs: FloatArray, h: FloatArray, c: FloatArray) -> FloatArray:
        """The outputs [T, B, H]; overwrites the state h and, in LSTM layers, c."""
        steps, batch, _ = inputs.shape
        outputs = np.empty((steps, batch, self.size), np.float32)
        steps_per_product = min(steps, max(1, PACKED_INPUTS_PER_PRODUCT // max(1, batch)))
        if batch:
            input_buffer, hidden_buffer = (
                self._of_inputs.buffer_for(steps_per_product * batch),
                self._of_hidden.buffer_for(batch),
            )
            matrices = self._of_inputs, self._of_hidden
            _run_recurrent_layer(
                self._kind, *matrices, inputs, steps_per_product, input_buffer, hidden_buffer, h, c, outputs
            )
        return outputs


def _kind_of(cell: TorchCell) -> tuple[int, int]:
    """The kind of a cell and its number of gates."""
    if isinstance(cell, LSTM):
        return _LSTM, 4
    if isinstance(cell, GRU):
        return _GRU, 3
    return (_ELMAN if isinstance(cell, Elman) and cell.with_tanh else _RECTIFIED_ELMAN), 1


@numba.njit(nogil=True, cache=True)
def _run_recurrent_layer(
    kind: int,
    of_inputs: PackedMatrix,
    of_hidden: PackedMatrix,
    inputs: Any,
    steps_per_product: int,
    input_buffer: Any,
    hidden_buffer: Any,
    h: Any,
    c: Any,
    outputs: Any,
) -> None:
    """Read T inputs a row.

    Args:
        kind: of the cell.
        of_inputs: G gates of P rows, P being H rounded up to a multiple of 64.
        of_hidden: of the same gates.
        inputs: [T, B, I].
        steps_per_product: steps of one product of the inputs.
        input_buffer: buffer for them.
        hidden_buffer: buffer for B outputs.
        h: outputs so far [B, H]; written over.
        c: memory cells [B, H]; written over by LSTM layers.
        outputs: written, [T, B, H].
    """
    steps, batch, width = inputs.shape
    vectors = inputs.reshape(steps * batch, width)
    # x: inputs' part of the gates for several steps at once, as inputs are known ahead; u: for one step
    x = np.empty((steps_per_product * batch, len(of_inputs.bias)), np.float32)
    u = np.empty((batch, len(of_hidden.bias)), np.float32)
    for step in range(steps):
        offset = step % steps_per_product * batch
        if offset == 0:
            count = min(steps_per_product, steps - step) * batch
            write(of_inputs, vectors[step * batch : step * batch + count], input_buffer, 0)
            multiply(of_inputs, input_buffer, count, x)
        write(of_hidden, h, hidden_buffer, 0)
        multiply(of_hidden, hidden_buffer, batch, u)
        for row in range(batch):
            if kind == _LSTM:
                lstm_step(x[offset + row], u[row], h[row], c[row])
            elif kind == _GRU:
                gru_step(x[offset + row], u[row], h[row])
            else:
                elman_step(x[offset + row], u[row], h[row], kind == _RECTIFIED_ELMAN)
        outputs[step] = h


_FEWEST = 32
"""Outputs at least for which packing a linear layer pays."""


def pack_network(
    network: Network, packing: Packing, weight_cache: PackedWeightCache | None = None
) -> Network:
    """A network with packed weights, computing the same without gradients; later training does not change it.

    LSTM, GRU, Elman and linear layers and the full softmax are packed; all other modules share their parameters
    with the network.

    Args:
        network: in evaluation mode and single precision on a CPU; it is not changed.
        packing: of the weights; it takes three or four more bytes a weight.
        weight_cache: cache of packed weights; None for this process's memory.
    """
    weight_cache = (weight_cache or PrivateWeightCache()).section(packing.layout)
    counterparts = {
        id(module): counterpart
        for name, module in network.named_modules()
        if (counterpart := _packed_module(module, packing, weight_cache.section(name))) is not None
    }
    shared = {id(part): part for part in (*network.parameters(), *network.buffers())}
    served = copy.deepcopy(network, {**shared, **counterparts})
    served.accepts_any_shape = True
    return served.eval()


def _packed_module(module: nn.Module, packing: Packing, weight_cache: PackedWeightCache) -> nn.Module | None:
    """The packed counterpart of a module; None if it has none."""
    if isinstance(module, (LSTM, GRU, Elman)):
        return PackedCell(module, packing, weight_cache)
    if isinstance(module, Softmax):
        return PackedSoftmax(module, packing, weight_cache)
    if (
        isinstance(module, nn.Linear)
        and module.out_features >= _FEWEST
        and module.in_features <= MAX_SPLIT_WIDTH
    ):
        return PackedLinear(module, packing, weight_cache)
    return None
