"""What callers hand over, checked before any kernel sees it."""

from typing import NamedTuple

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError


class TokenSpans(NamedTuple):
    """Rows of tokens as kernels walk along them.

    Attributes:
        tokens: of all rows, padding and all [B · T].
        begins: where each row begins [B].
        ends: where it ends, padding aside [B].
    """

    tokens: TokenIds
    begins: TokenIds
    ends: TokenIds


def token_spans(tokens: TokenIds, lengths: TokenIds, rows: int) -> TokenSpans:
    """Tokens [B, T], of which row b has lengths[b], of a state of so many rows.

    Raises:
        InvalidInputError: the shapes do not fit.
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.int64)
    lengths = np.ascontiguousarray(lengths, dtype=np.int64)
    check_shapes(tokens, lengths, rows)
    begins = np.arange(rows) * tokens.shape[1]
    return TokenSpans(tokens.reshape(-1), begins, begins + lengths)


def check_one_per_row(shape: tuple[int, ...], rows: int) -> None:
    """Tokens of this shape are one for each row of a state.

    Raises:
        InvalidInputError: they are not.
    """
    if shape != (rows,):
        raise InvalidInputError(
            f"tokens have the shape {list(shape)}, the state has {rows} rows", parameter="tokens"
        )


def check_shapes(tokens: TokenIds, lengths: TokenIds, rows: int) -> None:
    """Tokens are [B, T], lengths [B] and at most T.

    Raises:
        InvalidInputError: they are not.
    """
    if tokens.ndim != 2 or len(tokens) != rows or lengths.shape != (rows,):
        raise InvalidInputError(
            f"tokens have the shape {list(tokens.shape)} and lengths {list(lengths.shape)}; "
            f"for a state of {rows} rows they must be [{rows}, T] and [{rows}]",
            parameter="tokens",
        )
    if lengths.max(initial=0) > tokens.shape[1]:
        raise InvalidInputError(
            f"lengths go up to {lengths.max()}, tokens have {tokens.shape[1]} columns", parameter="lengths"
        )


def check_offsets(tokens: TokenIds, offsets: TokenIds, rows: int) -> None:
    """Tokens are [N]; offsets [B + 1] rise from 0 to N.

    Raises:
        InvalidInputError: they are not.
    """
    if tokens.ndim != 1 or offsets.shape != (rows + 1,):
        raise InvalidInputError(
            f"tokens have the shape {list(tokens.shape)} and offsets {list(offsets.shape)}; "
            f"for {rows} rows they must be [N] and [{rows + 1}]",
            parameter="offsets",
        )
    if offsets[0] != 0 or offsets[-1] != len(tokens) or (offsets[1:] < offsets[:-1]).any():
        raise InvalidInputError(f"offsets do not rise from 0 to {len(tokens)}", parameter="offsets")


def check_k(k: int, vocab_size: int) -> None:
    """K is in [1, V].

    Raises:
        InvalidInputError: it is not.
    """
    if not 1 <= k <= vocab_size:
        raise InvalidInputError(
            f"k is {k}, it can be 1 to {vocab_size}, the size of the vocabulary", parameter="k"
        )


def unknown_id_error(tokens: TokenIds, place: int, vocab_size: int) -> InvalidInputError:
    """The error for the token at a place of the batch."""
    return InvalidInputError(
        f"token {place} of the batch is {tokens.flat[place]}, but token ids are 0 to {vocab_size - 1}",
        parameter="tokens",
    )
