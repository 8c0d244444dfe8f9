"""What callers hand over, checked before any kernel sees it."""

from models.arrays import TokenIds
from models.errors import InvalidInputError


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


def outside_vocabulary(tokens: TokenIds, place: int, vocab_size: int) -> InvalidInputError:
    """The error for the token at a place of the batch."""
    return InvalidInputError(
        f"token {place} of the batch is {tokens.flat[place]}, but token ids are 0 to {vocab_size - 1}",
        parameter="tokens",
    )
