"""The document of the interface states every bound of what is asked, and what is beyond one is refused."""

import contextlib
import re

import pytest

from tests.contract.test_examples import served  # noqa: F401 - a fixture
from tests.openapi_examples import JSON, OPENS_STATES, Asker, examples_in

BODY = "GRAMOPHONE_MAX_BODY_BYTES, and GRAMOPHONE_MAX_TOKENS_PER_SEQUENCE of one text"
COUNT = "GRAMOPHONE_MAX_TEXTS_PER_REQUEST"
ADDRESS = "an address, which is found or answered 404"
FREE = "kept or given back as it is; GRAMOPHONE_MAX_BODY_BYTES"
USERS = "GRAMOPHONE_MAX_USER_WORDS"
VOCABULARY = "the model's vocabulary"
ANY_NUMBER = "any finite number"
UNBOUNDED = {
    **dict.fromkeys(["text", "texts", "context", "continuation", "prompt", "commit", "reference"], BODY),
    **dict.fromkeys(["references", "token_ids", "tokens"], BODY),
    **dict.fromkeys(["candidates", "lists", "continuations", "states", "free"], COUNT),
    **dict.fromkeys(["model", "against", "address"], ADDRESS),
    **dict.fromkeys(["id", "metric", "signature", "created", "name", "user"], FREE),
    **dict.fromkeys(["words", "pairs"], USERS),
    "next_token_ids": "of a reply, 131,072 in all",
    "features": "from -10^12 to 10^12 where they have a weight",
    "weights": "a weight for each feature, which must be known",
    **dict.fromkeys(["weight", "logprob"], ANY_NUMBER),
    **dict.fromkeys(["start", "end"], "the text's length"),
    "timeout_ms": "the service's own limit holds too",
    "max_tokens": "GRAMOPHONE_MAX_NEW_TOKENS",
    "min_tokens": "max_tokens",
    "top_k": "GRAMOPHONE_MAX_TOP_K, or the vocabulary",
    "top": "more than there are is all",
    "models": "of a profile that is stored; checked where it is used",
    "posterior_scale": "of a profile that is stored; checked where it is used",
}
"""By the name of the field: what bounds it where the document cannot say; those of numbers have one bound at least."""

MORE_BODIES = {
    "/v1/score": {"texts": None, "token_ids": [[3, 4]]},
    "/v1/states/advance": {"free": ["state"]},
    "/v1/rerank": {"mixture": [{"model": "ngram", "weight": 1.0}], "model": None},
    "/v1/rerank/tune": {
        "models": [{"model": "ngram", "name": "old"}],
        "mixture": [{"model": "lstm", "weight": 1.0}],
    },
    "/v1/autocomplete": {"dictionary": [{"text": "word", "weight": 2.0}], "user": "ann", "session": "s"},
    "/v1/check": {
        "candidates": [{"start": 0, "end": 3, "suggestions": [{"text": "the", "logprob": -1.0}, "a"]}],
        "dictionary": ["word"],
    },
}
"""What the examples do not have, put into the first of each."""

BEYOND = {
    "minimum": lambda bound, _: bound - 1,
    "maximum": lambda bound, _: bound + max(1, abs(bound)),
    "exclusiveMinimum": lambda bound, _: bound,
    "exclusiveMaximum": lambda bound, _: bound,
    "minLength": lambda bound, _: "a" * (bound - 1),
    "maxLength": lambda bound, _: "a" * (bound + 1),
    "pattern": lambda bound, _: next(bad for bad in (" ", "", "a\nb") if not re.search(bound, bad)),
    "enum": lambda _bound, _: "none of these",
    "minItems": lambda _bound, _: [],
    "maxItems": lambda bound, item: [item] * (bound + 1),
    "minProperties": lambda _bound, _: {},
    "maxProperties": lambda bound, _: {str(n): 0.0 for n in range(bound + 1)},
}
"""A value past each bound, of a list with the item that is there."""

NO_IDS = {"NextTokenRequest.context minItems 1", "OpenStatesRequest.context minItems 1"}
"""An empty list is no texts, but it may be no token ids."""

_NUMBER = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
BOUNDS = {
    "integer": _NUMBER,
    "number": _NUMBER,
    "string": ({"maxLength", "enum", "pattern"},),
    "array": ({"maxItems"},),
    "object": ({"maxProperties"},),
}
"""By type: of which keywords there should be one."""


@pytest.fixture
def openapi(served):  # noqa: F811
    return served[1].get("/openapi.json").json()


def nodes(schemas, schema, place, path=()):
    """All schemas of values below one: where they stand in the document and in a body, and themselves."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from nodes(schemas, schemas[name], name, path)
        return
    yield place, path, schema
    for other in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from nodes(schemas, other, place, path)
    if "items" in schema:
        yield from nodes(schemas, schema["items"], f"{place}[]", (*path, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schemas, schema["additionalProperties"], f"{place}{{}}", (*path, "*"))
    for name, below in schema.get("properties", {}).items():
        yield from nodes(schemas, below, f"{place}.{name}", (*path, name))


def placed(value, path, new):
    """A copy of a body with another value at a path.

    Raises:
        LookupError: an object on the way is not there.
    """
    if not path:
        return new
    step, *below = path
    if step == 0:
        items = value if isinstance(value, list) else []
        return [placed(items[0] if items else None, below, new), *items[1:]]
    if not isinstance(value, dict) and step != "*":
        raise LookupError(step)
    names = value or {}
    name = next(iter(names), "5") if step == "*" else step  # any name that is there
    return {**names, name: placed(names.get(name), below, new)}


def asked(document):
    """Each example of a body, with what more there may be in it, and its schema."""
    for example in examples_in(document):
        if example.media_type == JSON and isinstance(example.body, dict):
            content = document["paths"][example.path][example.method]["requestBody"]["content"]
            for more in ({}, MORE_BODIES.get(example.path, {})):
                yield example._replace(body=example.body | more), content[JSON]["schema"]


def beyond(document):
    """What the document says of each bound: its place, the field it is of, and an example with a value past it."""
    schemas = document["components"]["schemas"]
    for example, schema in asked(document):
        for place, path, node in nodes(schemas, schema, ""):
            field = next((step for step in reversed(path) if step not in {0, "*"}), "")
            items = example.body.get(field)
            item = items[0] if isinstance(items, list) and items else "a"
            for bound in BEYOND.keys() & node.keys():
                with contextlib.suppress(LookupError):
                    body = placed(example.body, path, BEYOND[bound](node[bound], item))
                    yield f"{place} {bound} {node[bound]}", field, example._replace(body=body)


def test_what_is_beyond_a_stated_bound_is_refused_by_its_name(served, openapi):  # noqa: F811
    asker, tried, accepted = Asker(served[1], openapi), set(), []
    asker.ask(next(one for one in examples_in(openapi) if one.path == OPENS_STATES))
    for bound, field, example in beyond(openapi):
        tried.add(bound)
        answer = asker.ask(example)
        if (answer.status_code != 400 or field not in answer.text) and bound not in NO_IDS:
            accepted.append((bound, example.body, answer.text))
    stated = {
        f"{place} {bound} {node[bound]}"
        for _, schema in asked(openapi)
        for place, _, node in nodes(openapi["components"]["schemas"], schema, "")
        for bound in BEYOND.keys() & node.keys()
    }
    assert accepted == []
    assert stated == tried


def test_what_has_no_stated_bound_has_a_reason(openapi):
    free, reasons = set(), set()
    for _, schema in asked(openapi):
        for place, path, node in nodes(openapi["components"]["schemas"], schema, ""):
            sides = [sides for sides in BOUNDS.get(node.get("type"), ()) if not sides & node.keys()]
            if sides and (node["type"] != "object" or isinstance(node.get("additionalProperties"), dict)):
                field = next((step for step in reversed(path) if step not in {0, "*"}), "")
                (reasons.add(field) if field in UNBOUNDED else free.add((place, *sides)))
    assert free == set(), "state a bound, or give the reason why there is none"
    assert UNBOUNDED.keys() == reasons, "these have bounds"
