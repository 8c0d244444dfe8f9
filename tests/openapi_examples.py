"""The examples of an OpenAPI document, and how a service is asked them.

As a program it asks the default models of a registry and records the replies for the document:

    python -m tests.openapi_examples registry
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from service.api_keys import KeyScope, create_key
from service.routes.openapi import RECORDED_REPLIES
from service.settings import Settings
from tests.servers import running

JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
WRITTEN = frozenset({JSON, LINES, EVENTS, "text/markdown"})
"""Media types of replies that are shown; pictures, pages and raw numbers are not."""

ORDER = ("post", "put", "get", "delete")
"""What is made is read before it is deleted."""

OPENS_STATES = "/v1/states"
MAX_RECORDED_CHARACTERS = 6000
"""Longer replies are no good examples."""


class Example(NamedTuple):
    """A request of the document.

    Attributes:
        media_type: of the body.
        name: of the example.
        body: None where nothing is sent.
    """

    method: str
    path: str
    media_type: str
    name: str
    body: Any

    def __str__(self):
        return f"{self.method.upper()} {self.path} {self.media_type} {self.name}"


def examples_in(document):
    """All requests, in an order in which they work one after the other."""
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            bodies = operation.get(
                "requestBody", {"content": {JSON: {"examples": {"example": {"value": None}}}}}
            )
            found += [
                Example(method, path, media_type, name, example["value"])
                for media_type, content in bodies["content"].items()
                for name, example in content["examples"].items()
            ]
    # what is unloaded is loaded again
    return sorted(
        found, key=lambda example: (ORDER.index(example.method), not example.path.endswith("/unload"))
    )


def example_state(document):
    """The handle that stands for the state which the example of opening one opens."""
    example = document["components"]["schemas"]["FreeRequest"]["examples"][0]
    return example["states"][0]


class Asker:
    """Asks a service the examples of its document; what they say of a state is said of one that was opened.

    Args:
        client: of the service, with its key.
        document: of the service.
    """

    def __init__(self, client, document):
        self.client, self.document = client, document
        self.state = None

    def ask(self, example, *, accept="*/*"):
        """The answer to an example."""
        operation = self.document["paths"][example.path][example.method]
        url, query = example.path, {}
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "path":
                url = url.replace(f"{{{parameter['name']}}}", quote(parameter["example"], safe=""))
            elif "example" in parameter:
                query[parameter["name"]] = parameter["example"]
        body = example.body if isinstance(example.body, str) else json.dumps(example.body)
        if self.state is not None:
            body = body.replace(example_state(self.document), self.state)
        answer = self.client.request(
            example.method,
            url,
            params=query,
            headers={"content-type": example.media_type, "accept": accept},
            content=None if example.body is None else body,
        )
        if example.path == OPENS_STATES and answer.is_success:
            self.state = answer.json()["states"][0]["state"]
        return answer


def media_type_of(answer):
    """The media type of an answer, without its parameters."""
    return answer.headers["content-type"].partition(";")[0]


def record(registry):
    """The replies of a registry's models to all examples, by operation, media type and name."""
    key = create_key("examples", list(KeyScope))
    headers = {"authorization": f"Bearer {key.secret}"}
    with (
        running(Settings(registry=registry, api_keys=(key.key.line,))) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=60) as client,
    ):
        document = client.get("/openapi.json").raise_for_status().json()
        asker, recorded = Asker(client, document), {}
        for example in examples_in(document):
            answer = asker.ask(example)
            assert answer.is_success, f"{example}: {answer.status_code} {answer.text}"
            if media_type_of(answer) not in WRITTEN:
                continue
            text = answer.text
            assert len(text) <= MAX_RECORDED_CHARACTERS, f"{example}: the reply has {len(text)} characters"
            if asker.state is not None:
                text = text.replace(asker.state, example_state(document))
            reply = json.loads(text) if media_type_of(answer) == JSON else text
            replies = recorded.setdefault(f"{example.method.upper()} {example.path}", {})
            replies.setdefault(media_type_of(answer), {}).setdefault(example.name, reply)
    return recorded


if __name__ == "__main__":
    replies = json.dumps(record(Path(sys.argv[1])), ensure_ascii=False, indent=1)
    RECORDED_REPLIES.write_text(replies + "\n", encoding="utf-8")
