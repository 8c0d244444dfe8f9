r"""The head of an ARPA file: comments, `\data\`, and how many n-grams of each order follow."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from models.ngram.arpa.source import ArpaSource, quote_bytes

MAX_ARPA_ORDER = 20
MAX_COUNT = 2**31 - 1
COMMENT_MARK = "# gramophone:"
"""Begins a comment that says how this file writes what ARPA has no way to say."""

LOG_ZERO_OPTION = "log-zero"
"""In that comment: the back-off weight that stands for minus infinity."""

BACKWARD_OPTION = ("direction", "backward")
"""In that comment: words are predicted from those after them."""

DATA_HEADING, END_HEADING = b"\\data\\", b"\\end\\"
_IARPA = b"iARPA"  # looks like ARPA from the next line on, but its numbers mean something else
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_COMMENT_BYTES = 1 << 20
_COUNT = re.compile(rb"ngram\s+(\d{1,30})\s*=\s*(\d{1,30})")
_OPTION = re.compile(r"(\S+?)=(\S+)")


class ArpaHeader(NamedTuple):
    """What the head of a file says.

    Attributes:
        counts: how many n-grams there are, by order from 1.
        options: keys and values of our own comment, if there is one.
    """

    counts: tuple[int, ...]
    options: Mapping[str, str]


def section_heading(order: int) -> bytes:
    """The line before the n-grams of an order."""
    return b"\\%d-grams:" % order


def read_header(source: ArpaSource) -> ArpaHeader:
    """Read up to the heading of the unigrams, which is used up.

    Raises:
        FormatError: it is no ARPA file, or lists orders or counts that cannot be.
    """
    options = _find_data(source)
    counts: list[int] = []
    while (text := source.read_line()) != section_heading(1):
        if text is None:
            source.fail_ended(section_heading(1).decode())
        if not text:
            continue
        line = source.line - 1
        match = _COUNT.fullmatch(text)
        if match is None:
            source.fail(
                f"{quote_bytes(text)} stands where a line such as ngram 1=1000 or \\1-grams: is due",
                line=line,
            )
        counts.append(_checked_count(source, line, len(counts) + 1, *map(int, match.groups())))
    if not counts:
        source.fail(
            "no line such as ngram 1=1000 says how many n-grams of which orders there are",
            line=source.line - 1,
        )
    return ArpaHeader(tuple(counts), options)


def _find_data(source: ArpaSource) -> dict[str, str]:
    options: dict[str, str] = {}
    passed = 0
    while True:
        text = source.read_line()
        if text is None or text == _IARPA or passed > _MOST_COMMENT_BYTES:
            source.refuse()
        text = text.removeprefix(_BYTE_ORDER_MARK)
        if text == DATA_HEADING:
            return options
        if text.startswith(COMMENT_MARK.encode()):
            options = dict(_OPTION.findall(text.decode("utf-8", "replace").removeprefix(COMMENT_MARK)))
        passed += len(text) + 1


def _checked_count(source: ArpaSource, line: int, expected: int, order: int, count: int) -> int:
    if order > MAX_ARPA_ORDER:
        source.fail(
            f"the file has n-grams of order {order}, orders up to {MAX_ARPA_ORDER} are supported", line=line
        )
    if order != expected:
        source.fail(f"order {order} is listed where order {expected} is due", line=line)
    if count > MAX_COUNT:
        source.fail(
            f"there are {count} n-grams of order {order}, it says; at most {MAX_COUNT} are supported",
            line=line,
        )
    return count
