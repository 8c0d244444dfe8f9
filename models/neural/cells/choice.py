"""From a configuration to a layer."""

from models.neural.cells.cell import Cell
from models.neural.cells.gru import GRU
from models.neural.cells.lstm import LSTM
from models.neural.config import NetworkConfig


def cell_of(config: NetworkConfig, input_size: int) -> Cell:
    """A layer of the configured kind that reads vectors of a size."""
    if config.cell == "gru":
        return GRU(input_size, config.hidden_size, weight_drop=config.weight_drop)
    return LSTM(
        input_size, config.hidden_size, forget_bias=config.forget_bias, weight_drop=config.weight_drop
    )
