r"""Output of neural translators: fairseq, CTranslate2, OpenNMT-tf and Sockeye.

All scores are means over the tokens of a hypothesis, unless the length penalty is not 1: the feature
`score`, a natural logarithm.

fairseq prints a line for each source, reference and hypothesis, with the number of the sentence from 0:

    S-7 <tab> source
    T-7 <tab> reference
    H-7 <tab> score <tab> hypothesis, as the model wrote it
    D-7 <tab> score <tab> hypothesis, detokenised

Other lines (`P-`, `A-`, the log) are dropped, and `H-` lines too if the sentence has `D-` lines. Scores
have base 2. `fairseq-generate` sorts sentences by length.

CTranslate2 and OpenNMT-tf write `score ||| hypothesis`, the same number of lines per input; further
fields, such as scores of tokens, are dropped. Tokens are as in the file: detokenise them first.

Sockeye's JSON has an object per line, with the number of the sentence from 1 as `sentence_id`:

    {"sentence_id": 1, "translation": "…", "score": 0.3, "translations": ["…", …], "scores": [[0.3], …]}

Its scores are negative logarithms; those of target factors, after the first, are dropped. A list of
one hypothesis has no `translations`.

Sources: fairseq fairseq_cli/generate.py, interactive.py (0.12); CTranslate2
include/ctranslate2/translator.h (`translate_raw_text_file`); OpenNMT-tf opennmt/utils/misc.py
(`format_translation_output`); Sockeye sockeye/inference.py (`TranslatorOutput.json`, 3.1).
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
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
    is_decimal_number,
    parse_lines,
    parse_list_lines,
    parse_number,
)
from models.reranking.formats.json_stream import (
    id_value,
    list_value,
    number_value,
    parse_json_object,
    stripped_value,
)
from models.reranking.formats.nemo import read_beams

_FAIRSEQ_LINE = re.compile(r"([THD])-([0-9]+)\t(.*)", re.DOTALL)
_FAIRSEQ_HYPOTHESIS = re.compile(r"^[HD]-[0-9]+\t\S+\t", re.MULTILINE)
_BAR = "|||"


def _read_fairseq(lines: SourceLines) -> Iterator[ListOrBadLine]:
    """Read the lists of consecutive lines with the same sentence."""
    name, found = "", defaultdict[str, list[Candidate]](list)

    def close() -> Iterator[CandidateList]:
        if candidates := found["D"] or found["H"]:
            references = tuple(reference.text for reference in found["T"][:1])
            yield CandidateList(name, "", tuple(candidates), references)
        found.clear()

    for row in parse_lines(lines, _fairseq_line):
        if isinstance(row, BadLine):
            yield row
            continue
        number, line = row
        if line is None:
            continue
        kind, sentence, candidate = line
        if sentence != name:
            yield from close()
        name = sentence
        if len(found[kind]) < MAX_LIST_CANDIDATES:
            found[kind].append(candidate)
        else:
            yield lines.bad(number, f"list {name!r} has more than {MAX_LIST_CANDIDATES:,} candidates")
    yield from close()


def _fairseq_line(line: str) -> tuple[str, str, Candidate] | None:
    """Parse the kind, the sentence and the text of a line, with its score; None for another kind than T, H and D."""
    match = _FAIRSEQ_LINE.fullmatch(line)
    if match is None:
        return None
    kind, sentence, text = match.groups()
    if kind == "T":
        return kind, sentence, Candidate(text.strip(ASCII_WHITESPACE))
    score, tab, text = text.partition("\t")
    if not tab:
        raise InvalidInputError(f"{kind}-{sentence} has no tab between score and hypothesis")
    log_prob = math.log(2) * parse_number(score, f"the score of {kind}-{sentence}")
    return kind, sentence, Candidate(text.strip(ASCII_WHITESPACE), {"score": log_prob})


def has_fairseq_line(head: str) -> bool:
    """True if one of the first lines is a hypothesis of fairseq."""
    return _FAIRSEQ_HYPOTHESIS.search(head) is not None


def is_scored_line(line: str) -> bool:
    """True if a line begins with a score and bars, and not with the index of a sentence, as in Moses."""
    first, bar, _ = line.partition(_BAR)
    score = first.strip(ASCII_WHITESPACE)
    return bool(bar) and is_decimal_number(score) and not score.isdigit()


def _scored_candidate(line: str) -> Candidate:
    score, *fields = (field.strip(ASCII_WHITESPACE) for field in line.split(_BAR))
    if not fields:
        raise InvalidInputError(f"no {_BAR} in the line; a line is 'score {_BAR} hypothesis'")
    return Candidate(fields[0], {"score": parse_number(score, "the score")})


def _sockeye_list(line: str) -> CandidateList:
    value = parse_json_object(line)
    texts, costs = [value.get("translation")], [value.get("score")]
    if "translations" in value:
        texts = list_value(value["translations"], "translations", max_members=MAX_LIST_CANDIDATES)
        costs = list_value(value.get("scores"), "scores")
    if len(costs) != len(texts):
        raise InvalidInputError(f"scores has {len(costs)} members, but translations has {len(texts)}")
    candidates = (
        Candidate(stripped_value(text, f"translations[{i}]"), {"score": 0.0 - _cost(cost, f"scores[{i}]")})
        for i, (text, cost) in enumerate(zip(texts, costs, strict=True))
    )
    return CandidateList(id_value(value.get("sentence_id"), "sentence_id"), "", tuple(candidates))


def _cost(value: Any, field: str) -> float:
    """Return a score, the first of several factors."""
    return number_value(list_value(value, field)[0] if isinstance(value, list) else value, field)


FORMATS = (
    Format(
        name="fairseq",
        read=_read_fairseq,
        numbered=True,
        media_types=("text/x-fairseq-nbest",),
        example="D-0\t-0.5\tThe cat sat.\nD-0\t-0.75\tThe cat was sitting.\n",
    ),
    Format(name="ctranslate2", read=partial(read_beams, parse=_scored_candidate), needs_beam_size=True),
    Format(
        name="sockeye",
        read=partial(parse_list_lines, parse=_sockeye_list),
        first_key=re.compile(r'"sentence_id"\s*:'),
        max_line_bytes=MAX_LIST_BYTES,
        media_types=("application/x-sockeye+json",),
        example='{"sentence_id": 1, "translations": ["The cat sat.", "A cat sat."], "scores": [[0.5], [0.75]]}\n',
    ),
)
