"""Forward passes as serving needs them: no gradients, few distinct shapes, the faster kernel.

oneDNN, which computes LSTM layers on CPUs, keeps a compiled primitive for every shape it has met
(pytorch issue 41486), so memory would grow with every new batch size: rows are padded to one of
a few counts. It also repacks the weights at every call, which a single step of few rows does not
repay: there the plain cell is two to five times faster.
"""

import torch
from torch import Tensor, nn

from models.neural.network import Hidden, RecurrentNetwork

PLAIN_CELL_ROWS = 32
"""Up to so many rows, one step by the plain cell beats the layer's kernel on a CPU."""

_CELL_WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def step(network: RecurrentNetwork, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Consume one token a row.

    Args:
        network: in evaluation mode.
        tokens: ids [B].
        hidden: what is carried, each [layers, B, hidden]; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    if tokens.is_cuda or tokens.shape[0] > PLAIN_CELL_ROWS:
        return run(network, tokens[None], hidden)[1]
    below = network.embedding(tokens)  # [B, width of the layer below]
    layers: list[Hidden] = []
    for layer in range(network.config.layers):
        weights = [getattr(network.recurrent, f"{name}_l{layer}") for name in _CELL_WEIGHTS]
        if network.config.cell == "lstm":
            layers.append(torch.lstm_cell(below, [part[layer] for part in hidden], *weights))
        else:
            layers.append((torch.gru_cell(below, hidden[0][layer], *weights),))
        below = layers[-1][0]
    return tuple(torch.stack(parts) for parts in zip(*layers, strict=True))


def run(network: RecurrentNetwork, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens a row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller keeps the number of different T small.
        hidden: what is carried, each [layers, B, hidden]; it is not changed.

    Returns:
        The top layer's outputs [T, B, hidden] and what is carried on.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # cuDNN takes no other
    rows = tokens.shape[1]
    extra = 0 if tokens.is_cuda else _rounded_up(rows) - rows
    if extra:
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.shape[0], extra)], dim=1)
        hidden = tuple(
            torch.cat([part, part.new_zeros(len(part), extra, part.shape[2])], 1) for part in hidden
        )
    outputs, after = network(tokens, hidden)
    if extra:
        outputs, after = outputs[:, :rows], tuple(part[:, :rows].contiguous() for part in after)
    return outputs, after


def run_ragged(network: RecurrentNetwork, tokens: Tensor, lengths: Tensor, hidden: Hidden) -> Hidden:
    """Consume as many tokens of each row as its length says.

    Packed sequences take torch's own kernel, which compiles nothing for a shape.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B].
        lengths: [B], on the CPU, descending, each in [1, T].
        hidden: what is carried, each [layers, B, hidden]; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # cuDNN takes no other
    packed = nn.utils.rnn.pack_padded_sequence(network.embedding(tokens), lengths)
    if network.config.cell == "lstm":
        after: Hidden = network.recurrent(packed, hidden)[1]
        return after
    return (network.recurrent(packed, hidden[0])[1],)


def _rounded_up(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …: at most a half more, a sixth on average."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
