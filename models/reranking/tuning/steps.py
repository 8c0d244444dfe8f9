"""Long computations in pieces, so that whoever runs them can do something else between, or give up."""

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_CHARACTERS_PER_STEP = 1 << 13
_CHARACTERS_PER_ITEM = 64
"""What even an empty item costs."""

Steps: TypeAlias = Generator[None, None, T]
"""A computation under way: it stops often, and returns its result."""


def run_steps(steps: Steps[T]) -> T:
    """Do all that is left of a computation."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def map_in_steps(
    items: Iterable[T], prepare: Callable[[T], R], *, size: Callable[[T], int]
) -> Steps[list[R]]:
    """Prepare each item, a bounded amount of text a step.

    Args:
        items: each with a context and a text, say.
        prepare: tokenises one.
        size: how many characters, ids or words it has.
    """
    prepared: list[R] = []
    read = 0
    for item in items:
        if read > _CHARACTERS_PER_STEP:
            read = 0
            yield
        read += size(item) + _CHARACTERS_PER_ITEM
        prepared.append(prepare(item))
    return prepared
