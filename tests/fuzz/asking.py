"""Sending of a fuzzer's cases, and checks that hold for every reply."""

import json
from http import HTTPStatus

import requests

from tests.fuzz.served import EVENTS, JSON, LINES, STATES, served_document
from tests.support.openapi import Checker

_BUSY = {
    "checkpoint_unusable",
    "deadline_exceeded",
    "memory_budget",
    "not_ready",
    "overloaded",
    "registry_unavailable",
    "share_exceeded",
    "states_full",
    "too_many_connections",
}
"""Error codes with which a service under load may answer 5xx."""


def _refuse_constant(name):
    raise AssertionError(f"{name} is no JSON")


def read_json(text):
    """Parse JSON; all numbers must be finite."""
    return json.loads(text, parse_constant=_refuse_constant)


def check_reply(document, operation, status, headers, content):
    """Check that a reply matches the document and is no internal error.

    Args:
        document: the served OpenAPI document.
        operation: the document's operation, or None.
        status: status of the reply.
        headers: headers of the reply.
        content: body of the reply, bytes.
    """
    assert headers["x-request-id"]
    media_type = headers.get("content-type", "").partition(";")[0]
    if status >= 400:
        assert media_type == JSON
        check_error(document, status, headers, read_json(content))
    elif operation is not None and status == 200:
        _check_success(Checker(document), operation, media_type, content)


def check_error(document, status, headers, reply):
    """Check that an error has the common shape, leaks no internals, and is no internal error."""
    Checker(document).check(reply, {"$ref": "#/components/schemas/ErrorReply"})
    error = reply["error"]
    assert error["code"]
    assert len(error["message"]) < 2000
    assert "Traceback" not in error["message"]
    assert "/site-packages" not in error["message"]
    assert status < 500 or status in {501, 505} or error["code"] in _BUSY, (
        reply
    )  # a transfer coding, a version
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
    """Return the data of a stream's events; the stream ends with [DONE] or an error."""
    *events, last, rest = content.decode().split("\n\n")
    assert rest == ""
    if last != "data: [DONE]":
        events.append(last)
    told = [read_json(event.removeprefix("data: ")) for event in events]
    assert (last == "data: [DONE]") != ("error" in told[-1])
    return told


TIMEOUT_S = 60
_LONG_URL = 32_000
"""Length of a URL from which a request may be too long with its headers; see `max_header_bytes`."""
"""A slower reply counts as a hang."""

DOCUMENT = served_document()


class Asker:
    """Client that fuzzes a service over persistent connections.

    Args:
        service: the fuzzed service.

    Attributes:
        asked: names of the operations called.
        succeeded: names of the operations that succeeded at least once.
    """

    def __init__(self, service):
        self.service = service
        self.asked, self.succeeded = set(), set()
        self._session = requests.Session()

    def close(self):
        """Close the connections."""
        self._session.close()

    def ask(self, case, headers=None):
        """Send a case and check the reply against the document; `headers` replace the service's."""
        if case.path.startswith("/v1/states/") and isinstance(case.body, dict):
            case.body = _with_states(case.body, self._opened_states())
        answer = case.call(
            base_url=self.service.url,
            session=self._session,
            headers=self.service.headers if headers is None else headers,
            timeout=TIMEOUT_S,
        )
        told = {name: values[0] for name, values in answer.headers.items()}
        operation = DOCUMENT["paths"][case.path].get(case.method.lower())
        if operation is not None:
            self._note(f"{case.method} {case.path}", answer.status_code)
        if answer.status_code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:  # refused before it has an id
            assert len(answer.request.url) > _LONG_URL
            check_error(DOCUMENT, answer.status_code, told, read_json(answer.content))
        else:
            check_reply(DOCUMENT, operation, answer.status_code, told, answer.content)
        return answer

    def _note(self, name, status):
        self.asked.add(name)
        if status < HTTPStatus.BAD_REQUEST:
            self.succeeded.add(name)

    def _opened_states(self):
        answer = self._session.post(
            f"{self.service.url}/v1/states",
            json={"context": ["the cat", "w3"]},
            headers=self.service.headers,
            timeout=TIMEOUT_S,
        )
        answer.raise_for_status()
        return [state["state"] for state in answer.json()["states"]]


def _with_states(body, handles):
    """Replace the placeholders in a body with handles."""
    text = json.dumps(body)
    for place, handle in zip(STATES, handles, strict=False):
        text = text.replace(json.dumps(place), json.dumps(handle))
    return json.loads(text)
