"""From a network to the same with its large matrices packed."""

import copy

from torch import nn

from models.neural.cells.elman import Elman
from models.neural.cells.gru import GRU
from models.neural.cells.lstm import LSTM
from models.neural.network import Network
from models.neural.output.softmax import Softmax
from models.neural.packed.cells import PackedCell
from models.neural.packed.digit_matrix import MAX_SPLIT_WIDTH
from models.neural.packed.linear import PackedLinear
from models.neural.packed.matrix import Packing
from models.neural.packed.softmax import PackedSoftmax
from models.shelf import PackedWeightCache, PrivateWeightCache

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
