"""Bodies as they are read: line by line."""

import tracemalloc

import pytest

from service.schemas.quality import quality_items
from service.schemas.score import score_items
from service.schemas.wire import lines_of


@pytest.mark.parametrize("body", [b"", b"\n", b"a", b"a\n", b"a\n\n", b"\na\nb", b"a\nbc\nd\n"])
def test_lines_are_what_stands_between_line_feeds(body):
    assert list(lines_of(body)) == body.removesuffix(b"\n").split(b"\n")


@pytest.mark.parametrize("items_of", [score_items, quality_items])
def test_many_lines_are_not_cut_at_once(items_of):
    """A list of millions of short lines took many times the memory of the body."""
    body = b"ab\n" * 300_000
    tracemalloc.start()
    try:
        next(items_of(body))
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()
