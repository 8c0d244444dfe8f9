"""NeMo's beams: `text <tab> score`, a fixed number of lines per input (the beam size); no ids.

The score is the recogniser's log-probability (natural logarithm): the feature `score`. References are
in a manifest, a JSON object with the key `text` per input, in the same order.

Source: NeMo scripts/asr_language_modeling/neural_rescorer/eval_neural_rescorer.py
(`BeamScoresDataset`), ngram_lm/eval_beamsearch_ngram_ctc.py, which writes the file.
"""

import itertools
from collections.abc import Iterable, Iterator

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    ASCII_WHITESPACE,
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    SourceLines,
    collapse_whitespace,
    format_number,
    parse_lines,
    parse_number,
)


def read(lines: SourceLines) -> Iterator[ListOrBadLine]:
    """Read lists of `beam_size` lines each; a bad line reduces its list by one candidate.

    Raises:
        InvalidInputError: the beam size is missing or out of range.
    """
    if lines.beam_size is None or not 1 <= lines.beam_size <= MAX_LIST_CANDIDATES:
        raise InvalidInputError(
            f"beam_size is {lines.beam_size}; format nemo requires 1 to {MAX_LIST_CANDIDATES:,}",
            parameter="beam_size",
        )
    rows = parse_lines(lines, _candidate)
    while batch := list(itertools.islice(rows, lines.beam_size)):
        candidates = tuple(row[1] for row in batch if not isinstance(row, BadLine))
        is_whole, last = len(batch) == lines.beam_size, batch[-1]
        for row in batch:
            if isinstance(row, BadLine):
                yield row._replace(loses_list=is_whole and row is last and not candidates)
        if not is_whole:
            number = last.number if isinstance(last, BadLine) else last[0]
            problem = f"the last list has {len(batch)} of {lines.beam_size} candidates"
            yield lines.bad(number, problem, loses_list=not candidates)
        if candidates:
            yield CandidateList(None, "", candidates)


def _candidate(line: str) -> Candidate:
    text, tab, score = line.rpartition("\t")
    if not tab:
        raise InvalidInputError("no tab in the line; a line is a text, a tab and a score")
    return Candidate(
        text.strip(ASCII_WHITESPACE), {"score": parse_number(score.strip(ASCII_WHITESPACE), "the score")}
    )


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """Write one line per candidate; a missing score is written as 0.

    Raises:
        InvalidInputError: lists have different numbers of candidates, so a reader could not separate them.
    """
    beam_size = None
    for index, one in enumerate(lists):
        beam_size = beam_size or len(one.candidates)
        if len(one.candidates) != beam_size:
            raise InvalidInputError(
                f"lists[{index}] has {len(one.candidates)} candidates, the lists before it have {beam_size}; "
                "in format nemo all lists have the same number"
            )
        for candidate in one.candidates:
            yield f"{collapse_whitespace(candidate.text)}\t{format_number(candidate.features.get('score', 0.0))}\n"


FORMAT = Format(
    name="nemo",
    read=read,
    write=write,
    features=frozenset({"score"}),
    carries_names=False,
    reference_layout="manifest",
)
