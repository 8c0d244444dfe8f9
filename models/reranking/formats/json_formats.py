"""Formats in JSON: one list per line, and documents of HyPoradise and mlm-scoring.

A line is a list as in POST /v1/rerank, one JSON object, with optional references:

    {"id": "u1", "context": "", "candidates": [{"text": "…", "features": {"am": -12.5}}, …], "reference": "…"}

`references` is a list of alternative references; `continuation` is scored after each candidate. An
id may be a number. Other keys are dropped. Only this format keeps every field and all
white space. Lines of replies of POST /v1/rerank, with `ranking`, are such lists too.

HyPoradise: `[{"input": ["best hypothesis", …], "output": "reference", …}, …]`. Its files pad shorter
lists with copies of hypotheses: only the first of equal ones is read, with its scores. Any other
list of numbers, one per hypothesis, is a feature: `am_score` (ATIS) becomes `am`, others keep their names,
such as `score` (WSJ). They seem to be averages per token.

mlm-scoring: `{utterance: {"hyp_1": {"score": …, "text": …}, …, "ref": …}, …}`. The score is that
of the first pass, a natural logarithm, larger is better: the feature `score`. Hypotheses are sorted
by number; texts are stripped, as in mlm-scoring.

Sources: Hypo2Trans generate_data/whisper/generate_hp_dataset.py; HyPoradise-v0 test_atis.json,
test_wsj_score.json; mlm-scoring examples/demo/format.json, src/mlm/loaders.py
(`Predictions.from_dict`, `Corpus.from_dict`).
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from models.errors import InputError
from models.reranking.candidates import Candidate, CandidateList, check_confidences
from models.reranking.formats.format import (
    MAX_DOC_LINE_BYTES,
    MAX_LIST_BYTES,
    MAX_LIST_CANDIDATES,
    Format,
    TextLine,
    format_number,
    shorten,
)
from models.reranking.formats.json_stream import (
    JsonObject,
    dump_json,
    id_value,
    list_value,
    number_value,
    object_value,
    parse_candidates,
    parse_json_object,
    parse_json_value,
    read_elements,
    string_value,
    stripped_value,
)

_FEATURE_OF_KEY = {"am_score": "am"}
_KEY_OF_FEATURE = {feature: key for key, feature in _FEATURE_OF_KEY.items()}
_OWN_KEYS = frozenset({"id", "input", "output"})

_HYPOTHESIS = re.compile(r"hyp_([0-9]{1,9})")


def _jsonl_list(line: TextLine, problems: list[str]) -> CandidateList:
    value = parse_json_object(line.text)
    field = "ranking" if "ranking" in value else "candidates"
    after = value.get("continuation")
    return CandidateList(
        id_value(value.get("id"), "id"),
        string_value(value.get("context", ""), "context"),
        parse_candidates(value.get(field), field, _jsonl_candidate, problems),
        _jsonl_references(value),
        None if after is None else string_value(after, "continuation"),
    )


def _jsonl_candidate(value: Any, field: str) -> Candidate:
    candidate, place = object_value(value, field), f"{field}.features"
    given = object_value(candidate.get("features", {}), place)
    text = string_value(candidate.get("text"), f"{field}.text")
    features = {
        string_value(name, f"a name in {place}"): number_value(number, f"{place}.{name}")
        for name, number in given.items()
    }
    confidences, place = candidate.get("confidences"), f"{field}.confidences"
    if confidences is None or confidences == []:
        return Candidate(text, features)
    numbers = enumerate(list_value(confidences, place))
    one = Candidate(text, features, tuple(number_value(value, f"{place}[{i}]") for i, value in numbers))
    check_confidences(one, place)
    return one


def _jsonl_references(value: JsonObject) -> tuple[str, ...]:
    if value.get("references"):
        several = list_value(value["references"], "references")
        return tuple(string_value(text, f"references[{i}]") for i, text in enumerate(several))
    reference = value.get("reference")
    return () if reference is None else (string_value(reference, "reference"),)


def _write_jsonl(lists: Iterable[CandidateList]) -> Iterator[str]:
    for index, one in enumerate(lists):
        value: JsonObject = {} if one.name is None else {"id": one.name}
        if one.context:
            value["context"] = one.context
        value["candidates"] = [
            {
                "text": c.text,
                **({"features": dict(c.features)} if c.features else {}),
                **({"confidences": list(c.confidences)} if c.confidences else {}),
            }
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
            raise InputError(f"lists[{index}] has a number that is not finite") from None


JSONL = Format(
    name="jsonl",
    read=partial(read_elements, parse=_jsonl_list),
    write=_write_jsonl,
    first_key=re.compile(r'"(candidates|ranking)"\s*:\s*\['),
    custom_feature_names=True,
    carried_fields=frozenset({"id", "context", "continuation", "confidences"}),
    max_references=None,
    max_line_bytes=MAX_LIST_BYTES,
    media_types=("application/x-ndjson", "application/jsonl"),
)


def _hyporadise_list(element: TextLine, problems: list[str]) -> CandidateList:
    value = parse_json_object(element.text)
    texts = list_value(value.get("input"), "input")
    indices = itertools.count()
    # scores by feature, with their keys; None if missing
    columns: dict[str, tuple[str, list[Any]]] = {}
    for key, numbers in value.items():
        has_numbers = isinstance(numbers, list) and not {int, float}.isdisjoint(map(type, numbers))
        if key in _OWN_KEYS or not has_numbers:
            continue
        name = _FEATURE_OF_KEY.get(key, string_value(key, "the name of a list of scores"))
        if name in columns:
            raise InputError(f"two lists of scores for {name}")
        if len(numbers) != len(texts):
            raise InputError(
                f"{shorten(key)} has {len(numbers)} scores, but input has {len(texts)} hypotheses"
            )
        columns[name] = shorten(key), numbers

    def parse(text: Any, field: str) -> Candidate:
        index = next(indices)
        features = {
            name: number_value(column[index], f"{key}[{index}]")
            for name, (key, column) in columns.items()
            if column[index] is not None
        }
        return Candidate(stripped_value(text, field), features)

    first: dict[str, Candidate] = {}
    for candidate in parse_candidates(texts, "input", parse, problems):
        first.setdefault(candidate.text, candidate)
    output = value.get("output")
    references = () if output is None else (stripped_value(output, "output"),)
    return CandidateList(id_value(value.get("id"), "id"), "", tuple(first.values()), references)


def _write_hyporadise(lists: Iterable[CandidateList]) -> Iterator[str]:
    yield "["
    for index, one in enumerate(lists):
        value: JsonObject = {} if one.name is None else {"id": one.name}
        value["input"] = [candidate.text for candidate in one.candidates]
        if one.references:
            value["output"] = one.references[0]
        for feature in dict.fromkeys(name for candidate in one.candidates for name in candidate.features):
            key = _KEY_OF_FEATURE.get(feature, feature)
            if key in value or key in _OWN_KEYS or feature in _FEATURE_OF_KEY:
                raise InputError(f"feature {shorten(feature)!r} cannot be written in this format")
            value[key] = [
                float(format_number(candidate.features[feature])) if feature in candidate.features else None
                for candidate in one.candidates
            ]
        yield f"{',' if index else ''}\n{dump_json(value)}"
    yield "\n]\n"


HYPORADISE = Format(
    name="hyporadise",
    read=partial(read_elements, outer="[", parse=_hyporadise_list),
    write=_write_hyporadise,
    max_references=1,
    max_line_bytes=MAX_DOC_LINE_BYTES,
    media_types=("application/x-hyporadise+json",),
)


def _mlm_scoring_list(element: TextLine, problems: list[str]) -> CandidateList:
    name = string_value(parse_json_value(element.key or ""), "an utterance's name")
    label, value = shorten(name), parse_json_object(element.text)
    keys = sorted(filter(_HYPOTHESIS.fullmatch, value), key=lambda key: (int(key[4:]), key))
    if not keys:
        raise InputError(f"{label} has no hyp_1")
    fields = (f"{label}.{key}" for key in keys)

    def parse(value: Any, _place: str) -> Candidate:
        hypothesis = object_value(value, field := next(fields))
        score = number_value(hypothesis.get("score"), f"{field}.score")
        return Candidate(stripped_value(hypothesis.get("text"), f"{field}.text"), {"score": score})

    hypotheses = [value[key] for key in keys[:MAX_LIST_CANDIDATES]]
    candidates = parse_candidates(hypotheses, label, parse, problems)
    if len(keys) > MAX_LIST_CANDIDATES:
        problems.append(f"{label} has more than {MAX_LIST_CANDIDATES:,} hypotheses")
    references = () if value.get("ref") is None else (stripped_value(value["ref"], f"{label}.ref"),)
    return CandidateList(name, "", candidates, references)


def _write_mlm_scoring(lists: Iterable[CandidateList]) -> Iterator[str]:
    names: set[str] = set()
    yield "{"
    for index, one in enumerate(lists):
        name = str(index) if one.name is None else one.name
        if name in names:
            raise InputError(f"lists[{index}].id is {shorten(name)!r}, the id of an earlier list")
        names.add(name)
        value: JsonObject = {
            f"hyp_{number}": {"score": float(format_number(c.features.get("score", 0.0))), "text": c.text}
            for number, c in enumerate(one.candidates, start=1)
        }
        if one.references:
            value["ref"] = one.references[0]
        yield f"{',' if index else ''}\n{dump_json(name)}: {dump_json(value)}"
    yield "\n}\n"


MLM_SCORING = Format(
    name="mlm-scoring",
    read=partial(read_elements, outer="{", parse=_mlm_scoring_list),
    write=_write_mlm_scoring,
    first_key=re.compile(r'"hyp_[0-9]+"\s*:\s*\{'),
    features=frozenset({"score"}),
    max_references=1,
    max_line_bytes=MAX_DOC_LINE_BYTES,
    media_types=("application/x-mlm-scoring+json",),
)
