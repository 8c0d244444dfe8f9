"""mlm-scoring's JSON: `{utterance: {"hyp_1": {"score": …, "text": …}, …, "ref": …}, …}`.

The score is the first pass's own, a natural logarithm, larger is better: the feature `score`. Hypotheses are sorted
by their numbers; texts are stripped, as mlm-scoring does it.

Source: mlm-scoring examples/demo/format.json, src/mlm/loaders.py (`Predictions.from_dict`, `Corpus.from_dict`).
"""

import re
from collections.abc import Iterable, Iterator

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
    load,
    load_object,
    number_in,
    object_in,
    text_of,
)
from models.reranking.lists import Candidate, CandidateList

_HYPOTHESIS = re.compile(r"hyp_([0-9]{1,9})")


def read(lines: Lines, options: ReadOptions) -> Iterator[Item]:  # noqa: ARG001 - nothing to say
    """An utterance a list; a hypothesis that is wrong is lost alone."""
    for element in elements(lines, "{"):
        if isinstance(element, BadLine):
            yield element
            continue
        problems: list[str] = []
        one = None
        try:
            one = _list(element, problems)
        except InvalidInputError as error:
            problems.append(str(error))
        for place, problem in enumerate(problems, start=1):
            yield lines.bad(element.number, problem, loses_list=one is None and place == len(problems))
        if one is not None:
            yield one


def _list(element: Element, problems: list[str]) -> CandidateList | None:
    name = text_of(load(element.key or ""), "an utterance's name")
    value = load_object(element.text)
    numbered = sorted((int(match[1]), key) for key in value if (match := _HYPOTHESIS.fullmatch(key)))
    candidates = []
    for _, key in numbered[:MAX_CANDIDATES]:
        try:
            candidates.append(
                _candidate(object_in(value[key], f"{shortened(name)}.{key}"), f"{shortened(name)}.{key}")
            )
        except InvalidInputError as error:
            problems.append(str(error))
    if not numbered:
        raise InvalidInputError(f"{shortened(name)} has no hyp_1")
    if len(numbered) > MAX_CANDIDATES:
        problems.append(f"{shortened(name)} has more than {MAX_CANDIDATES:,} hypotheses")
    references = (_stripped(value["ref"], f"{shortened(name)}.ref"),) if value.get("ref") is not None else ()
    return CandidateList(name, "", tuple(candidates), references) if candidates else None


def _candidate(value: Object, field: str) -> Candidate:
    score = number_in(value.get("score"), f"{field}.score")
    return Candidate(_stripped(value.get("text"), f"{field}.text"), {"score": score})


def _stripped(value: object, field: str) -> str:
    return text_of(value, field).strip(SPACE)


def write(lists: Iterable[CandidateList]) -> Iterator[str]:
    """An utterance a list, called by its place if it has no name; a score that it lacks is 0.

    Raises:
        InvalidInputError: two lists have the same name.
    """
    names: set[str] = set()
    yield "{"
    for place, one in enumerate(lists):
        name = str(place) if one.name is None else one.name
        if name in names:
            raise InvalidInputError(f"lists[{place}].id is {shortened(name)!r}, as that of a list before it")
        names.add(name)
        value: Object = {
            f"hyp_{number}": {"score": float(shown(c.features.get("score", 0.0))), "text": c.text}
            for number, c in enumerate(one.candidates, start=1)
        }
        if one.references:
            value["ref"] = one.references[0]
        yield f"{',' if place else ''}\n{dumped(name)}: {dumped(value)}"
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
