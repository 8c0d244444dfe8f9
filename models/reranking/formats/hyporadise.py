"""HyPoradise's JSON: `[{"input": ["best hypothesis", …], "output": "reference", …}, …]`.

Lists that are shorter than the others are padded with copies of their members: the first of each is kept, with its
scores. Any other list of numbers, one for each hypothesis, is a feature: `am_score` (ATIS) becomes `am`, others
keep their names, such as `score` (WSJ). These scores look like averages per token.

Source: Hypo2Trans generate_data/whisper/generate_hp_dataset.py; HyPoradise-v0 test_atis.json, test_wsj_score.json.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from models.errors import InvalidInputError
from models.reranking.formats.fields import SPACE, shortened, shown
from models.reranking.formats.interface import (
    MAX_CANDIDATES,
    MAX_DOCUMENT_LINE_BYTES,
    BadLine,
    Format,
    Item,
    Lines,
    ReadOptions,
)
from models.reranking.formats.json_elements import Element, elements
from models.reranking.formats.json_values import (
    Object,
    dumped,
    list_in,
    load_object,
    name_in,
    number_in,
    text_of,
)
from models.reranking.lists import Candidate, CandidateList

_FEATURE_OF_KEY = {"am_score": "am"}
_KEY_OF_FEATURE = {feature: key for key, feature in _FEATURE_OF_KEY.items()}
_OWN_KEYS = frozenset({"id", "input", "output"})


def read(lines: Lines, options: ReadOptions) -> Iterator[Item]:  # noqa: ARG001 - nothing to say
    """An object a list, without copies."""
    for element in elements(lines, "["):
        if isinstance(element, BadLine):
            yield element
            continue
        try:
            yield _list(element)
        except InvalidInputError as error:
            yield lines.bad(element.number, str(error), loses_list=True)


def _list(element: Element) -> CandidateList:
    value = load_object(element.text)
    hypotheses = list_in(value.get("input"), "input")
    if len(hypotheses) > MAX_CANDIDATES:
        raise InvalidInputError(f"input has {len(hypotheses):,} members; {MAX_CANDIDATES:,} are allowed")
    texts = [text_of(text, f"input[{i}]").strip(SPACE) for i, text in enumerate(hypotheses)]
    columns = _columns(value, len(texts))
    first: dict[str, Candidate] = {}
    for place, text in enumerate(texts):
        if text not in first:
            features = {name: column[place] for name, column in columns.items() if column[place] is not None}
            first[text] = Candidate(text, features)
    output = value.get("output")
    references = () if output is None else (text_of(output, "output").strip(SPACE),)
    return CandidateList(name_in(value.get("id"), "id"), "", tuple(first.values()), references)


def _columns(value: Mapping[str, Any], size: int) -> dict[str, list[Any]]:
    """Numbers by feature, one for each hypothesis; None where there is none."""
    columns: dict[str, list[Any]] = {}
    for key, numbers in value.items():
        if key in _OWN_KEYS or not _is_column(numbers):
            continue
        name = _FEATURE_OF_KEY.get(key, text_of(key, "the name of a list of scores"))
        if name in columns:
            raise InvalidInputError(f"there are two lists of scores for {name}")
        if len(numbers) != size:
            raise InvalidInputError(
                f"{shortened(key)} has {len(numbers)} scores, but input {size} hypotheses"
            )
        columns[name] = [
            None if number is None else number_in(number, f"{shortened(key)}[{i}]")
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
    for place, one in enumerate(lists):
        value: Object = {} if one.name is None else {"id": one.name}
        value["input"] = [candidate.text for candidate in one.candidates]
        if one.references:
            value["output"] = one.references[0]
        for feature in dict.fromkeys(name for candidate in one.candidates for name in candidate.features):
            key = _KEY_OF_FEATURE.get(feature, feature)
            if key in value or key in _OWN_KEYS or feature in _FEATURE_OF_KEY:
                raise InvalidInputError(
                    f"a feature is called {shortened(feature)!r}, which this format cannot say"
                )
            value[key] = [
                float(shown(candidate.features[feature])) if feature in candidate.features else None
                for candidate in one.candidates
            ]
        yield f"{',' if place else ''}\n{dumped(value)}"
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
