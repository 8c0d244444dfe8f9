"""How a fuzzer's case is asked, and what is seen of its answer."""

import json
from http import HTTPStatus

import requests

from tests.fuzz.document import STATES, served_document
from tests.fuzz.replies import check_reply

TIMEOUT_S = 60
"""An answer that takes longer is a hang."""

DOCUMENT = served_document()


class Asker:
    """Asks a service over connections that stay open.

    Args:
        service: that is fuzzed.

    Attributes:
        asked: the operations that were.
        succeeded: those that were answered with a success.
    """

    def __init__(self, service):
        self.service = service
        self.asked, self.succeeded = set(), set()
        self._session = requests.Session()

    def close(self):
        """Close the connections."""
        self._session.close()

    def ask(self, case, headers=None):
        """The answer to a case, once it is seen to be what the document says; headers others than the service's."""
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
    """A body with handles where it has what stands for them."""
    text = json.dumps(body)
    for place, handle in zip(STATES, handles, strict=False):
        text = text.replace(json.dumps(place), json.dumps(handle))
    return json.loads(text)
