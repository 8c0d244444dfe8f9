"""NeMo's beams: `text <tab> score`, a fixed number of lines per input (the beam size); no ids.

The score is the recogniser's log-probability (natural logarithm): the feature `score`. References are
in a manifest, a JSON object with the key `text` per input, in the same order.

`transcribe_speech.py` with `return_best_hypothesis=false` writes the beams into the manifest itself:

    {"audio_filepath": "a/utt-1.wav", "text": "reference", "beams": [["best hypothesis", -7.2], …], …}

The id of a list is `id`, or else the name of the audio file without folder and suffix.

Sources: NeMo scripts/asr_language_modeling/neural_rescorer/eval_neural_rescorer.py
(`BeamScoresDataset`), ngram_lm/eval_beamsearch_ngram_ctc.py, which writes the file;
nemo/collections/asr/parts/utils/transcribe_utils.py (`write_transcription`, NeMo 3.0).
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePath
from typing import Any

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    ASCII_WHITESPACE,
    MAX_LIST_BYTES,
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    SourceLines,
    collapse_whitespace,
    format_number,
    parse_lines,
    parse_list_lines,
    parse_number,
)
from models.reranking.formats.json_stream import (
    JsonObject,
    id_value,
    list_value,
    number_value,
    parse_json_object,
    string_value,
    stripped_value,
)


def read_beams(lines: SourceLines, parse: Callable[[str], Candidate]) -> Iterator[ListOrBadLine]:
    """Read lists of `beam_size` lines each; a bad line reduces its list by one candidate.

    Args:
        lines: the lines, with the beam size.
        parse: raises InvalidInputError for an invalid line.

    Raises:
        InvalidInputError: the beam size is missing or out of range.
    """
    if lines.beam_size is None or not 1 <= lines.beam_size <= MAX_LIST_CANDIDATES:
        raise InvalidInputError(
            f"beam_size is {lines.beam_size}; format {lines.form.name} requires 1 to {MAX_LIST_CANDIDATES:,}",
            parameter="beam_size",
        )
    rows = parse_lines(lines, parse)
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
    read=partial(read_beams, parse=_candidate),
    write=write,
    features=frozenset({"score"}),
    carries_names=False,
    needs_beam_size=True,
    reference_layout="manifest",
)


def manifest_id(entry: JsonObject) -> tuple[str | None, bool]:
    """Return the id of an entry of a manifest, and True if it is its `id` and not the name of its file.

    Raises:
        InvalidInputError: `id` or `audio_filepath` has another type.
    """
    name = id_value(entry.get("id"), "id")
    if name is not None or "audio_filepath" not in entry:
        return name, name is not None
    return PurePath(string_value(entry["audio_filepath"], "audio_filepath")).stem, False


def _manifest_list(line: str) -> CandidateList:
    value = parse_json_object(line)
    beams = list_value(value.get("beams"), "beams", max_members=MAX_LIST_CANDIDATES)
    reference = value.get("text")
    return CandidateList(
        manifest_id(value)[0],
        "",
        tuple(_beam(beam, f"beams[{i}]") for i, beam in enumerate(beams)),
        () if reference is None else (stripped_value(reference, "text"),),
    )


def _beam(value: Any, field: str) -> Candidate:
    if len(pair := list_value(value, field)) != 2:
        raise InvalidInputError(f"{field} has {len(pair)} members, but must have a text and a score")
    return Candidate(stripped_value(pair[0], f"{field}[0]"), {"score": number_value(pair[1], f"{field}[1]")})


MANIFEST = Format(
    name="nemo-manifest",
    read=partial(parse_list_lines, parse=_manifest_list),
    first_key=re.compile(r'"beams"\s*:\s*\['),
    max_line_bytes=MAX_LIST_BYTES,
    reference_layout="manifest",
    media_types=("application/x-nemo-manifest+json",),
    example='{"audio_filepath": "utt-1.wav", "beams": [["the cat sat", -4.5], ["the cat sad", -5.25]]}\n',
)
