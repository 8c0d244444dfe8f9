"""Forward passes as serving needs them: no gradients, few distinct shapes, the faster kernel.

oneDNN, which computes LSTM layers on CPUs, keeps a compiled primitive for every shape it has met
(pytorch issue 41486), so memory would grow with every new batch size: rows are padded to one of
a few counts, and ragged ends are read in stretches of powers of two. It also repacks the weights
at every call, which a single step of few rows does not repay: there the plain cell is two to five
times faster. Networks that take any shape (`packed`) need none of this.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from models.arrays import TokenIds
from models.neural.body import Hidden
from models.neural.network import Network

PLAIN_CELL_ROWS = 32
"""Up to so many rows, one step by the plain cell beats the layer's kernel on a CPU."""


def advance_one(network: Network, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Consume one token a row.

    Args:
        network: in evaluation mode.
        tokens: ids [B].
        hidden: what is carried; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    if tokens.is_cuda or (tokens.shape[0] > PLAIN_CELL_ROWS and not network.accepts_any_shape):
        return advance_many(network, tokens[None], hidden)[1]
    return network.step(tokens, hidden)


def advance_many(network: Network, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens a row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller keeps the number of different T small.
        hidden: what is carried; it is not changed.

    Returns:
        The body's outputs [T, B, W] and what is carried on.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # cuDNN takes no other
    rows = tokens.shape[1]
    extra = 0 if tokens.is_cuda or network.accepts_any_shape else _padded_row_count(rows) - rows
    if extra:
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.shape[0], extra)], dim=1)
        hidden = tuple(
            torch.cat([part, part.new_zeros(len(part), extra, part.shape[2])], 1) for part in hidden
        )
    outputs, after = network(tokens, hidden)
    if extra:
        outputs, after = outputs[:, :rows], tuple(part[:, :rows].contiguous() for part in after)
    return outputs, after


def advance_ragged(network: Network, tokens: Tensor, lengths: Tensor, hidden: Hidden) -> Hidden:
    """Consume as many tokens of each row as its length says.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B].
        lengths: [B], on the CPU, descending, each in [1, T].
        hidden: what is carried; it is not changed.

    Returns:
        What is carried on, of the same shapes.
    """
    after = tuple(part.clone() for part in hidden)
    any_width = tokens.is_cuda or network.accepts_any_shape
    for start, end, alive in ragged_segments(lengths.numpy(), any_width=any_width, most=len(tokens)):
        before = tuple(part[:, :alive] for part in after)
        stretch = tokens[start:end, :alive]
        hidden_after = (
            advance_one(network, stretch[0], before)
            if end - start == 1
            else advance_many(network, stretch, before)[1]
        )
        for part, changed in zip(after, hidden_after, strict=True):
            part[:, :alive] = changed
    return after


def ragged_segments(lengths: TokenIds, *, any_width: bool, most: int) -> Iterator[tuple[int, int, int]]:
    """Pieces of rows of these lengths [B], descending, each in [1, T], in none of which a row ends before its end.

    Args:
        lengths: of the rows.
        any_width: False if there are to be few different widths: powers of two.
        most: tokens of a row in one piece.

    Yields:
        The first column, the one after the last, and how many rows, the first ones, go through it.
    """
    start = 0
    for end in np.unique(lengths).tolist():  # ascending: at each end, some rows stop
        alive = int(np.count_nonzero(lengths >= end))
        while start < end:
            left = min(end - start, most)
            width = left if any_width else 1 << (left.bit_length() - 1)
            yield start, start + width, alive
            start += width


def _padded_row_count(rows: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …: at most a half more, a sixth on average."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
