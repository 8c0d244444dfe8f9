"""NeMo's beams: `text <tab> score`, as many lines per input as the beam is wide; no ids.

The score is the recogniser's, a natural logarithm: the feature `score`. References are in a
manifest, a JSON object with the key `text` per input, in the same order.

Source: NeMo scripts/asr_language_modeling/neural_rescorer/eval_neural_rescorer.py
(`BeamScoresDataset`), ngram_lm/eval_beamsearch_ngram_ctc.py, which writes the file.
"""

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
    """Lists of as many lines as the beam is wide; a bad line is a candidate less in its list.

    Raises:
        InvalidInputError: the beam's size is not given.
    """
    if lines.beam_size is None or not 1 <= lines.beam_size <= MAX_LIST_CANDIDATES:
        raise InvalidInputError(
            f"beam_size is {lines.beam_size}; format nemo needs it, from 1 to {MAX_LIST_CANDIDATES:,}",
            parameter="beam_size",
        )
    candidates, seen, number = list[Candidate](), 0, 0
    for row in parse_lines(lines, _candidate):
        if isinstance(row, BadLine):
            yield row._replace(loses_list=not candidates and seen == lines.beam_size - 1)
            number = row.number
        else:
            number, candidate = row
            candidates.append(candidate)
        seen += 1
        if seen == lines.beam_size:
            if candidates:
                yield CandidateList(None, "", tuple(candidates))
            candidates, seen = [], 0
    if seen:
        problem = f"the last list has {seen} of {lines.beam_size} candidates"
        yield lines.bad(number, problem, loses_list=not candidates)
        if candidates:
            yield CandidateList(None, "", tuple(candidates))


def _candidate(line: str) -> Candidate:
    text, tab, score = line.rpartition("\t")
    if not tab:
        raise InvalidInputError("there is no tab in it; a line is a text, a tab and a score")
    return Candidate(
        text.strip(ASCII_WHITESPACE), {"score": parse_number(score.strip(ASCII_WHITESPACE), "the score")}
    )


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """A line a candidate; a score that it lacks is 0.

    Raises:
        InvalidInputError: lists are of several sizes, so that they could not be told apart.
    """
    beam_size = None
    for index, one in enumerate(lists):
        beam_size = beam_size or len(one.candidates)
        if len(one.candidates) != beam_size:
            raise InvalidInputError(
                f"lists[{index}] has {len(one.candidates)} candidates, those before it {beam_size}; "
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
