"""Unicode forms of texts: composition, compatibility, case."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate, count, pairwise
from typing import Literal

import numpy as np

from models.arrays import Int64s
from models.errors import InputError

Writing = Literal["asis", "sentence-case", "sentence"]
"""Form of a sentence for a model: as is, capitalised, or also with a full stop."""

TEXT_FORMS = ("none", "nfc", "nfkc", "casefold")

_MAX_UNSORTED = 1000
"""Maximum characters of a text whose marks `unicodedata` sorts, in quadratic time: 2 ms."""

_MARKS = re.compile(r"(?:[^\w\s]|[\uff9e\uff9f]){32}")
"""A run of characters that may be combining marks, longer than in any script."""


def written(text: str, form: Writing) -> str:
    """Return a text in a form; a full stop is added after a letter or digit only."""
    if form == "asis" or not text.strip():
        return text
    start = len(text) - len(text.lstrip())
    text = text[:start] + text[start].upper() + text[start + 1 :]
    return text + "." if form == "sentence" and text[-1].isalnum() else text


class Normaliser:
    """Converter of texts to one Unicode form and case; idempotent.

    Args:
        form: `none`; `nfc` or `nfkc`, Unicode's canonical or compatibility composition (UAX #15); `casefold`, NFKC of
            the case-folded NFKC, Unicode's compatibility caseless match (D146) in composed form. Unlike
            toNFKC_Casefold, it keeps ignorable characters such as the soft hyphen.
        lowercase: whether text is also lower-cased.

    Attributes:
        changes_case: True if it lower-cases or folds case.
        changes_text: True if it may change a text.

    Raises:
        InputError: the form is unknown.
    """

    def __init__(self, form: str, *, lowercase: bool) -> None:
        if form not in TEXT_FORMS:
            raise InputError.of("tokenizer.normalise", f"is {form!r}, it can be {', '.join(TEXT_FORMS)}")
        self.form = form
        self.changes_case = lowercase or form == "casefold"
        self.changes_text = lowercase or form != "none"
        self._composition: Literal["NFC", "NFKC"] = "NFC" if form == "nfc" else "NFKC"
        self._change_case = str.casefold if form == "casefold" else str.lower

    def __call__(self, text: str) -> str:
        """Return a normalised text."""
        if not self.changes_text:
            return text
        text = self.compose(text)
        return self.compose(self._change_case(text)) if self.changes_case else text

    def all(self, texts: Sequence[str]) -> Sequence[str]:
        """Return normalised texts."""
        return [self(text) for text in texts] if self.changes_text else texts

    def compose(self, text: str) -> str:
        """Return a text in its Unicode form, with its case as given."""
        if self.form == "none" or text.isascii():
            return text
        if len(text) > _MAX_UNSORTED and _MARKS.search(text):
            text = _sort_marks(text, "NFD" if self._composition == "NFC" else "NFKD")
        return unicodedata.normalize(self._composition, text)

    def offsets(self, text: str) -> Int64s:
        """Map each character of the normalised text, and its end, to an offset in the given text [N + 1].

        Characters composed, or replacing a single one, have the offset of the first.
        """
        read = self(text)
        if text.isascii() or read == text or (self.form == "none" and len(read) == len(text)):
            return np.arange(len(text) + 1)
        begins = [0]  # of the shortest parts that can be normalised one by one
        for at, one in enumerate(text[1:], start=1):
            if not one.isascii():
                if unicodedata.combining(one) or unicodedata.combining(self(one)[0]):
                    continue
                part = text[begins[-1] : at]
                if self.compose(part + one) != self.compose(part) + self.compose(one):
                    continue
            begins.append(at)
        found: list[int] = []
        for begin, end in pairwise([*begins, len(text)]):
            part = text[begin:end]
            characters = list(self(part))
            is_one_by_one = characters == list(map(self, part))
            found += range(begin, end) if is_one_by_one else [begin] * len(characters)
        return np.array([*found, len(text)])


def _sort_marks(text: str, decomposition: Literal["NFD", "NFKD"]) -> str:
    """Decompose a text and sort its combining marks, not in quadratic time."""
    decomposed = "".join(unicodedata.normalize(decomposition, character) for character in text)
    classes = list(map(unicodedata.combining, decomposed))
    bases = accumulate(not mark for mark in classes)
    return "".join(key[-1] for key in sorted(zip(bases, classes, count(), decomposed, strict=False)))
