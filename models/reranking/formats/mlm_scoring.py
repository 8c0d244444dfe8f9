"""mlm-scoring's JSON: `{utterance: {"hyp_1": {"score": …, "text": …}, …, "ref": …}, …}`.

The score is the first pass's own, a natural logarithm, larger is better: the feature `score`.
Hypotheses are sorted by their numbers; texts are stripped, as in mlm-scoring.

Source: mlm-scoring examples/demo/format.json, src/mlm/loaders.py (`Predictions.from_dict`,
`Corpus.from_dict`).
"""

import re
from collections.abc import Iterable, Iterator

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    ASCII_WHITESPACE,
    MAX_DOCUMENT_LINE_BYTES,
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    ReadOptions,
    SourceLines,
    format_number,
    shorten,
)
from models.reranking.formats.json_stream import (
    JsonElement,
    JsonObject,
    dump_json,
    iter_elements,
    number_value,
    object_value,
    parse_json_object,
    parse_json_value,
    string_value,
)

_HYPOTHESIS = re.compile(r"hyp_([0-9]{1,9})")


def read(lines: SourceLines, options: ReadOptions) -> Iterator[ListOrBadLine]:  # noqa: ARG001 - nothing to say
    """An utterance a list; a hypothesis that is wrong is lost alone."""
    for element in iter_elements(lines, "{"):
        if isinstance(element, BadLine):
            yield element
            continue
        problems: list[str] = []
        one = None
        try:
            one = _list(element, problems)
        except InvalidInputError as error:
            problems.append(str(error))
        for index, problem in enumerate(problems, start=1):
            yield lines.bad(element.number, problem, loses_list=one is None and index == len(problems))
        if one is not None:
            yield one


def _list(element: JsonElement, problems: list[str]) -> CandidateList | None:
    name = string_value(parse_json_value(element.key or ""), "an utterance's name")
    value = parse_json_object(element.text)
    numbered = sorted((int(match[1]), key) for key in value if (match := _HYPOTHESIS.fullmatch(key)))
    candidates = []
    for _, key in numbered[:MAX_LIST_CANDIDATES]:
        try:
            candidates.append(
                _candidate(object_value(value[key], f"{shorten(name)}.{key}"), f"{shorten(name)}.{key}")
            )
        except InvalidInputError as error:
            problems.append(str(error))
    if not numbered:
        raise InvalidInputError(f"{shorten(name)} has no hyp_1")
    if len(numbered) > MAX_LIST_CANDIDATES:
        problems.append(f"{shorten(name)} has more than {MAX_LIST_CANDIDATES:,} hypotheses")
    references = (_stripped(value["ref"], f"{shorten(name)}.ref"),) if value.get("ref") is not None else ()
    return CandidateList(name, "", tuple(candidates), references) if candidates else None


def _candidate(value: JsonObject, field: str) -> Candidate:
    score = number_value(value.get("score"), f"{field}.score")
    return Candidate(_stripped(value.get("text"), f"{field}.text"), {"score": score})


def _stripped(value: object, field: str) -> str:
    return string_value(value, field).strip(ASCII_WHITESPACE)


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """An utterance a list, called by its place if it has no name; a score that it lacks is 0.

    Raises:
        InvalidInputError: two lists have the same name.
    """
    names: set[str] = set()
    yield "{"
    for index, one in enumerate(lists):
        name = str(index) if one.name is None else one.name
        if name in names:
            raise InvalidInputError(f"lists[{index}].id is {shorten(name)!r}, as that of a list before it")
        names.add(name)
        value: JsonObject = {
            f"hyp_{number}": {"score": float(format_number(c.features.get("score", 0.0))), "text": c.text}
            for number, c in enumerate(one.candidates, start=1)
        }
        if one.references:
            value["ref"] = one.references[0]
        yield f"{',' if index else ''}\n{dump_json(name)}: {dump_json(value)}"
    yield "\n}\n"


FORMAT = Format(
    name="mlm-scoring",
    read=read,
    write=write,
    features=frozenset({"score"}),
    max_references=1,
    max_line_bytes=MAX_DOCUMENT_LINE_BYTES,
    yields_undecodable=True,
    media_types=("application/x-mlm-scoring+json",),
)
