"""Kaldi's n-best lists: words in one text archive, costs in an archive per score.

    utt-1 the first hypothesis            (words_text)
    utt-1 1523.4                          (acwt, lmwt.lmonly, …)

The key of a hypothesis is its utterance and rank, from 1. Lists are sorted by rank because sorted
archives have utt-10 before utt-2. Costs are negated natural logarithms: a feature is minus the
cost. Several costs on a line, which the neural models' scripts write by word, are summed. Archives
are read along with the words, so archives in the same order need no memory.

Sources: kaldi src/latbin/lattice-to-nbest.cc (keys), nbest-to-linear.cc (archives),
egs/wsj/s5/steps/pytorchnn/lmrescore_nbest_pytorchnn.sh (file names), compute_sentence_scores.py
(several costs on a line).
"""

import re
from collections.abc import Generator, Iterator, Sequence
from itertools import chain

from models.errors import FormatError, InputError
from models.files import collapse_spaces, split_words
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    BadLine,
    CandidateRow,
    Format,
    SourceLines,
    format_number,
    group_candidates,
    is_decimal_number,
    named_lists,
    parse_lines,
    parse_number,
    shorten,
)

WORD_FILES = ("words_text", "text")
"""Names of the word archive in a folder."""
SCORE_FILES = {
    "acwt": "am",
    "lmwt.lmonly": "old_lm",
    "lmwt.nolm": "graph",
    "lmwt.nn": "nn",
    "lmwt.rnn": "rnn",
}
"""Features of the cost archives in a folder; `lmwt.withlm`, a sum of others, is omitted."""

_OTHER_FEATURE = re.compile(r"score\.([A-Za-z0-9_.:*+-]{1,100})")
_RANK = re.compile(r"[0-9]{1,9}")


def feature_of_file(file: str) -> str | None:
    """Return an archive's feature by its file name; None for other files."""
    match = _OTHER_FEATURE.fullmatch(file)
    return match[1] if match else SCORE_FILES.get(file)


def file_of_feature(feature: str) -> str:
    """Return the file name of a feature's archive.

    Raises:
        InputError: the feature cannot be a file name.
    """
    known = (file for file, name in SCORE_FILES.items() if name == feature)
    file = next(known, f"score.{feature}")
    if feature_of_file(file) != feature:
        raise InputError(f"feature {shorten(feature)!r} cannot be a file name")
    return file


def _rows(lines: SourceLines) -> Iterator[tuple[int, CandidateRow] | BadLine]:
    """Yield hypotheses with their scores from the archives, or the error of a missing score."""
    archives = {feature: _CostArchive(scores) for feature, scores in lines.scores.items()}
    for row in parse_lines(lines, _row):
        if isinstance(row, BadLine):
            yield row
            continue
        number, (name, rank, text) = row
        features: dict[str, float] = {}
        for feature, archive in archives.items():
            cost = yield from archive.cost(f"{name}-{rank}")
            if cost is None:
                problem = f"{name}-{rank} has no score in {archive.source}"
                yield number, (name, rank, InputError(problem))
                break
            features[feature] = 0.0 - cost
        else:
            yield number, (name, rank, Candidate(text, features))


def _row(line: str) -> tuple[str, int, str]:
    key, *words = split_words(line)
    utterance, dash, rank = key.rpartition("-")
    if not (dash and utterance and _RANK.fullmatch(rank)):
        raise InputError(
            f"line starts with {shorten(key)!r}; it must start with an utterance and a rank, such as utt-1"
        )
    return utterance, int(rank), " ".join(words)


def check_content(lines: Sequence[str], source: str) -> None:
    """Check that a file's first lines, which begin with a word and a number, are n-best lists.

    Raises:
        FormatError: they seem to be something else; the message names it.
    """
    if (other := _other_content([*filter(None, map(_fields, lines))])) is not None:
        problem = f"seems to have {other}, not n-best lists; it starts with {shorten(lines[0])!r}"
        raise FormatError(source, problem, hint="for hypotheses of Kaldi, set --format kaldi")


def _other_content(rows: Sequence[Sequence[str]]) -> str | None:
    """Return what lines seem to have; None for hypotheses.

    An utterance's ranks begin with 1, without leading zeros, and its hypotheses share words.
    """
    for place in (2, 3):  # start and duration, or end, in CTM and STM
        times = [row[place : place + 2] for row in rows if len(row) > place + 2]
        if len(times) == len(rows) and all("." in "".join(pair) and _are_numbers(pair) for pair in times):
            return "words with times, as in CTM and STM files"
    seconds = [row[1] for row in rows if row[1:]]
    if seconds and _are_numbers(seconds) and not any(map(str.isdigit, seconds)):
        return "scores, or words after scores"
    ranks: dict[str, list[str]] = {}
    for key, *_ in rows:
        utterance, _, rank = key.rpartition("-")
        ranks.setdefault(utterance, []).append(rank)
    first, *others = ({*row[1:]} for row in rows)
    are_apart = len(ranks) == 1 and len(others) > 1 and first and all(map(first.isdisjoint, others))
    if are_apart or not all("1" in of_one and all(map(_RANK.fullmatch, of_one)) for of_one in ranks.values()):
        return "transcripts, whose ids end in a number"
    return None


def _fields(line: str) -> list[str]:
    return [field for field in split_words(line) if field not in {"[", "]"}]


def _are_numbers(fields: Sequence[str]) -> bool:
    return all(map(is_decimal_number, fields))


class _CostArchive:
    """Archive of costs, read on demand."""

    def __init__(self, lines: SourceLines) -> None:
        self.source = lines.source
        self._rows = parse_lines(lines, _cost)
        self._waiting: dict[str, float] = {}

    def cost(self, key: str) -> Generator[BadLine, None, float | None]:
        """Yield bad lines, and return a hypothesis's cost, or None."""
        while key not in self._waiting and (row := next(self._rows, None)) is not None:
            if isinstance(row, BadLine):
                yield row
            else:
                found, cost = row[1]
                self._waiting[found] = cost
        return self._waiting.pop(key, None)


def _cost(line: str) -> tuple[str, float]:
    fields = _fields(line)
    if len(fields) < 2:
        raise InputError(f"{shorten(fields[0]) if fields else 'a line of brackets'} has no cost")
    key, *costs = fields
    utterance, dash, rank = key.rpartition("-")
    normal = f"{utterance}-{int(rank)}" if dash and _RANK.fullmatch(rank) else key
    return normal, sum(parse_number(cost, "a cost") for cost in costs)


def word_lines(name: str, one: CandidateList) -> Iterator[str]:
    """Format the words of candidates."""
    for rank, candidate in enumerate(one.candidates, start=1):
        yield f"{name}-{rank} {collapse_spaces(candidate.text)}".rstrip(" ") + "\n"


def cost_lines(name: str, one: CandidateList, feature: str) -> Iterator[str]:
    """Format a feature of a list's candidates as costs.

    Raises:
        InputError: a candidate lacks the feature.
    """
    for rank, candidate in enumerate(one.candidates, start=1):
        if feature not in candidate.features:
            raise InputError(
                f"{name}-{rank} has no feature {feature!r}; every candidate must have the same features"
            )
        yield f"{name}-{rank} {format_number(0.0 - candidate.features[feature])}\n"


FORMAT = Format(
    name="kaldi",
    read=lambda lines: group_candidates(_rows(lines), lines),
    # words alone: scores have their own files, see `cost_lines`
    write=lambda lists: chain.from_iterable(word_lines(name, one) for name, one in named_lists(lists)),
    separate_score_files=True,
    reference_layout="utterance",
    media_types=("text/x-kaldi-nbest",),
)
