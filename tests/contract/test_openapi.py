"""Examples of the OpenAPI document agree with the service's replies; the service enforces every bound in it."""

import contextlib
import json
import re
import time

import httpx
import pytest
from fastapi.openapi.models import OpenAPI

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from service.api_keys import KeyScope, create_key
from service.routes.endpoints import make_document
from service.settings import Settings
from tests.support.fake_models import FakeModel
from tests.support.openapi import (
    EVENTS,
    JSON,
    LINES,
    OPENS_STATES,
    RECORDED_REPLIES,
    WRITTEN,
    Asker,
    Checker,
    MismatchError,
    examples_in,
    media_type_of,
    operations_in,
)
from tests.support.services import running
from training.progress import Progress
from training.tokenizer import TokenizerSettings, learn_tokenizer

TEXT = [
    "Return the value of the function.",
    "Return a new list of the words in the text.",
    "Raise an error if the name is not found.",
    "The current line number in the file.",
] * 20
KEY = create_key("tests", list(KeyScope))
BINARY = "application/octet-stream"


def publish(registry, name, seed, tokenizer):
    """Publish a model with a card, over subwords like the default models."""
    description = CheckpointDescription(
        "2026-01-01T00:00:00+00:00", {"valid": {"perplexity": 12.5}}, {}, [[3, 4]], {}
    )

    def write(folder):
        (folder / "MODEL_CARD.md").write_text(f"# {name}\n")
        (folder / "perplexities.png").write_bytes(b"no picture")
        write_checkpoint(folder, FakeModel(tokenizer.vocabulary, seed=seed), tokenizer, description)

    registry.publish(name, write)


@pytest.fixture(scope="module")
def served(fake_family, tmp_path_factory):
    """Serve models under the default models' names; yield the service and a client with all scopes."""
    registry = LocalRegistry(tmp_path_factory.mktemp("examples") / "registry", create=True)
    tokenizer = learn_tokenizer(TokenizerSettings(kind="bpe", vocab_size=330), TEXT, progress=Progress())
    for seed, name in enumerate(("lstm", "mixture", "ngram")):
        publish(registry, name, seed, tokenizer)
    registry.set_default("mixture")
    settings = Settings(registry=registry.root, api_keys=(KEY.key.line,))
    headers = {"authorization": f"Bearer {KEY.secret}"}
    with (
        running(settings) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=20) as client,
    ):
        yield server, client


@pytest.fixture(scope="module")
def document(served):
    return served[1].get("/openapi.json").json()


@pytest.fixture(scope="module")
def answers(served, document):
    """All examples and their replies."""
    asker = Asker(served[1], document)
    return [(example, asker.ask(example)) for example in examples_in(document)]


@pytest.fixture(scope="module")
def recorded():
    """Recorded replies of the default models."""
    return json.loads(RECORDED_REPLIES.read_text(encoding="utf-8"))


def reply_of(document, example, media_type=None):
    """Return the documented replies to an example: of one media type, or of all."""
    content = document["paths"][example.path][example.method]["responses"]["200"]["content"]
    return content if media_type is None else content[media_type]


def values(media_type, text):
    """Return the JSON values of a reply."""
    if media_type == JSON:
        return [json.loads(text)]
    if media_type == LINES:
        return [json.loads(line) for line in text.splitlines()]
    if media_type == EVENTS:
        events = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]
    return []


def names_in(document, schema, found):
    """Check values against a schema; return the field names by place, over all values."""
    names = {}
    for value in found:
        for place, some in Checker(document).check(value, schema).items():
            names[place] = names.get(place, set()) | some
    return names


@pytest.mark.parametrize(
    "wrong",
    [
        {"freed": "1"},
        {"freed": True},
        {"freed": None},
        {},
        {"freed": 1, "others": 2},
        [],
    ],
)
def test_a_reply_that_does_not_fit_would_be_seen(document, wrong):
    said = {"$ref": "#/components/schemas/FreeReply"}
    Checker(document).check({"freed": 1}, said)
    with pytest.raises(MismatchError):
        Checker(document).check(wrong, said)


def test_every_operation_has_an_example_of_what_is_asked_and_a_recorded_reply(document, recorded):
    without = []
    for path, method, operation in operations_in(document):
        for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
            if not body.get("examples"):
                without.append(f"{method} {path} body {media_type}")
        expected = WRITTEN & operation["responses"]["200"]["content"].keys()
        missing = expected - recorded.get(f"{method.upper()} {path}", {}).keys()
        without += [f"{method} {path} reply {media_type}" for media_type in missing]
    without.remove("get /v1/models/{address}/files/{name} reply text/markdown")  # shown by the card itself
    assert without == [], "record them: python -m tests.support.openapi REGISTRY"


def test_every_example_is_answered_as_the_document_says(document, answers):
    for example, answer in answers:
        assert answer.status_code == 200, f"{example}: {answer.text}"
        media_type = media_type_of(answer)
        said = reply_of(document, example, media_type)
        found = values(media_type, answer.text)
        assert found or media_type not in {JSON, LINES, EVENTS}, example
        names_in(document, said["schema"], found)


def test_no_example_of_lines_or_events_is_an_error(answers):
    for example, answer in answers:
        assert '{"error":' not in answer.text, f"{example}: {answer.text}"


def test_recorded_replies_have_the_fields_that_replies_have_now(document, answers, recorded):
    for example, answer in answers:
        media_type = media_type_of(answer)
        said = reply_of(document, example, media_type)
        replies = recorded.get(f"{example.method.upper()} {example.path}", {}).get(media_type, {})
        if example.name not in replies or media_type not in {JSON, LINES, EVENTS}:
            continue
        value = replies[example.name]
        text = json.dumps(value) if media_type == JSON else value
        now, then = (
            names_in(document, said["schema"], values(media_type, one)) for one in (answer.text, text)
        )
        both = now.keys() & then.keys()
        assert {place: now[place] for place in both} == {place: then[place] for place in both}, example


def test_replies_of_raw_numbers_have_the_size_that_their_header_says(served, document):
    asked = 0
    asker = Asker(served[1], document)
    for example in examples_in(document):
        if example.path == "/v1/states":
            asker.ask(example)
        if BINARY in reply_of(document, example) and example.name == "example":
            answer = asker.ask(example, accept=BINARY)
            rows, columns = (int(side) for side in answer.headers["x-shape"].split(","))
            assert media_type_of(answer) == BINARY
            assert len(answer.content) == 4 * rows * columns
            asked += 1
    assert asked >= 2


def test_the_errors_shown_are_those_answered(served, document):
    shown = {name: example["value"]["error"] for name, example in document["components"]["examples"].items()}
    url, client = served[0].url, served[1]
    refused = [
        client.post("/v1/next-token", json={"context": "a", "top_k": 0}),
        client.post("/v1/next-token", json={"context": "a", "model": "nobody"}),
        httpx.post(f"{url}/v1/next-token", json={"context": "a"}),
    ]
    for answer in refused:
        error = answer.json()["error"]
        said = shown[error["code"]]
        assert (
            error["message"].partition(";")[0] == said["message"].partition(";")[0]
        )  # without the list of loaded models
        assert {**error, "message": ""} == {**said, "message": ""}


def test_the_document_has_the_structure_that_openapi_asks_for(document):
    assert OpenAPI.model_validate(document).openapi == "3.1.0"


def test_every_reference_leads_somewhere(document):
    checker = Checker(document)

    def references(value):
        if isinstance(value, dict):
            yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from references(inner)

    found = set(references(document))
    assert len(found) > 30
    for reference in found:
        checker.resolve(reference)


def test_every_operation_is_described_grouped_and_says_what_key_it_asks_for(document):
    groups = [tag["name"] for tag in document["tags"]]
    for path, method, operation in operations_in(document):
        said = f"{method} {path}"
        assert len(operation["tags"]) == 1, said
        assert operation["tags"][0] in groups, said
        assert 5 < len(operation["summary"]) < 120, said
        assert operation["description"].startswith(operation["summary"][:40].split("\n")[0]), said
        assert "\n" not in operation["summary"], said
        assert {"200", "4XX", "5XX"} <= set(operation["responses"]), said
        scopes = {scope for asked in operation["security"] for scope in asked.get("key", ())}
        opened = path.startswith(("/health", "/v2/health"))
        assert scopes == (set() if opened else {"admin"} if path.startswith("/admin") else {"infer"}), said
        assert ({} in operation["security"]) == (scopes == {"infer"}), said
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_every_parameter_is_described_and_those_of_paths_have_an_example(document):
    for path, method, operation in operations_in(document):
        for param in operation.get("parameters", ()):
            said = f"{method} {path} {param['name']}"
            assert param.get("description"), said
            assert param["in"] == "query" or param["schema"].get("examples"), said


def test_the_document_is_small_and_made_quickly(served):
    app = served[0].app
    spent_s = []
    for _ in range(3):
        started_s = time.thread_time()
        made = make_document(app, app.state.endpoints)
        spent_s.append(time.thread_time() - started_s)
    assert len(json.dumps(made, ensure_ascii=False).encode()) < 400_000
    assert min(spent_s) < 0.3


BODY = "GRAMOPHONE_MAX_BODY_BYTES, and GRAMOPHONE_MAX_TOKENS_PER_SEQUENCE of one text"
COUNT = "GRAMOPHONE_MAX_TEXTS_PER_REQUEST"
ADDRESS = "an address, which is found or answered 404"
FREE = "kept or given back as it is; GRAMOPHONE_MAX_BODY_BYTES"
USERS = "GRAMOPHONE_MAX_USER_WORDS"
VOCABULARY = "the model's vocabulary"
ANY_NUMBER = "any finite number"
UNBOUNDED = {
    **dict.fromkeys(
        [
            "text",
            "texts",
            "context",
            "continuation",
            "prompt",
            "commit",
            "reference",
            "query",
            "word",
            "before",
            "text_after",
            "suffix",
        ],
        BODY,
    ),
    **dict.fromkeys(["references", "token_ids", "tokens", "slf", "kaldi"], BODY),
    **dict.fromkeys(["confusions", "times"], "as many as the words of a lattice, 50,000"),
    "beam": "any number from 0",
    **dict.fromkeys(
        ["candidates", "lists", "lattices", "continuations", "states", "free", "documents"], COUNT
    ),
    **dict.fromkeys(["model", "against", "address", "restore"], ADDRESS),
    **dict.fromkeys(["id", "metric", "signature", "created", "name", "user"], FREE),
    **dict.fromkeys(["words", "pairs", "corrections"], USERS),
    "next_token_ids": "of a reply, 131,072 in all",
    "logprob_token_ids": "of tokens, the vocabulary",
    "features": "from -10^12 to 10^12 where they have a weight",
    "weights": "a weight for each feature, which must be known",
    **dict.fromkeys(["weight", "logprob", "am", "old_lm"], ANY_NUMBER),
    **dict.fromkeys(["start", "end"], "the text's length"),
    "confidences": "one for each word of the text, of each text",
    "slots": "the model's classes; 10,000 members of 200 characters and 16 words",
    "timeout_ms": "the service's own limit holds too",
    "max_tokens": "GRAMOPHONE_MAX_NEW_TOKENS",
    "min_tokens": "max_tokens",
    "top_k": "GRAMOPHONE_MAX_TOP_K, or the vocabulary",
    **dict.fromkeys(["top", "top_n"], "more than there are is all"),
    "models": "of a profile that is stored; checked where it is used",
    "posterior_scale": "of a profile that is stored; checked where it is used",
}
"""Reasons for fields without a documented bound; numbers have at least one of two."""

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
        "dictionaries": ["en_US"],
    },
}
"""Fields missing in the examples, merged into the first of each."""

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
"""Values just beyond each bound; lists repeat an existing item."""

NO_IDS = {"NextTokenRequest.context minItems 1", "OpenStatesRequest.context minItems 1"}
"""An empty list is invalid as texts, but valid as token ids."""

_NUMBER = ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"})
BOUNDS = {
    "integer": _NUMBER,
    "number": _NUMBER,
    "string": ({"maxLength", "enum", "pattern"},),
    "array": ({"maxItems"},),
    "object": ({"maxProperties"},),
}
"""Keywords by type; each group needs one of its keywords."""


@pytest.fixture
def openapi(served):
    return served[1].get("/openapi.json").json()


def nodes(schemas, schema, place, path=()):
    """Yield all schemas below one, with their places in the document and in a body."""
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
    """Return a copy of a body with another value at a path.

    Raises:
        LookupError: a parent object is missing.
    """
    if not path:
        return new
    step, *below = path
    if step == 0:
        items = value if isinstance(value, list) else []
        return [placed(items[0] if items else None, below, new), *items[1:]]
    if not isinstance(value, dict) and step != "*":
        raise LookupError(step)
    names = value if isinstance(value, dict) else {}
    name = next(iter(names), "5") if step == "*" else step  # any existing name
    return {**names, name: placed(names.get(name), below, new)}


def asked(document):
    """Yield each example body, also with its additional fields, and its schema."""
    for example in examples_in(document):
        if example.media_type == JSON and isinstance(example.body, dict):
            content = document["paths"][example.path][example.method]["requestBody"]["content"]
            is_first = example.name == "example"
            for more in ({}, MORE_BODIES.get(example.path, {}) if is_first else {}):
                body, schema = example.body | more, content[JSON]["schema"]
                for alternative in schema.get("anyOf", (schema,)):
                    name = alternative["$ref"].rpartition("/")[2]
                    if body.keys() <= document["components"]["schemas"][name]["properties"].keys():
                        yield example._replace(body=body), alternative


def beyond(document):
    """Yield each documented bound: its place, its field, and an example that violates it."""
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


def test_value_beyond_a_documented_bound_is_refused_by_name(served, openapi):
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


def test_fields_without_a_documented_bound_have_a_reason(openapi):
    free, reasons = set(), set()
    for _, schema in asked(openapi):
        for place, path, node in nodes(openapi["components"]["schemas"], schema, ""):
            sides = [sides for sides in BOUNDS.get(node.get("type"), ()) if not sides & node.keys()]
            if sides and (node["type"] != "object" or isinstance(node.get("additionalProperties"), dict)):
                field = next((step for step in reversed(path) if step not in {0, "*"}), "")
                (reasons.add(field) if field in UNBOUNDED else free.add((place, *map(tuple, sides))))
    assert free == set(), "state a bound, or give the reason why there is none"
    assert UNBOUNDED.keys() == reasons, "these have bounds"
