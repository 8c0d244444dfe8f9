"""What may be done to texts before errors are counted: by name, so that a figure can say it."""

import unicodedata
from collections.abc import Callable

UNCHANGED = "none"


class _WithoutPunctuation(dict[int, int | None]):
    """A table for `str.translate` that looks a character up in Unicode's when it is first met."""

    def __missing__(self, character: int) -> int | None:
        kept = None if unicodedata.category(chr(character)).startswith("P") else character
        self[character] = kept
        return kept


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


def _lower_unpunctuated(text: str) -> str:
    return text.lower().translate(_WITHOUT_PUNCTUATION)


NORMALISERS: dict[str, Callable[[str], str]] = {
    UNCHANGED: str,
    "lower": str.lower,
    "lower-unpunctuated": _lower_unpunctuated,
}
"""`lower-unpunctuated` also takes away all of Unicode's punctuation, so that `don't` becomes `dont`."""
