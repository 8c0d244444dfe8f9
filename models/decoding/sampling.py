"""Drawing a token per row from a distribution, and taking the most probable one."""

from collections.abc import Sequence

import numpy as np

from models.arrays import FloatArray, TokenIds


def most_probable(log_probs: FloatArray) -> TokenIds:
    """The id of the largest entry of each row, [B]; of equal ones the smallest id."""
    return np.asarray(log_probs.argmax(axis=1), dtype=np.int64)


def sample(log_probs: FloatArray, generators: Sequence[np.random.Generator]) -> TokenIds:
    """Draw one id per row by inverting the cumulative distribution.

    Each row consumes one number of its own generator, so what a row draws does not depend
    on the rows beside it.

    Args:
        log_probs: [B, V], need not sum to one; at least one entry of a row is finite.
        generators: one a row.

    Returns:
        Ids [B], none of which has probability zero.
    """
    peak = log_probs.max(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp((log_probs - peak).astype(np.float64)), axis=1)
    ids = np.empty(len(generators), dtype=np.int64)
    for row, generator in enumerate(generators):
        mass = cumulative[row]
        found = int(np.searchsorted(mass, generator.random() * mass[-1], side="right"))
        # rounding may carry the draw to the very end, past the last possible token
        ids[row] = min(found, int(np.searchsorted(mass, mass[-1], side="left")))
    return ids
