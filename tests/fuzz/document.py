"""The service's OpenAPI document for a fuzzer: as it is served, with likelier values beside those that are allowed.

Any string is allowed as a model's name, and any integer as a token; a fuzzer that draws from all of them never gets
past the first check. Every likely value is among those that the document allows, so it stays true.
"""

import importlib
import json
import os
import pkgutil
from typing import Any

import hypothesis
import schemathesis
from fastapi import FastAPI

import service.routes
from service.routes.openapi import make_document
from tests.fuzz.served import MODELS

CASES = int(os.environ.get("GRAMOPHONE_FUZZ_CASES", "12"))  # noqa: TID251 - tests are no part of the service
"""Drawn for each operation, beside its examples and the edges of its schema."""

JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
STATES = tuple(f"(state {number})" for number in range(3))
"""Stand for handles of states that are opened just before they are asked about."""

_TEXTS = [
    "the cat sat on the mat",
    " hats",
    "w3 w4 w5",
    "a cat can't sit. It is",
    "don't",
    "Paris 中 🎷\n\nthe",
]
_ADDRESSES = [*MODELS, "mixture@1", "ngram@champion", "lstm@9"]
_LIKELY: dict[str, Any] = {
    "address": {"enum": _ADDRESSES},
    "against": {"enum": ["ngram", "lstm"]},
    "alias": {"enum": ["champion", "next"]},
    "commit": {"enum": _TEXTS},
    "max_tokens": {"minimum": 1, "maximum": 32, "type": "integer"},
    "model": {"enum": _ADDRESSES},
    "name": {"enum": [*MODELS, "MODEL_CARD.md"]},
    "session": {"enum": ["abc"]},
    "state": {"enum": list(STATES)},
    "text": {"enum": _TEXTS},
    "timeout_ms": {"enum": [20000, 10]},
    "user": {"enum": ["ann", "bob"]},
}
"""By the name of the field or parameter."""

_TOKEN = {"type": "integer"}
_LIKELY_TOKEN = {"type": "integer", "minimum": 0, "maximum": 39}


def served_document():
    """What /openapi.json tells, without a service."""
    app = FastAPI(title="Gramophone", version="0")
    for module in pkgutil.iter_modules(service.routes.__path__):
        routes = importlib.import_module(f"service.routes.{module.name}")
        if hasattr(routes, "router"):
            app.include_router(routes.router)
    return make_document(app)


def likely(document, *, lines):
    """The same document with likely values: of bodies that are lines or other programs' lists, or of all else."""
    document = json.loads(json.dumps(document))
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            schema["properties"][name] = _with_likely(name, _with_likely_items(name, field))
    for path, operations in list(document["paths"].items()):
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _with_likely(parameter["name"], parameter["schema"])
            if "requestBody" in operation:
                _keep_bodies(operation, lines=lines)
        if lines and not any(
            operation.get("requestBody", {}).get("content") for operation in operations.values()
        ):
            del document["paths"][path]
    return document


def _with_likely(name, schema):
    return {"anyOf": [_LIKELY[name], schema]} if name in _LIKELY else schema


def _with_likely_items(name, schema):
    """Tokens of lists and handles of states, however deep in a schema."""
    if isinstance(schema, list):
        return [_with_likely_items(name, one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_likely_items(name, value) for key, value in schema.items()}
    if found.get("items") == _TOKEN:
        found["items"] = {"anyOf": [_LIKELY_TOKEN, _TOKEN]}
    elif name in {"free", "states"} and "items" in found:
        found["items"] = {"anyOf": [_LIKELY["state"], found["items"]]}
    return found


def _keep_bodies(operation, *, lines):
    """Bodies of some media types, with the options that go with them; one of lines is a list, which `_lines` writes."""
    content = operation["requestBody"]["content"]
    operation["requestBody"]["content"] = {
        media_type: body for media_type, body in content.items() if (media_type != JSON) == lines
    }
    if not lines:
        asked = operation.get("parameters", ())
        operation["parameters"] = [parameter for parameter in asked if "x-only-with" not in parameter]
    elif LINES in content:
        del content[LINES]["examples"]  # texts of several lines
        content[LINES]["schema"] = {
            "type": "array",
            "items": content[LINES]["schema"],
            "minItems": 1,
            "maxItems": 4,
        }


@schemathesis.serializer(LINES)
def _lines(_context, value):
    lines = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def fuzz_schema(document, *, lines=False):
    """What schemathesis draws cases of, for pytest: those with bodies of lines, or all others."""
    settings = {
        "generation": {
            "max-examples": CASES,
            "deterministic": True,
            "database": "none",
            "with-security-parameters": False,  # made-up keys in the place of ours
        },
        "checks": {
            # what a service may say that is asked for more than it has time for
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503", "504"]},
            # too long is wrong as well; what is out of time was not looked at
            "negative_data_rejection": {"expected-statuses": ["4xx", "503", "504"]},
            # the schema does not tell what fields mean together, nor the limits of a service
            "positive_data_acceptance": {"enabled": False},
            "ignored_auth": {"enabled": False},  # has a test of its own, that draws keys
        },
    }
    config = schemathesis.Config.from_dict(settings)
    return schemathesis.openapi.from_dict(likely(document, lines=lines), config=config)


settings = hypothesis.settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
"""Of every fuzzer: the same cases in every run."""

drawn = hypothesis.settings(settings, phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink))
"""Without examples and the edges of schemas."""

many = hypothesis.settings(settings, max_examples=20 * CASES)
"""Of a fuzzer that is one test."""
