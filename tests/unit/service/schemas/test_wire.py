"""Validation of JSON bodies and lines; model metrics as JSON."""

import json
import math
import tracemalloc
from typing import get_args
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.errors import InputError
from models.phrases import PhraseList
from service.operations.autocomplete import AutocompleteRequest
from service.operations.check import CheckRequest
from service.operations.completions import CompletionRequest
from service.operations.generate import GenerateRequest
from service.operations.languagetool import LanguageToolRequest
from service.operations.next_token import NextTokenRequest
from service.operations.operation import Operation
from service.operations.rerank_request import RerankRequest, RerankSettings
from service.operations.score import ScoreLine, ScoreRequest
from service.routes import operations
from service.schemas import wire
from service.schemas.models import _figures
from service.schemas.wire import check_json_size, parse_form, parse_json, parse_lines


@pytest.mark.parametrize("body", [b"", b"\n", b"a", b"a\n", b"a\n\n", b"\na\nb", b"a\nbc\nd\n"])
def test_lines_are_what_stands_between_line_feeds(body):
    assert list(parse_lines(body, bytes)) == body.removesuffix(b"\n").split(b"\n")


def test_many_lines_are_not_cut_at_once():
    """Regression: splitting millions of short lines took many times the memory of the body."""
    body = b"ab\n" * 300_000
    tracemalloc.start()
    try:
        next(parse_lines(body, lambda line: parse_json(ScoreLine, line)))
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (ScoreRequest, {"texts": [1] * 9}),
        (ScoreRequest, {"token_ids": [[""] * 9] * 9}),
        (CompletionRequest, {"prompt": [[""] * 9] * 9}),
        (RerankRequest, {"lists": [{"candidates": [{}] * 9}] * 9}),
        (AutocompleteRequest, {"text": "a", "dictionary": [{"text": ""}] * 9}),
    ],
)
def test_a_list_is_not_looked_at_past_what_is_wrong(kind, body):
    """Regression: rejecting 4 MB of invalid items took 20 seconds and 1.7 GB."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate_json(json.dumps(body))
    assert caught.value.error_count() == 1


def test_wrong_values_by_the_thousand_are_counted_only():
    with pytest.raises(InputError, match="2000 values in the request body are invalid"):
        parse_json(GenerateRequest, json.dumps({"logit_bias": dict.fromkeys(range(2000), "")}).encode())


def test_of_a_value_without_end_the_beginning_is_told():
    with pytest.raises(InputError) as caught:
        parse_json(ScoreRequest, json.dumps({"model": [{"a" * 999: ["b" * 999] * 99}] * 99}).encode())
    assert str(caught.value).startswith("model is [{'aaa")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ({"test": {"perplexity": 7}, "valid": {"perplexity": 8.0}}, {"perplexity": 7.0}),
        ({"valid": {"perplexity": None, "exact": True, "tokens": 3}}, {"tokens": 3.0}),
        ({"test": {"tokens": 10**400, "oov": 1}}, {"oov": 1.0}),
        ({"test": {"bits": float("nan"), "nats": float("inf")}}, {}),
        ({"test": 3}, {}),
        ({}, {}),
    ],
)
def test_figures_are_finite_numbers(metrics, told):
    """Regression: a number that was too large, or invalid metrics, failed the complete list of models."""
    assert _figures(metrics) == told


@pytest.mark.parametrize("scale", [-0.1, math.nan, math.inf, 2e6])
def test_a_scale_of_posteriors_has_limits(scale):
    with pytest.raises(InputError, match="posterior_scale"):
        RerankSettings().model_copy(update={"posterior_scale": scale}).job(None, lambda _: None, PhraseList)


JSON = st.recursive(
    st.text('a"\\\\[{,:}]é\n', max_size=9) | st.floats(0, 1) | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\\\[,:'), inner, max_size=4),
)


def size_of(value):
    """Arrays and objects of a value, and its commas and colons."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [size_of(one) for one in (value.values() if isinstance(value, dict) else value)]
    separators = max(0, len(value) - 1) + (len(value) if isinstance(value, dict) else 0)
    return 1 + sum(containers for containers, _ in inner), separators + sum(more for _, more in inner)


@given(JSON, st.booleans(), st.integers(1, 40))
def test_values_of_a_body_are_counted_exactly(value, ascii_only, at_once):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_CONTAINERS", 3)
        patch.setattr(wire, "MAX_VALUES", 5)
        patch.setattr(wire, "_JSON_BYTES_AT_ONCE", at_once)
        containers, separators = size_of(value)
        if len(body) > 6 and (containers > 3 or separators > 5):
            with pytest.raises(InputError, match="at most"):
                check_json_size(body)
        else:
            check_json_size(body)


@pytest.mark.parametrize("unit", ["[1],", "1,", "[],", '"a",', "{},", '{"":1},', "[[],[]],"])
def test_many_values_are_rejected_before_they_exist(unit):
    body = b'{"context":[' + unit.encode() * (12_000_000 // len(unit)) + b"1]}"
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="at most"):
            parse_json(NextTokenRequest, body)
        assert tracemalloc.get_traced_memory()[1] < len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["[" * 2_000_000, '{\\"' * 1_000_000, ",:" * 1_000_000])
def test_texts_of_brackets_and_commas_are_accepted(text):
    parse_json(ScoreRequest, json.dumps({"texts": [text]}).encode())


@given(st.text("a%4Ee+& =é\x00", max_size=40), st.integers(3, 9))
def test_form_fields_are_decoded_as_by_urllib_whatever_the_pieces(text, at_once):
    body = b"language=auto&text=" + text.replace("&", "").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_FORM_BYTES_AT_ONCE", at_once)
        expected = parse_qs(body.decode(), keep_blank_values=True, encoding="utf-8", errors="replace")
        if "\ufffd" in expected["text"][0]:
            return
        assert parse_form(LanguageToolRequest, body).text == expected["text"][0]


def test_form_fields_that_nobody_reads_are_not_decoded():
    body = b"language=auto&text=a&x=" + b"%41" * 1_000_000 + b"&" + b"%41" * 1_000_000
    tracemalloc.start()
    try:
        assert parse_form(LanguageToolRequest, body).text == "a"
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


def parts_of(schema):
    """All schemas within a core schema."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from parts_of(part)


def test_other_threads_run_while_a_long_body_is_validated():
    """Regression: seven megabytes of phrases stopped all threads for 1.4 s; Python functions let others run."""
    requests = [RerankRequest, AutocompleteRequest, CheckRequest, ScoreRequest]
    containers = [
        part.get("items_schema") or part.get("values_schema")
        for request in requests
        for part in parts_of(request.__pydantic_core_schema__)
        if part.get("type") in {"list", "dict"}
    ]
    kinds = {one["type"] for one in containers}
    assert len(containers) > 20
    assert kinds <= {"function-after", "int", "float"}


def unions_in(schema):
    """Yield unions without a rule that chooses one alternative, in pydantic's schema of a model."""
    if isinstance(schema, dict):
        if schema.get("type") == "union":
            yield schema
        for name, part in schema.items():
            if name not in {"metadata", "serialization"}:
                yield from unions_in(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            yield from unions_in(part)


def models_of_requests():
    """Yield the models of bodies, settings and lines that the routes name."""
    for one in vars(operations).values():
        if isinstance(one, type) and issubclass(one, Operation):
            yield from get_args(one.request) or (one.request,)
            yield from {getattr(one, "settings", None)} - {None}
        elif isinstance(one, type) and issubclass(one, wire.WireModel):
            yield one


@pytest.mark.parametrize("body", sorted({*models_of_requests()}, key=str), ids=lambda one: one.__name__)
def test_errors_concern_one_alternative_of_each_field(body):
    """Without a rule, an error names an alternative as if it were a field: stop.str."""
    assert not [*unions_in(body.__pydantic_core_schema__)]


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        (AutocompleteRequest, "keys", [5], "keys[0] is 5: input should be letters, an object of pr"),
        (
            AutocompleteRequest,
            "keys",
            ["h", [1e308, 1]],
            "keys[1][0] is 1e+308: input should be less than or",
        ),
        (AutocompleteRequest, "keys", [[1, 2, 3]], "keys[0] is [1, 2, 3]: list should have at most 2 items"),
        (AutocompleteRequest, "keys", [{}], "keys[0] is {}: object should have at least 1 item"),
        (AutocompleteRequest, "keys", [{"h": 2}], "keys[0].h is 2: input should be less than or equal to 1"),
        (AutocompleteRequest, "keys", [{"ab": 1}], "keys[0].ab is 'ab': string should have at most 1 char"),
        (GenerateRequest, "stop", 5, "stop is 5: input should be a string or a list of strings"),
        (CompletionRequest, "stop", ["a", 5], "stop[1] is 5: input should be a valid string"),
        (RerankRequest, "weights", {"[lm]": "x"}, "weights.[lm] is 'x': input should be a valid number"),
    ],
)
def test_errors_of_a_value_of_several_kinds(kind, field, value, message):
    others = {AutocompleteRequest: {"text": "h"}, RerankRequest: {"lists": []}}
    body = others.get(kind, {"prompt": "h"})
    with pytest.raises(InputError) as caught:
        parse_json(kind, json.dumps(body | {field: value}).encode())
    assert str(caught.value).startswith(message)
    assert caught.value.param == message.partition(" is ")[0]
