"""HyPoradise's JSON: `[{"input": ["best hypothesis", …], "output": "reference", …}, …]`.

Shorter lists are padded with copies of their members: the first of each is kept, with its scores.
Any other list of numbers, one per hypothesis, is a feature: `am_score` (ATIS) becomes `am`, others
keep their names, such as `score` (WSJ). These scores look like averages per token.

Source: Hypo2Trans generate_data/whisper/generate_hp_dataset.py; HyPoradise-v0 test_atis.json,
test_wsj_score.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
    id_value,
    iter_elements,
    list_value,
    number_value,
    parse_json_object,
    string_value,
)

_FEATURE_OF_KEY = {"am_score": "am"}
_KEY_OF_FEATURE = {feature: key for key, feature in _FEATURE_OF_KEY.items()}
_OWN_KEYS = frozenset({"id", "input", "output"})


def read(lines: SourceLines, options: ReadOptions) -> Iterator[ListOrBadLine]:  # noqa: ARG001 - nothing to say
    """An object a list, without copies."""
    for element in iter_elements(lines, "["):
        if isinstance(element, BadLine):
            yield element
            continue
        try:
            yield _list(element)
        except InvalidInputError as error:
            yield lines.bad(element.number, str(error), loses_list=True)


def _list(element: JsonElement) -> CandidateList:
    value = parse_json_object(element.text)
    hypotheses = list_value(value.get("input"), "input", max_members=MAX_LIST_CANDIDATES)
    texts = [string_value(text, f"input[{i}]").strip(ASCII_WHITESPACE) for i, text in enumerate(hypotheses)]
    columns = _columns(value, len(texts))
    first: dict[str, Candidate] = {}
    for index, text in enumerate(texts):
        if text not in first:
            features = {name: column[index] for name, column in columns.items() if column[index] is not None}
            first[text] = Candidate(text, features)
    output = value.get("output")
    references = () if output is None else (string_value(output, "output").strip(ASCII_WHITESPACE),)
    return CandidateList(id_value(value.get("id"), "id"), "", tuple(first.values()), references)


def _columns(value: Mapping[str, Any], size: int) -> dict[str, list[Any]]:
    """Numbers by feature, one for each hypothesis; None where there is none."""
    columns: dict[str, list[Any]] = {}
    for key, numbers in value.items():
        if key in _OWN_KEYS or not _is_column(numbers):
            continue
        name = _FEATURE_OF_KEY.get(key, string_value(key, "the name of a list of scores"))
        if name in columns:
            raise InvalidInputError(f"there are two lists of scores for {name}")
        if len(numbers) != size:
            raise InvalidInputError(f"{shorten(key)} has {len(numbers)} scores, but input {size} hypotheses")
        columns[name] = [
            None if number is None else number_value(number, f"{shorten(key)}[{i}]")
            for i, number in enumerate(numbers)
        ]
    return columns


def _is_column(value: Any) -> bool:
    return isinstance(value, list) and any(type(member) in {int, float} for member in value)


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """An object a list; the first of several references is written.

    Raises:
        InvalidInputError: a feature is called as something else is in this format.
    """
    yield "["
    for index, one in enumerate(lists):
        value: JsonObject = {} if one.name is None else {"id": one.name}
        value["input"] = [candidate.text for candidate in one.candidates]
        if one.references:
            value["output"] = one.references[0]
        for feature in dict.fromkeys(name for candidate in one.candidates for name in candidate.features):
            key = _KEY_OF_FEATURE.get(feature, feature)
            if key in value or key in _OWN_KEYS or feature in _FEATURE_OF_KEY:
                raise InvalidInputError(
                    f"a feature is called {shorten(feature)!r}, which this format cannot say"
                )
            value[key] = [
                float(format_number(candidate.features[feature])) if feature in candidate.features else None
                for candidate in one.candidates
            ]
        yield f"{',' if index else ''}\n{dump_json(value)}"
    yield "\n]\n"


FORMAT = Format(
    name="hyporadise",
    read=read,
    write=write,
    max_references=1,
    max_line_bytes=MAX_DOCUMENT_LINE_BYTES,
    yields_undecodable=True,
    media_types=("application/x-hyporadise+json",),
)
