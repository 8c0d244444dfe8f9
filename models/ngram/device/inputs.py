"""Token ids from the host, or already on the device, checked before any kernel sees them."""

from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from models.arrays import TokenIds
from models.ngram.inputs import check_one_per_row, unknown_id_error

Ids: TypeAlias = TokenIds | Tensor
"""Token ids or row numbers in NumPy, or in torch on the model's device."""


class UnpaddedTokens(NamedTuple):
    """Tokens of B rows without padding, on the host.

    Attributes:
        tokens: ids of all rows, one after the other [N], each in [0, V).
        starts: where each row that is not empty begins [R].
        rows: which rows these are [R].
    """

    tokens: TokenIds
    starts: TokenIds
    rows: TokenIds


def to_device(ids: Ids, device: torch.device) -> Tensor:
    """Ids or row numbers, of any shape, as int64 on the device."""
    if isinstance(ids, Tensor):
        return ids.to(device, torch.int64)
    own = np.array(ids, dtype=np.int64)  # torch warns of arrays that may not be written to
    return torch.from_numpy(own).to(device)


def check_token_per_row(tokens: Ids, rows: int, vocab_size: int, device: torch.device) -> Tensor:
    """One token for each row [B], int64, on the device.

    To look at ids that are on a device already, the host has to wait for it.

    Raises:
        InvalidInputError: their number is not that of the rows, or an id is outside the vocabulary.
    """
    if not isinstance(tokens, Tensor):
        tokens = np.asarray(tokens, dtype=np.int64)
    check_one_per_row(tuple(tokens.shape), rows)
    outside = (tokens < 0) | (tokens >= vocab_size)
    if outside.any():
        _refuse(_to_host(tokens), _to_host(outside), vocab_size)
    return to_device(tokens, device)


def unpad(tokens: TokenIds, counts: npt.NDArray[np.bool_], vocab_size: int) -> UnpaddedTokens:
    """The tokens that count, of [B, T]; those of a row lie side by side.

    Raises:
        InvalidInputError: one of them is outside the vocabulary.
    """
    outside = counts & ((tokens < 0) | (tokens >= vocab_size))
    if outside.any():
        _refuse(tokens, outside, vocab_size)
    lengths = counts.sum(axis=1)
    rows = np.flatnonzero(lengths)
    return UnpaddedTokens(tokens[counts], np.cumsum(lengths[rows]) - lengths[rows], rows)


def _to_host(array: npt.NDArray[Any] | Tensor) -> npt.NDArray[Any]:
    return array.cpu().numpy() if isinstance(array, Tensor) else array


def _refuse(tokens: TokenIds, outside: npt.NDArray[np.bool_], vocab_size: int) -> NoReturn:
    """Name the first token that is outside the vocabulary."""
    raise unknown_id_error(tokens, int(outside.argmax()), vocab_size)
