"""Networks with packed matrices: recurrent layers with all steps in one kernel, gates included."""

import copy
from functools import partial
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor, nn

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
"""Inputs multiplied at once, so that the weights are read once for all of them."""

_MULTIPLE = 64
"""Each gate's rows are rounded up to a multiple of it."""

_LSTM, _GRU, _ELMAN, _RECTIFIED_ELMAN = range(4)


class PackedCell(Cell):
    """A recurrent layer, without a gradient; in a batch, a row's numbers do not depend on the rows beside it.

    Args:
        cell: an LSTM, a GRU or an Elman layer in single precision on a CPU; it is not changed.
        packing: how.
        shelf: where packed weights lie.
    """

    def __init__(self, cell: TorchCell, packing: Packing, shelf: PackedWeightCache) -> None:
        super().__init__()
        self.parts = cell.parts
        self.cell = cell
        self.size = cell.kernel.hidden_size
        self._kind, gates = _kind_of(cell)
        of_inputs, of_hidden, *biases = (
            partial(pad_gates, weight.detach().numpy(), gates, _MULTIPLE) for weight in cell.weights()
        )
        self._of_inputs = load_or_pack(shelf, "of_inputs", packing, of_inputs, biases[0])
        self._of_hidden = load_or_pack(shelf, "of_hidden", packing, of_hidden, biases[1])

    def forward(self, inputs: Tensor, carried: CellState) -> tuple[Tensor, CellState]:
        """Read T inputs a row: [T, B, I] to [T, B, H]."""
        vectors = inputs.detach().numpy()
        after = [part.detach().numpy().copy(order="C") for part in carried]
        outputs = np.empty((*vectors.shape[:2], self.size), np.float32)

        def work(rows: slice) -> None:
            some = np.ascontiguousarray(vectors[:, rows])
            outputs[:, rows] = self._read(some, after[0][rows], after[-1][rows])

        run_row_slices(work, vectors.shape[1])
        return torch.from_numpy(outputs), tuple(torch.from_numpy(part) for part in after)

    def step(self, inputs: Tensor, carried: CellState) -> CellState:
        """Read one input a row, [B, I]."""
        if len(inputs) < self._of_inputs.fewest:
            return self.cell.step(inputs, carried)
        return super().step(inputs, carried)

    def _read(self, inputs: FloatArray, h: FloatArray, c: FloatArray) -> FloatArray:
        """The outputs [T, B, H]; what is carried is written over. There is no c but in LSTM layers."""
        steps, batch, _ = inputs.shape
        outputs = np.empty((steps, batch, self.size), np.float32)
        together = min(steps, max(1, PACKED_INPUTS_PER_PRODUCT // max(1, batch)))
        if batch:
            read, fed_back = self._of_inputs.buffer_for(together * batch), self._of_hidden.buffer_for(batch)
            matrices = self._of_inputs, self._of_hidden
            _run_recurrent_layer(self._kind, *matrices, inputs, together, read, fed_back, h, c, outputs)
        return outputs


def _kind_of(cell: TorchCell) -> tuple[int, int]:
    """Which cell it is, and how many gates it has."""
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
    together: int,
    read: Any,
    fed_back: Any,
    h: Any,
    c: Any,
    outputs: Any,
) -> None:
    """Read T inputs a row.

    Args:
        kind: of the cell.
        of_inputs: G gates of P rows, P being H rounded up to a multiple of 64.
        of_hidden: likewise.
        inputs: [T, B, I].
        together: steps whose inputs are multiplied at once.
        read: room for them.
        fed_back: room for B outputs.
        h: outputs so far [B, H]; written over.
        c: memory cells [B, H]; written over by LSTM layers.
        outputs: written, [T, B, H].
    """
    steps, batch, width = inputs.shape
    vectors = inputs.reshape(steps * batch, width)
    x = np.empty((together * batch, len(of_inputs.bias)), np.float32)
    u = np.empty((batch, len(of_hidden.bias)), np.float32)
    for step in range(steps):
        place = step % together * batch
        if place == 0:
            count = min(together, steps - step) * batch
            write(of_inputs, vectors[step * batch : step * batch + count], read, 0)
            multiply(of_inputs, read, count, x)
        write(of_hidden, h, fed_back, 0)
        multiply(of_hidden, fed_back, batch, u)
        for row in range(batch):
            if kind == _LSTM:
                lstm_step(x[place + row], u[row], h[row], c[row])
            elif kind == _GRU:
                gru_step(x[place + row], u[row], h[row])
            else:
                elman_step(x[place + row], u[row], h[row], kind == _RECTIFIED_ELMAN)
        outputs[step] = h


_FEWEST = 32
"""Rows of a linear layer that are worth packing."""


def pack_network(network: Network, packing: Packing, shelf: PackedWeightCache | None = None) -> Network:
    """A network that computes the same without gradients, as its weights are now.

    LSTM, GRU, Elman and linear layers and the full softmax are packed; all else is computed as before. What is
    not packed shares its parameters with the network.

    Args:
        network: in evaluation mode and single precision on a CPU; it is not changed.
        packing: how; it takes three bytes more a weight, or four.
        shelf: where packed weights lie; None for this process's memory.
    """
    shelf = (shelf or PrivateWeightCache()).section(packing.layout)
    counterparts = {
        id(module): counterpart
        for name, module in network.named_modules()
        if (counterpart := _packed_module(module, packing, shelf.section(name))) is not None
    }
    shared = {id(part): part for part in (*network.parameters(), *network.buffers())}
    served = copy.deepcopy(network, {**shared, **counterparts})
    served.accepts_any_shape = True
    return served.eval()


def _packed_module(module: nn.Module, packing: Packing, shelf: PackedWeightCache) -> nn.Module | None:
    """What a module becomes; None if it stays."""
    if isinstance(module, (LSTM, GRU, Elman)):
        return PackedCell(module, packing, shelf)
    if isinstance(module, Softmax):
        return PackedSoftmax(module, packing, shelf)
    if (
        isinstance(module, nn.Linear)
        and module.out_features >= _FEWEST
        and module.in_features <= MAX_SPLIT_WIDTH
    ):
        return PackedLinear(module, packing, shelf)
    return None
