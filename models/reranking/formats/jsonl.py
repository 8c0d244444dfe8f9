"""Lists as POST /v1/rerank takes them, one JSON object a line, with optional references.

    {"id": "u1", "context": "", "candidates": [{"text": "…", "features": {"am": -12.5}}, …], "reference": "…"}

`references` is a list of alternative references; `continuation` is scored after each candidate. An
id may be a number. Other keys are dropped. This format alone keeps all of a list, texts to the last
space.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import (
    MAX_LIST_BYTES,
    MAX_LIST_CANDIDATES,
    BadLine,
    Format,
    ListOrBadLine,
    ReadOptions,
    SourceLines,
    parse_lines,
)
from models.reranking.formats.json_stream import (
    JsonObject,
    dump_json,
    id_value,
    list_value,
    number_value,
    object_value,
    parse_json_object,
    string_value,
)


def read(lines: SourceLines, options: ReadOptions) -> Iterator[ListOrBadLine]:  # noqa: ARG001 - nothing to say
    """A list a line."""
    for row in parse_lines(lines, _list):
        yield row._replace(loses_list=True) if isinstance(row, BadLine) else row[1]


def _list(line: str) -> CandidateList:
    value = parse_json_object(line)
    candidates = list_value(value.get("candidates"), "candidates", max_members=MAX_LIST_CANDIDATES)
    continuation = value.get("continuation")
    return CandidateList(
        id_value(value.get("id"), "id"),
        string_value(value.get("context", ""), "context"),
        tuple(_candidate(candidate, f"candidates[{i}]") for i, candidate in enumerate(candidates)),
        _references(value),
        None if continuation is None else string_value(continuation, "continuation"),
    )


def _candidate(value: Any, field: str) -> Candidate:
    candidate = object_value(value, field)
    features = object_value(candidate.get("features", {}), f"{field}.features")
    return Candidate(
        string_value(candidate.get("text"), f"{field}.text"),
        {
            string_value(name, f"a name in {field}.features"): number_value(
                number, f"{field}.features.{name}"
            )
            for name, number in features.items()
        },
    )


def _references(value: JsonObject) -> tuple[str, ...]:
    if value.get("references"):
        several = list_value(value["references"], "references")
        return tuple(string_value(text, f"references[{i}]") for i, text in enumerate(several))
    reference = value.get("reference")
    return () if reference is None else (string_value(reference, "reference"),)


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """A list a line.

    Raises:
        InvalidInputError: a feature is not finite.
    """
    for index, one in enumerate(lists):
        value: JsonObject = {} if one.name is None else {"id": one.name}
        if one.context:
            value["context"] = one.context
        value["candidates"] = [
            {"text": c.text, "features": dict(c.features)} if c.features else {"text": c.text}
            for c in one.candidates
        ]
        if len(one.references) == 1:
            value["reference"] = one.references[0]
        elif one.references:
            value["references"] = list(one.references)
        if one.continuation is not None:
            value["continuation"] = one.continuation
        try:
            yield dump_json(value) + "\n"
        except ValueError:
            raise InvalidInputError(f"lists[{index}] has a feature that is not finite") from None


FORMAT = Format(
    name="jsonl",
    read=read,
    write=write,
    custom_feature_names=True,
    carries_context=True,
    max_references=None,
    max_line_bytes=MAX_LIST_BYTES,
    media_types=("application/x-ndjson", "application/jsonl"),
)
