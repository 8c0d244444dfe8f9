"""Long computations in pieces, so that whoever runs them can do something else between, or give up."""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A computation under way: it stops often, and returns its result."""


def finish(steps: Steps[T]) -> T:
    """Do all that is left of a computation."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
