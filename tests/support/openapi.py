"""Examples of the OpenAPI document, requests with them, and checks of values against its JSON schemas.

    python -m tests.support.openapi registry

records the replies of a service with the models in `registry`.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx

from service.api_keys import KeyScope, create_key
from service.settings import Settings
from tests.support.services import running

RECORDED_REPLIES = Path(__file__).parents[1] / "contract" / "openapi_replies.json"
"""Recorded replies by operation, media type and name of the request's example."""

IGNORED = {"title", "description", "default", "examples", "format", "required"}
"""What says nothing about a value, or is looked at with `properties`."""

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
    """A value is not what its schema says; the message says where."""


class Checker:
    """Checks values against schemas of a document.

    Args:
        document: what references lead into.
    """

    def __init__(self, document):
        self.document = document

    def check(self, value, schema, place="$"):
        """The names that objects with declared fields have, by place, items of lists together.

        Raises:
            MismatchError: the value is not what the schema says.
        """
        names = defaultdict(set)
        self._check(value, schema, place, names)
        return dict(names)

    def resolve(self, reference):
        """What a reference leads to.

        Raises:
            KeyError: nothing.
        """
        found = self.document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return found

    def _check(self, value, schema, place, names):
        if "type" in schema:  # first, as the others take it for granted
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
"""What looks at the value for each keyword."""


JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
WRITTEN = frozenset({JSON, LINES, EVENTS, "text/markdown"})
"""Media types of replies that are shown; pictures, pages and raw numbers are not."""

ORDER = ("post", "put", "get", "delete")
"""What is made is read before it is deleted."""

OPENS_STATES = "/v1/states"
MAX_RECORDED_CHARACTERS = 6000
"""Longer replies are no good examples."""


def operations_in(document):
    """Each path, method and operation of a document, in order."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


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
    for path, method, operation in operations_in(document):
        bodies = operation.get("requestBody", {"content": {JSON: {"examples": {"example": {"value": None}}}}})
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
                url = url.replace(
                    f"{{{parameter['name']}}}", quote(parameter["schema"]["examples"][0], safe="")
                )
            elif "examples" in parameter["schema"]:
                query[parameter["name"]] = parameter["schema"]["examples"][0]
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
