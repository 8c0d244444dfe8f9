"""Every operation of the OpenAPI document has examples, and they are what the service does."""

import json
import time

import httpx
import pytest
from fastapi.openapi.models import OpenAPI

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from service.api_keys import KeyScope, create_key
from service.routes.openapi import make_document, operations_in
from service.settings import Settings
from tests.fakes import FakeModel
from tests.json_schemas import Checker, MismatchError
from tests.openapi_examples import EVENTS, JSON, LINES, WRITTEN, Asker, examples_in, media_type_of
from tests.servers import running
from training.progress import Silent
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
    """A model with a card, over pieces of words as the default models have."""
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
    """A service with models of the default models' names, and its client, which may do everything."""
    registry = LocalRegistry(tmp_path_factory.mktemp("examples") / "registry", create=True)
    tokenizer = learn_tokenizer(TokenizerSettings(kind="bpe", vocab_size=330), TEXT, progress=Silent())
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
    """All examples and what is answered to them."""
    asker = Asker(served[1], document)
    return [(example, asker.ask(example)) for example in examples_in(document)]


def reply_of(document, example, media_type=None):
    """What the document says of an example's reply: of one media type, or of all."""
    content = document["paths"][example.path][example.method]["responses"]["200"]["content"]
    return content if media_type is None else content[media_type]


def values(media_type, text):
    """The JSON values that a reply is made of."""
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
    """The fields of values by place, all values together; each is as the schema says."""
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


def test_every_operation_has_an_example_of_what_is_asked_and_of_what_is_answered(document):
    without = []
    for path, method, operation in operations_in(document):
        for media_type, body in operation.get("requestBody", {}).get("content", {}).items():
            if not body.get("examples"):
                without.append(f"{method} {path} body {media_type}")
        for media_type, reply in operation["responses"]["200"]["content"].items():
            if media_type in WRITTEN and not reply.get("examples"):
                without.append(f"{method} {path} reply {media_type}")
    without.remove(
        "get /v1/models/{address}/files/{name} reply text/markdown"
    )  # the card, which shows it itself
    assert without == [], "record them: python -m tests.openapi_examples REGISTRY"


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


def test_recorded_replies_have_the_fields_that_replies_have_now(document, answers):
    for example, answer in answers:
        media_type = media_type_of(answer)
        said = reply_of(document, example, media_type)
        recorded = said.get("examples", {}).get(example.name)
        if recorded is None or media_type not in {JSON, LINES, EVENTS}:
            continue
        value = recorded["value"]
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
        )  # not which models are here
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
        opened = path.startswith("/health")
        assert scopes == (set() if opened else {"admin"} if path.startswith("/admin") else {"infer"}), said
        assert ({} in operation["security"]) == (scopes == {"infer"}), said
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"


def test_every_parameter_is_described_and_those_of_paths_have_an_example(document):
    for path, method, operation in operations_in(document):
        for parameter in operation.get("parameters", ()):
            said = f"{method} {path} {parameter['name']}"
            assert parameter.get("description"), said
            assert parameter["in"] == "query" or parameter.get("example"), said


def test_the_document_is_small_and_made_quickly(served):
    app = served[0].app
    spent_s = []
    for _ in range(3):
        started_s = time.thread_time()
        made = make_document(app)
        spent_s.append(time.thread_time() - started_s)
    assert len(json.dumps(made, ensure_ascii=False).encode()) < 400_000
    assert min(spent_s) < 0.3
