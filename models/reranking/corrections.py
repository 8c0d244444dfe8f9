"""Corrections of systematic errors: phrases that a recogniser writes, and what was said."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from models.checkpoint.documents import StoredDocument
from models.errors import FormatError, InputError, check_range
from models.files import collapse_spaces, count_words, split_words
from models.reranking.proposals import CORRECTION, Proposal

MAX_PHRASE_WORDS = 4
MAX_PHRASE_CHARS = 256
MAX_LOG_ODDS = 100.0
MAX_CORRECTIONS = 5000
"""Maximum corrections of a table."""

_MAX_PER_PHRASE = 8
"""Maximum corrections considered for a phrase, by log-odds."""


CorrectedPhrase = Annotated[
    str,
    AfterValidator(collapse_spaces),
    Field(json_schema_extra={"maxLength": MAX_PHRASE_CHARS}),
]
_LogOdds = Annotated[float, Field(json_schema_extra={"minimum": -MAX_LOG_ODDS, "maximum": MAX_LOG_ODDS})]
"""Types with bounds that `CorrectionTable` checks, not pydantic."""


class PhraseCorrection(StoredDocument):
    """Replacement of a phrase; words are separated by single spaces. `CorrectionTable` checks its limits.

    Attributes:
        heard: phrase that the first pass writes, 1 to 4 words.
        written: phrase that replaces it, up to 4 words; may be empty.
        log_odds: natural logarithm of how often the phrase was replaced so, relative to how often it was kept.
        lists: number of tuning lists with this replacement; 0 for one added by hand.
    """

    heard: CorrectedPhrase
    written: CorrectedPhrase
    log_odds: _LogOdds
    lists: Annotated[int, Field(ge=0)] = 0


class CorrectionTable:
    """Corrections by the phrase that they replace.

    Args:
        corrections: the corrections, at most `MAX_CORRECTIONS`.

    Raises:
        InputError: there are too many corrections, or one is outside the limits or given twice.
    """

    def __init__(self, corrections: Sequence[PhraseCorrection] = ()) -> None:
        if len(corrections) > MAX_CORRECTIONS:
            raise InputError.of(
                "corrections", f"has {len(corrections)} entries; at most {MAX_CORRECTIONS} are accepted"
            )
        self._by_phrase: dict[str, list[PhraseCorrection]] = {}
        self._most_words: dict[str, int] = {}  # of the phrases with this first word
        seen: set[tuple[str, str]] = set()
        for number, one in enumerate(corrections):
            _check_correction(one, f"corrections[{number}]")
            pair = one.heard, one.written
            if pair in seen:
                raise InputError.of(
                    f"corrections[{number}]", f"replaces {pair[0]!r} by {pair[1]!r}, as an earlier one"
                )
            seen.add(pair)
            self.add(one)

    def add(self, correction: PhraseCorrection) -> None:
        """Add a valid correction."""
        first, *others = split_words(correction.heard)
        self._most_words[first] = max(self._most_words.get(first, 0), 1 + len(others))
        found = self._by_phrase.setdefault(correction.heard, [])
        found.append(correction)
        found.sort(key=lambda one: -one.log_odds)
        del found[_MAX_PER_PHRASE:]

    def propose(self, words: Sequence[str]) -> Iterator[Proposal]:
        """Yield the corrections of phrases in words, in order of their first words."""
        for begin, first in enumerate(words):
            for end in range(begin + 1, min(begin + self._most_words.get(first, 0), len(words)) + 1):
                for one in self._by_phrase.get(" ".join(words[begin:end]), ()):
                    yield Proposal(begin, end, one.written, CORRECTION, one.log_odds, one.log_odds)


def _check_correction(correction: PhraseCorrection, place: str) -> None:
    for name, phrase, least in (("heard", correction.heard, 1), ("written", correction.written, 0)):
        num_words, where = count_words(phrase), f"{place}.{name}"
        if not least <= num_words <= MAX_PHRASE_WORDS or len(phrase) > MAX_PHRASE_CHARS:
            raise InputError.of(
                where,
                f"has {num_words} words and {len(phrase)} characters; it must have from {least} to "
                f"{MAX_PHRASE_WORDS} words, and at most {MAX_PHRASE_CHARS} characters",
            )
    if correction.heard == correction.written:
        raise InputError.of(f"{place}.written", f"is {correction.written!r}, the same as heard")
    check_range(f"{place}.log_odds", correction.log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS)


_COLUMNS = tuple(PhraseCorrection.model_fields)


def write_table(corrections: Iterable[PhraseCorrection]) -> str:
    """Return corrections as lines of tab-separated values, with a header."""
    rows = [map(str, correction.model_dump().values()) for correction in corrections]
    return "".join("\t".join(row) + "\n" for row in (_COLUMNS, *rows))


def read_table(path: Path) -> list[PhraseCorrection]:
    """Read corrections from a UTF-8 file, as `write_table` writes it.

    Raises:
        FormatError: the file cannot be read, the header or a line is invalid, or a correction exceeds its
            limits.
    """
    try:
        header, *lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, f"cannot be read: {getattr(error, 'strerror', 'it is not UTF-8')}") from None
    if tuple(header.split("\t")) != _COLUMNS:
        columns = ", ".join(_COLUMNS)
        raise FormatError(path, f"line 1 is {header[:80]!r}; it must be {columns}, separated by tabs")
    rows = []
    for number, line in enumerate(lines, start=2):
        try:
            row = dict(zip(_COLUMNS, line.split("\t"), strict=True))
            rows.append(PhraseCorrection.model_validate(row, strict=False))  # numbers are strings
        except ValueError:  # also pydantic's
            problem = f"line {number} is {line[:80]!r}; it must be two phrases and two numbers"
            raise FormatError(path, f"{problem}, separated by tabs") from None
    try:
        CorrectionTable(rows)
    except InputError as error:
        raise FormatError(path, str(error)) from None
    return rows
