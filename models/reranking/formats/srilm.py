"""SRILM's three formats of n-best lists, each with one list per file.

- its own: `ascore lscore nwords w1 w2 …`, acoustic and language model scores as logarithms to base
  10;
- `NBestList1.0` of the Decipher recogniser: `(score) w1 w2 …`, one composite score;
- `NBestList2.0`: `(score) w1 ( st: 0.1 et: 0.4 g: -52 a: -318 ) w2 …`, with times, language model
  (g) and acoustic (a) scores of every word. Phones and HMM states among the words are dropped, as
  in SRILM: their times lie within the word before, or their names end in a hyphen and a digit.

Decipher's scores are bytelogs: logarithms to base 1.0001 divided by 1024, so 1024 / 10000.5 =
0.1024 of a natural logarithm, rounded to integers when written. All become natural logarithms:
`am`, `old_lm`, the composite `score`; `nwords` remains a count. Sentence boundaries and pauses
(`-pau-`) are dropped.

Sources: SRILM's nbest-format(5), lm/src/NBest.cc (`NBestHyp::parse`), lm/src/Prob.h
(`BytelogToLogP`).
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePath

from models.errors import InputError
from models.files import collapse_spaces, split_words
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    SourceLines,
    after_errors,
    format_number,
    is_decimal_number,
    parse_lines,
    parse_number,
    shorten,
    unpacked_name,
)

BYTELOG = 1024 / 10000.5
"""One bytelog as a natural logarithm."""

_HEADER = re.compile(r"NBestList([0-9])\.[0-9]+\s*")
_COMPOSITE = re.compile(r"\((.*)\)")
_HMM_STATE = re.compile(r".*-[0-9]", re.DOTALL)
_FIELDS_PER_WORD = 11
_WORD_LABELS = {1: "(", 2: "st:", 4: "et:", 6: "g:", 8: "a:", 10: ")"}
_BOUNDARIES, _PAUSE = ("<s>", "</s>"), "-pau-"

_FEATURES = {
    "srilm": {"am", "old_lm", "nwords"},
    "nbestlist1.0": {"score"},
    "nbestlist2.0": {"score", "am", "old_lm"},
}


def read(lines: SourceLines) -> Iterator[ListOrBadLine]:
    """Read the list of a file, in any of the three formats; its name is the file name."""
    candidates, waiting = list[Candidate](), list[BadLine]()
    version = None

    def parse(line: str) -> Candidate | None:
        nonlocal version
        if version is None and (header := _HEADER.fullmatch(line)):
            version = header[1]
            return None
        version = version or "0"
        if len(candidates) == MAX_LIST_CANDIDATES:
            raise InputError(f"a list has at most {MAX_LIST_CANDIDATES:,} candidates")
        return _candidate(line, version)

    for row in parse_lines(lines, parse):
        if isinstance(row, BadLine):
            yield from waiting
            waiting = [row]
        else:
            candidates.append(row[1])
    name = unpacked_name(PurePath(lines.source))
    yield from after_errors(waiting, CandidateList(name, "", tuple(candidates)) if candidates else None)


def _candidate(line: str, version: str) -> Candidate:
    first, *rest = split_words(line)
    composite = _COMPOSITE.fullmatch(first)
    if version == "0" and composite is None:
        return _parse_srilm_fields(first, rest)
    if version not in {"0", "1", "2"}:
        raise InputError(f"unknown version NBestList{version}")
    if composite is None:
        raise InputError(f"line starts with {shorten(first)!r}, not with a score in parentheses")
    score = BYTELOG * parse_number(composite[1], "the score")
    if version != "2":
        return Candidate(_text(rest), {"score": score})
    words, language, acoustic = _parse_scored_words(rest)
    return Candidate(_text(words), {"score": score, "am": BYTELOG * acoustic, "old_lm": BYTELOG * language})


def _parse_srilm_fields(first: str, rest: list[str]) -> Candidate:
    if len(rest) < 2:
        raise InputError(
            "line must start with the acoustic score, the language model score and the number of words"
        )
    return Candidate(
        _text(rest[2:]),
        {
            "am": parse_number(first, "the acoustic score") * math.log(10),
            "old_lm": parse_number(rest[0], "the language model score") * math.log(10),
            "nwords": parse_number(rest[1], "the number of words"),
        },
    )


def _parse_scored_words(fields: list[str]) -> tuple[list[str], float, float]:
    """Return the words, and the sums of their language model and acoustic scores in bytelogs."""
    if len(fields) % _FIELDS_PER_WORD:
        raise InputError("not every word is followed by ( st: … et: … g: … a: … )")
    words, language, acoustic, last_end_s = list[str](), 0.0, 0.0, -1.0
    for index in range(0, len(fields), _FIELDS_PER_WORD):
        word, *_ = entry = fields[index : index + _FIELDS_PER_WORD]
        if any(entry[i] != label for i, label in _WORD_LABELS.items()):
            raise InputError(f"the word {shorten(word)!r} is not followed by ( st: … et: … g: … a: … )")
        start_s, end_s = (parse_number(entry[i], "a time") for i in (3, 5))
        if start_s <= last_end_s or _HMM_STATE.fullmatch(word):
            continue
        last_end_s = end_s
        words.append(word)
        language += parse_number(entry[7], "a language model score")
        acoustic += parse_number(entry[9], "an acoustic score")
    return words, language, acoustic


def _text(words: list[str]) -> str:
    start = 1 if words and words[0] == _BOUNDARIES[0] else 0
    end = len(words) - 1 if words and words[-1] == _BOUNDARIES[1] else len(words)
    return " ".join(word for word in words[start:end] if word != _PAUSE)


def write(lists: Iterable[CandidateList], version: str) -> Iterator[str]:
    """Write one list; missing scores are 0. In version 2, empty texts keep only composite scores.

    Args:
        lists: at most one.
        version: `0` for SRILM's own format, `1` or `2` for Decipher's.

    Raises:
        InputError: the lists are several, or a text has words that a reader would drop.
    """
    for index, one in enumerate(lists):
        if index:
            raise InputError("a file holds one list in SRILM's formats; for several, give a folder")
        if version != "0":
            yield f"NBestList{version}.0\n"
        for candidate in one.candidates:
            yield _line(candidate, version)


def _line(candidate: Candidate, version: str) -> str:
    words, features = split_words(candidate.text), candidate.features
    if _text(words) != collapse_spaces(candidate.text):
        raise InputError(f"{shorten(candidate.text)!r} has sentence boundaries or {_PAUSE} among its words")
    if version == "0":
        scores = [
            format_number(features.get("am", 0.0) / math.log(10)),
            format_number(features.get("old_lm", 0.0) / math.log(10)),
            format_number(features["nwords"]) if "nwords" in features else str(len(words)),
        ]
        return " ".join([*scores, *words]) + "\n"
    scored = words if version == "1" else _format_scored_words(words, features)
    return " ".join([f"({_bytelog(features, 'score')})", *scored]) + "\n"


def _format_scored_words(words: list[str], features: Mapping[str, float]) -> Iterator[str]:
    """Format words with times and scores: one second per word, the whole scores on the first."""
    for second, word in enumerate(words):
        if _HMM_STATE.fullmatch(word):
            raise InputError(f"{shorten(word)!r} would be read as an HMM state, not as a word")
        language, acoustic = (_bytelog(features, name) if second == 0 else 0 for name in ("old_lm", "am"))
        yield f"{word} ( st: {second}.00 et: {second}.99 g: {language} a: {acoustic} )"


def _bytelog(features: Mapping[str, float], name: str) -> int:
    value = features.get(name, 0.0)
    format_number(value)  # refuses values that are not finite
    return round(value / BYTELOG)


def is_srilm_line(line: str) -> bool:
    """True if a first line is SRILM's: a header, a score in parentheses, or three numbers."""
    fields = split_words(line)
    composite = _COMPOSITE.fullmatch(fields[0])
    return (
        _HEADER.fullmatch(line) is not None
        or (composite is not None and is_decimal_number(composite[1]))
        or (len(fields) >= 3 and all(is_decimal_number(field) for field in fields[:3]))
    )


FORMATS = tuple(
    Format(
        name=name,
        read=read,
        write=functools.partial(write, version=str(version)),
        features=frozenset(features),
        one_list_per_file=True,
        reference_layout="utterance",
        media_types=() if version else ("text/x-srilm-nbest",),
    )
    for version, (name, features) in enumerate(_FEATURES.items())
)
"""SRILM's own format, and Decipher's two."""
