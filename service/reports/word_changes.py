"""A hypothesis with its errors shown: words that are wrong or too many, and words that it misses."""

from collections.abc import Iterator
from html import escape

from rapidfuzz.distance import Levenshtein


def mark_errors(text: str, reference: str) -> str:
    """A text as HTML: in `<mark>` what the reference does not have there, in `<s>` its words that are missed.

    A word that stands in the place of another is marked; the other is not shown.
    """
    return " ".join(_mark_words(text.split(), reference.split()))


def _mark_words(words: list[str], reference: list[str]) -> Iterator[str]:
    for change in Levenshtein.opcodes(words, reference):
        here = [escape(word) for word in words[change.src_start : change.src_end]]
        if change.tag == "equal":
            yield from here
        elif change.tag == "insert":
            yield from (f"<s>{escape(word)}</s>" for word in reference[change.dest_start : change.dest_end])
        else:
            yield from (f"<mark>{word}</mark>" for word in here)
