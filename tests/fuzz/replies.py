"""What every answer of the service must be, whatever was asked."""

import json

from tests.fuzz.document import EVENTS, JSON, LINES
from tests.json_schemas import Checker

_BUSY = {
    "checkpoint_unusable",
    "deadline_exceeded",
    "memory_budget",
    "not_ready",
    "overloaded",
    "registry_unavailable",
    "states_full",
    "too_many_connections",
}
"""Codes of errors that are the service's and no fault of it."""


def _refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def read_json(text):
    """JSON in which all numbers are finite."""
    return json.loads(text, parse_constant=_refuse_constant)


def check_reply(document, operation, status, headers, content):
    """See that an answer is what the document says, and no fault of the service.

    Args:
        document: as it is served.
        operation: of it; None where it has none.
        status: of the answer.
        headers: of the answer.
        content: its body, bytes.
    """
    assert headers["x-request-id"]
    media_type = headers.get("content-type", "").partition(";")[0]
    if status >= 400:
        assert media_type == JSON
        check_error(document, status, headers, read_json(content))
    elif operation is not None and status == 200:
        _check_success(Checker(document), operation, media_type, content)


def check_error(document, status, headers, reply):
    """See that an error has the one shape, tells nothing of the inside, and is no fault of the service."""
    Checker(document).check(reply, {"$ref": "#/components/schemas/ErrorReply"})
    error = reply["error"]
    assert error["code"]
    assert len(error["message"]) < 2000
    assert "Traceback" not in error["message"]
    assert "/site-packages" not in error["message"]
    assert status < 500 or status == 501 or error["code"] in _BUSY, reply  # 501: a transfer coding
    assert status not in {429, 503} or int(headers["retry-after"]) > 0


def _check_success(checker, operation, media_type, content):
    documented = operation["responses"]["200"]["content"]
    assert media_type in documented, f"{media_type} is not among {list(documented)}"
    if media_type == JSON:
        values = [read_json(content)]
    elif media_type == LINES:
        values = [read_json(line) for line in content.splitlines()]
    elif media_type == EVENTS:
        values = events_of(content)
    else:
        return
    for value in values:
        checker.check(value, documented[media_type]["schema"])


def events_of(content):
    """The data of a stream's events; the last says that it is done, or what went wrong."""
    *events, last, rest = content.decode().split("\n\n")
    assert rest == ""
    if last != "data: [DONE]":
        events.append(last)
    told = [read_json(event.removeprefix("data: ")) for event in events]
    assert (last == "data: [DONE]") != ("error" in told[-1])
    return told
