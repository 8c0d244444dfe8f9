"""From a network to the same with its large matrices packed."""

import copy

from torch import nn

from models.neural.cells.elman import Elman
from models.neural.cells.gru import GRU
from models.neural.cells.lstm import LSTM
from models.neural.network import Network
from models.neural.output.softmax import Softmax
from models.neural.tiled.cells import TiledCell
from models.neural.tiled.linear import TiledLinear
from models.neural.tiled.matrix import LARGEST_WIDTH, LAYOUT
from models.neural.tiled.softmax import TiledSoftmax
from models.neural.tiled.tiles import COLUMNS
from models.shelf import OwnShelf, Shelf


def tiled(network: Network, shelf: Shelf | None = None) -> Network:
    """A network that computes the same without gradients, as its weights are now, in three bytes more a weight.

    LSTM, GRU, Elman and linear layers and the full softmax are packed; all else is computed as before. What is
    not packed shares its parameters with the network.

    Args:
        network: in evaluation mode and single precision on a CPU; it is not changed.
        shelf: where packed weights lie; None for this process's memory.
    """
    shelf = (shelf or OwnShelf()).section(LAYOUT)
    counterparts = {
        id(module): counterpart
        for name, module in network.named_modules()
        if (counterpart := _counterpart(module, shelf.section(name))) is not None
    }
    shared = {id(part): part for part in (*network.parameters(), *network.buffers())}
    served = copy.deepcopy(network, {**shared, **counterparts})
    served.takes_any_shape = True
    return served.eval()


def _counterpart(module: nn.Module, shelf: Shelf) -> nn.Module | None:
    """What a module becomes; None if it stays."""
    if isinstance(module, (LSTM, GRU, Elman)):
        return TiledCell(module, shelf)
    if isinstance(module, Softmax):
        return TiledSoftmax(module, shelf)
    if (
        isinstance(module, nn.Linear)
        and module.out_features >= COLUMNS
        and module.in_features <= LARGEST_WIDTH
    ):
        return TiledLinear(module, shelf)
    return None
