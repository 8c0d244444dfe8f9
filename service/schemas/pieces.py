"""Long replies written in chunks of bounded time: other requests run between."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from service.schemas.replies import to_json

T = TypeVar("T")
ENTRIES_PER_PIECE = 512
"""Reply entries per chunk; other requests run between chunks."""


def json_pieces(
    reply: Any, name: str, items: Sequence[T], write: Callable[[T], Any], *, entries: int
) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply with one empty list.
        name: name of the list.
        items: items of the list.
        write: converts an item to a list element; all have the same type.
        entries: number of entries in all elements, such as candidates of all contexts.
    """
    return _pieces(to_json(reply), (name, items, write, entries))


def reply_pieces(reply: Any, **entries: int) -> Iterator[bytes]:
    """Yield a reply as JSON in UTF-8, in chunks of bounded time.

    Args:
        reply: reply, a dataclass.
        entries: number of entries in each long list, such as suggestions of all issues, in the order
            of the reply's fields.
    """
    lists = ((name, getattr(reply, name), lambda item: item, number) for name, number in entries.items())
    return _pieces(to_json(replace(reply, **{name: [] for name in entries})), *lists)


def _pieces(rest: bytes, *lists: tuple[str, Sequence[Any], Callable[[Any], Any], int]) -> Iterator[bytes]:
    """Yield JSON with some empty lists, and their items; see `json_pieces`."""
    for name, items, write, entries in lists:
        before, rest = rest.split(f'"{name}":[]'.encode(), 1)
        piece = before + f'"{name}":['.encode()
        batch_size = max(1, ENTRIES_PER_PIECE * len(items) // max(entries, 1))
        for begin in range(0, len(items), batch_size):
            if begin:
                yield piece + b","
                piece = b""
            results = [write(item) for item in items[begin : begin + batch_size]]
            kind: Any = type(results[0])
            piece += to_json(results, list[kind])[1:-1]
        rest = piece + b"]" + rest
    yield rest
