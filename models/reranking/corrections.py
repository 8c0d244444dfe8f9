"""Corrections of systematic errors: phrases that a recogniser writes, and what was said.

A correction replaces 1 to 4 words by 0 to 4 words. Its log-odds say how much more often they had
to be replaced than kept, in lists with references. Each candidate is corrected in a single pass, so a
correction never applies to the result of another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field

from models.arrays import Int64s
from models.checkpoint.documents import StoredDocument
from models.errors import FormatError, InputError, check_range
from models.files import collapse_spaces, count_words, split_words
from models.reranking.candidates import Candidate, CandidateList

MAX_PHRASE_WORDS = 4
MAX_PHRASE_CHARS = 256
MAX_LOG_ODDS = 100.0
MAX_CORRECTIONS = 5000
"""Maximum corrections of a table."""

MAX_CORRECTED_CANDIDATES = 10
"""Corrected candidates of a list, the first ones; bounds the time of long lists."""

MAX_VARIANTS = 3
"""Maximum corrected texts of a candidate."""

MAX_CORRECTED_WORDS = 200
"""Maximum words of a corrected text; longer ones stay unchanged."""

_CONTROL_TOKENS = 3
"""Tokens of a text besides at most one per byte: `<s>`, `</s>`, a space before it."""

_MAX_PER_PHRASE = 8
"""Maximum corrections considered for a phrase, by log-odds."""

_MAX_MATCHES = 32
"""Maximum places considered in a text, by log-odds."""

_MAX_PATHS = 16
"""Maximum combinations of corrections that are compared."""


_Phrase = Annotated[
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

    heard: _Phrase
    written: _Phrase
    log_odds: _LogOdds
    lists: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, slots=True)
class CorrectedCandidate(Candidate):
    """Candidate made from another, with its given features.

    Attributes:
        origin: index of the other candidate in its list.
        corrections: corrections from left to right, at least one.
    """

    origin: int = 0
    corrections: tuple[PhraseCorrection, ...] = ()


def corrections_of(candidate: Candidate) -> tuple[PhraseCorrection, ...]:
    """Return the corrections that made a candidate; none for one of the first pass."""
    return candidate.corrections if isinstance(candidate, CorrectedCandidate) else ()


def sum_log_odds(corrections: Iterable[PhraseCorrection]) -> float:
    """Sum the log-odds of corrections."""
    return sum((correction.log_odds for correction in corrections), 0.0)


def origins_of(candidates: Sequence[Candidate]) -> Int64s:
    """Return the index of each one's original candidate, or its own [C]."""
    origins = [
        candidate.origin if isinstance(candidate, CorrectedCandidate) else index
        for index, candidate in enumerate(candidates)
    ]
    return np.array(origins, np.int64)


class _Match(NamedTuple):
    """A correction of the words from `begin` to before `end`."""

    begin: int
    end: int
    correction: PhraseCorrection


_Path: TypeAlias = tuple[float, tuple[_Match, ...]]
"""Sum of log-odds of matches without overlap, and the matches from left to right."""


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

    def correct(self, text: str) -> list[tuple[str, tuple[PhraseCorrection, ...]]]:
        """Return corrected texts with their corrections, by descending log-odds.

        The time is bounded: there are at most `MAX_VARIANTS` texts, and none for texts of more than
        `MAX_CORRECTED_WORDS` words.
        """
        words = split_words(text)
        if len(words) > MAX_CORRECTED_WORDS:
            return []
        texts: dict[str, tuple[PhraseCorrection, ...]] = {}
        for _, matches in _best_paths(self._matches(words)):
            replaced = [*words]
            for begin, end, correction in reversed(matches):
                replaced[begin:end] = [correction.written]
            result = " ".join(filter(None, replaced))
            if result:
                texts.setdefault(result, tuple(match.correction for match in matches))
            if len(texts) == MAX_VARIANTS:
                break
        return list(texts.items())

    def _matches(self, words: Sequence[str]) -> list[_Match]:
        """Find the phrases that have corrections, in order of their first words."""
        return [
            _Match(begin, end, correction)
            for begin, first in enumerate(words)
            for end in range(begin + 1, min(begin + self._most_words.get(first, 0), len(words)) + 1)
            for correction in self._by_phrase.get(" ".join(words[begin:end]), ())
        ]


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


def _best_paths(matches: list[_Match]) -> list[_Path]:
    """Combine matches, in order, without overlaps; greatest log-odds first."""
    if len(matches) > _MAX_MATCHES:
        best = nlargest(_MAX_MATCHES, matches, key=lambda match: match.correction.log_odds)
        matches = sorted(best, key=attrgetter("begin"))
    paths: list[_Path] = [(0.0, ())]
    for match in matches:
        paths += [
            (log_odds + match.correction.log_odds, (*before, match))
            for log_odds, before in paths
            if not before or before[-1].end <= match.begin
        ]
        if len(paths) > _MAX_PATHS:
            paths = nlargest(_MAX_PATHS, paths, key=itemgetter(0))
    return sorted((path for path in paths if path[1]), key=itemgetter(0), reverse=True)


def with_corrections(one: CandidateList, table: CorrectionTable, max_tokens: int) -> CandidateList:
    """Append corrected candidates with texts new to the list.

    Lists with a continuation, whose candidates are contexts, stay unchanged. Texts that may have more than
    `max_tokens` tokens with their context, by their bytes, are left out.
    """
    if one.continuation is not None:
        return one
    seen = {candidate.text for candidate in one.candidates}
    max_bytes = max_tokens - _num_bytes(one.context) - _CONTROL_TOKENS
    made: list[Candidate] = []
    for index, candidate in enumerate(one.candidates[:MAX_CORRECTED_CANDIDATES]):
        for text, corrections in table.correct(candidate.text):
            if text not in seen and _num_bytes(text) <= max_bytes:
                seen.add(text)
                made.append(CorrectedCandidate(text, candidate.features, index, corrections))
    return replace(one, candidates=(*one.candidates, *made)) if made else one


def _num_bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


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
