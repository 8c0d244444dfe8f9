"""Fitting of the error model's table on misspellings that people made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise

from rapidfuzz.distance import OSA, Prefix

from models.checking.error_table import END, START, ErrorTable
from models.checking.sentences import is_alphabetic
from models.errors import InvalidInputError


def fit_error_table(misspellings: Mapping[str, Sequence[str]], source_sha256: str) -> ErrorTable:
    """Count the edits of misspellings, without differences of case.

    Misspellings of words of letters at one edit are counted. Those at two edits only give the share of two edits, because
    their edits can be aligned in several ways; others are left out.

    Args:
        misspellings: misspellings by intended word.
        source_sha256: hash of their file.

    Raises:
        InvalidInputError: no misspelling has one edit.
    """
    edits, contexts, distances = Counter[str](), Counter[str](), Counter[int]()
    for right, wrongs in misspellings.items():
        intended = right.lower()
        for typed in map(str.lower, wrongs):
            if not is_alphabetic(intended) or not is_alphabetic(typed):
                continue
            distance = OSA.distance(typed, intended)
            distances[distance] += 1
            if distance == 1:
                edits[_edit(typed, intended)] += 1
                contexts.update(map("".join, pairwise(START + intended + END)))
    if not edits:
        raise InvalidInputError("no misspelling is a word one edit away from the intended one", parameter="pairs")
    return ErrorTable(
        one_edit=distances[1],
        two_edits=distances[2],
        edits=dict(sorted(edits.items())),
        contexts=dict(sorted(contexts.items())),
        source_sha256=source_sha256,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _edit(typed: str, intended: str) -> str:
    """Name the edit between two words one edit apart; of equal letters the last one is omitted or inserted."""
    same = Prefix.similarity(typed, intended)
    before = intended[same - 1] if same else START
    meant, wrong = intended[same:], typed[same:]
    if len(meant) != len(wrong):
        count = min(len(meant), len(wrong))
        size = (len(meant) - count, len(wrong) - count)
    else:
        size = (1, 1) if meant[1:] == wrong[1:] else (2, 2)
    return f"{before}{meant[: size[0]]}>{before}{wrong[: size[1]]}"
