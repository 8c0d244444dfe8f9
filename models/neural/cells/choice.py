"""From a configuration to a layer."""

from models.neural.cells.cell import Cell
from models.neural.cells.elman import Elman
from models.neural.cells.gru import GRU
from models.neural.cells.lstm import LSTM
from models.neural.cells.mingru import MinGRU
from models.neural.config import NetworkConfig


def make_cell(config: NetworkConfig, input_size: int) -> Cell:
    """A layer of the configured kind that reads vectors of a size."""
    size = config.hidden_size
    if config.cell == "mingru":
        return MinGRU(input_size, size)
    weight_drop, orthogonal = config.weight_drop, config.orthogonal
    if config.cell == "elman":
        return Elman(
            input_size, size, activation=config.activation, weight_drop=weight_drop, orthogonal=orthogonal
        )
    if config.cell == "gru":
        return GRU(input_size, size, weight_drop=weight_drop, orthogonal=orthogonal)
    return LSTM(
        input_size, size, forget_bias=config.forget_bias, weight_drop=weight_drop, orthogonal=orthogonal
    )
