"""Every operation of the OpenAPI document, with valid and invalid requests."""

from http import HTTPStatus

from schemathesis.specs.openapi.checks import negative_data_rejection, response_schema_conformance

from tests.fuzz.asking import DOCUMENT
from tests.fuzz.served import EVENTS, LINES, fuzz_schema, settings

SCHEMA, LINES_SCHEMA = fuzz_schema(DOCUMENT), fuzz_schema(DOCUMENT, lines=True)


def test_the_network_computes_in_int8(guarded):
    """Keep this test first: the model may be unloaded later."""
    with guarded.client() as client:
        assert client.get("/v1/models/lstm").json()["precision"] == "int8"


@SCHEMA.parametrize()
@settings
def test_an_operation_answers_as_documented(case, guarded_asker):
    answer = guarded_asker.ask(case)
    streamed = answer.headers["content-type"][0].startswith(
        EVENTS
    )  # the schema describes one event; the events are checked already
    case.validate_response(answer, excluded_checks=[response_schema_conformance] if streamed else None)


@LINES_SCHEMA.parametrize()
@settings
def test_lines_are_answered_by_lines(case, guarded_asker):
    answer = guarded_asker.ask(case)
    # an invalid line is answered by a line with an error
    case.validate_response(answer, excluded_checks=[negative_data_rejection, response_schema_conformance])
    if answer.status_code == HTTPStatus.OK and case.media_type == LINES:
        asked = max(1, len(case.body)) if isinstance(case.body, list) else 1  # an empty line is a line
        if case.path == "/v1/wordlists/{name}":
            asked = 1  # the lines are the entries of one list
        lines = answer.content.splitlines()
        # a request that ran out of its `timeout_ms` ends with a line that says so
        is_cut = "timeout_ms" in case.query and b'"deadline_exceeded"' in lines[-1]
        assert len(lines) == asked or (is_cut and len(lines) <= asked + 1)


def test_the_document_is_the_one_that_is_served(guarded):
    with guarded.client() as client:
        served = client.get("/openapi.json").json()
    assert served["paths"] == DOCUMENT["paths"]
    assert served["components"] == DOCUMENT["components"]


def test_each_operation_that_was_asked_was_answered_once(guarded_asker):
    """Keep this test last: an operation that is always refused is not fuzzed."""
    assert guarded_asker.asked - guarded_asker.succeeded == set()
