"""Examples of the OpenAPI document, requests with them, and validation of values against its JSON schemas.

    python -m tests.support.openapi registry

records a service's replies with the models in `registry`.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import httpx

from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.services import running

RECORDED_REPLIES = Path(__file__).parents[1] / "contract" / "openapi_replies.json"
"""Recorded replies by operation, media type and name of the request example."""

IGNORED = {"title", "description", "default", "examples", "format", "required"}
"""Keywords that do not constrain a value, or are checked with `properties`."""

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}
BOUNDS = {
    "pattern": lambda value, bound: re.search(bound, value) is not None,
    "minimum": lambda value, bound: value >= bound,
    "maximum": lambda value, bound: value <= bound,
    "exclusiveMinimum": lambda value, bound: value > bound,
    "exclusiveMaximum": lambda value, bound: value < bound,
    "minLength": lambda value, bound: len(value) >= bound,
    "maxLength": lambda value, bound: len(value) <= bound,
    "minItems": lambda value, bound: len(value) >= bound,
    "maxItems": lambda value, bound: len(value) <= bound,
    "minProperties": lambda value, bound: len(value) >= bound,
    "maxProperties": lambda value, bound: len(value) <= bound,
    "const": lambda value, bound: value == bound,
    "enum": lambda value, bound: value in bound,
}


class MismatchError(AssertionError):
    """A value does not match its schema; the message contains its position."""


class Checker:
    """Validator of values against a document's schemas.

    Args:
        document: target of references.
    """

    def __init__(self, document):
        self.document = document

    def check(self, value, schema, place="$"):
        """Check a value; return the field names of objects with declared fields, by place, list items merged.

        Raises:
            MismatchError: the value does not match the schema.
        """
        names = defaultdict(set)
        self._check(value, schema, place, names)
        return dict(names)

    def resolve(self, reference):
        """Return the target of a reference.

        Raises:
            KeyError: the target does not exist.
        """
        found = self.document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found

    def _check(self, value, schema, place, names):
        if "type" in schema:  # first, because the other checks assume it
            self._type(value, schema["type"], place)
        for keyword, said in schema.items():
            if keyword in BOUNDS:
                if not BOUNDS[keyword](value, said):
                    raise MismatchError(f"{place} is {value!r}: {keyword} is {said!r}")
            elif keyword in KEYWORDS:
                KEYWORDS[keyword](self, value, schema, place, names)
            elif keyword not in {"type", *IGNORED}:
                raise MismatchError(f"{place}: the checker does not know the keyword {keyword}")

    def _reference(self, value, schema, place, names):
        self._check(value, self.resolve(schema["$ref"]), place, names)

    def _type(self, value, said, place):
        if not isinstance(value, TYPES[said]) or (isinstance(value, bool) and said != "boolean"):
            raise MismatchError(f"{place} is {value!r}, which is no {said}")

    def _any_of(self, value, schema, place, names):
        failures = []
        for alternative in schema["anyOf"]:
            found = defaultdict(set)
            try:
                self._check(value, alternative, place, found)
            except MismatchError as failure:
                failures.append(str(failure))
            else:
                for at, some in found.items():
                    names[at] |= some
                return
        raise MismatchError(f"{place} is none of its alternatives: {failures}")

    def _items(self, value, schema, place, names):
        for item in value:
            self._check(item, schema["items"], f"{place}[]", names)

    def _free_fields(self, value, schema, place, names):
        if isinstance(schema["additionalProperties"], dict):
            for field in value.values():
                self._check(field, schema["additionalProperties"], f"{place}.*", names)

    def _object(self, value, schema, place, names):
        known = schema["properties"]
        names[place] |= set(value)
        if missing := set(schema.get("required", ())) - set(value):
            raise MismatchError(f"{place} lacks {sorted(missing)}")
        if unknown := set(value) - set(known):
            raise MismatchError(f"{place} has {sorted(unknown)}, which its schema does not name")
        for name, field in value.items():
            self._check(field, known[name], f"{place}.{name}", names)


KEYWORDS = {
    "$ref": Checker._reference,
    "anyOf": Checker._any_of,
    "items": Checker._items,
    "properties": Checker._object,
    "additionalProperties": Checker._free_fields,
}
"""Check method for each keyword."""


JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
FORM = "application/x-www-form-urlencoded"
WRITTEN = frozenset({JSON, LINES, EVENTS, "text/markdown"})
"""Media types of recorded replies; images, pages and raw numbers are omitted."""

ORDER = ("post", "put", "get", "delete")
"""Order of methods, so resources are created, then read, then deleted."""

OPENS_STATES = "/v1/states"
MAX_RECORDED_CHARS = 6000
"""Maximum length of a recorded reply, because longer ones are poor examples."""


def operations_in(document):
    """Path, method and operation of each endpoint, in document order."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


class Example(NamedTuple):
    """Example request of the document.

    Attributes:
        media_type: media type of the body.
        name: name of the example.
        body: None if the request has no body.
    """

    method: str
    path: str
    media_type: str
    name: str
    body: Any

    def __str__(self):
        return f"{self.method.upper()} {self.path} {self.media_type} {self.name}"


def examples_in(document):
    """All example requests, in an order in which each one succeeds."""
    found = []
    for path, method, operation in operations_in(document):
        bodies = operation.get("requestBody", {"content": {JSON: {"examples": {"example": {"value": None}}}}})
        found += [
            Example(method, path, media_type, name, example["value"])
            for media_type, content in bodies["content"].items()
            for name, example in content["examples"].items()
        ]
    # models are unloaded before they are loaded again, and parts are deleted before the whole
    return sorted(
        found,
        key=lambda example: (
            ORDER.index(example.method),
            not example.path.endswith("/unload"),
            -example.path.count("/") if example.method == "delete" else 0,
        ),
    )


def example_state(document):
    """State handle that the examples use."""
    example = document["components"]["schemas"]["FreeRequest"]["examples"][0]
    return example["states"][0]


class Asker:
    """Client that sends the examples of a document, with state handles replaced by those of an opened state.

    Args:
        client: HTTP client of the service, with its key.
        document: OpenAPI document of the service.
    """

    def __init__(self, client, document):
        self.client, self.document = client, document
        self.state = None

    def ask(self, example, *, accept="*/*"):
        """Send an example and return the response."""
        operation = self.document["paths"][example.path][example.method]
        url, query = example.path, {}
        for param in operation.get("parameters", ()):
            if param["in"] == "path":
                url = url.replace(f"{{{param['name']}}}", quote(param["schema"]["examples"][0], safe=""))
            elif "examples" in param["schema"]:
                query[param["name"]] = param["schema"]["examples"][0]
        if example.media_type == FORM:
            body = urlencode(example.body)
        else:
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
    """Media type of a response, without parameters."""
    return answer.headers["content-type"].partition(";")[0]


def record(registry):
    """Return the replies of a registry's models to all examples, by operation, media type and name."""
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
            assert len(text) <= MAX_RECORDED_CHARS, f"{example}: the reply has {len(text)} characters"
            if asker.state is not None:
                text = text.replace(asker.state, example_state(document))
            reply = json.loads(text) if media_type_of(answer) == JSON else text
            replies = recorded.setdefault(f"{example.method.upper()} {example.path}", {})
            replies.setdefault(media_type_of(answer), {}).setdefault(example.name, reply)
    return recorded


if __name__ == "__main__":
    replies = json.dumps(record(Path(sys.argv[1])), ensure_ascii=False, indent=1)
    RECORDED_REPLIES.write_text(replies + "\n", encoding="utf-8")
