"""Running text to sentences, by rules a reader can check: blank lines, then end marks.

An end mark is `.`, `!` or `?`, perhaps followed by closing quotes or brackets, then white
space and something that can open a sentence. Common abbreviations and initials do not end
one. Good enough to cut prose for a language model; where it matters, give one sentence a
line instead.
"""

import re
from collections.abc import Iterable, Iterator

_CLOSING = "[\"'\u201d\u2019)\\]]*"
_OPENING = "[\"'\u201c\u2018(\\[]*"
_BOUNDARY = re.compile(rf"(?<=[.!?]){_CLOSING}(?P<space>\s+)(?={_OPENING}[A-Z0-9])")
_ABBREVIATION_END = re.compile(
    rf"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|vs|etc|e\.g|i\.e|cf|Fig|No|Vol|pp|approx)\.{_CLOSING}$"
)


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Runs of lines that are not blank, each joined to one string with single spaces."""
    block: list[str] = []
    for line in lines:
        words = line.split()
        if words:
            block.append(" ".join(words))
        elif block:
            yield " ".join(block)
            block = []
    if block:
        yield " ".join(block)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, in order; joined with spaces they are the paragraph again."""
    sentences: list[str] = []
    start = 0
    for match in _BOUNDARY.finditer(paragraph):
        end = match.start("space")
        # of all that stands before, a run of initials would take the square
        last_word = max(start, paragraph.rfind(" ", start, end))
        if not _ABBREVIATION_END.search(paragraph, last_word, end):
            sentences.append(paragraph[start:end])
            start = match.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences
