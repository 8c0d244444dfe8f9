"""POST /v1/restore: capitals and punctuation over HTTP, in JSON and lines."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from models.checkpoint.registry import LocalRegistry
from service.cli.main import app
from service.settings import Settings
from tests.support.services import running
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("no_pictures")

TEXT = ["Anna lives in Ulm, near the Danube.", "Is the list in Ulm?", "She keeps the list."]
TEXTS = ["anna lives in ulm near the danube is the list in ulm", "she keeps the list", ""]
RESTORED = ["Anna lives in Ulm, near the Danube. Is the list in Ulm?", "She keeps the list.", ""]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restore")
    registry = LocalRegistry(folder / "registry", create=True)
    for name, lines in {"cased": TEXT, "lower": ["anna lives in ulm"]}.items():
        corpus = folder / f"{name}.txt"
        corpus.write_text("\n".join(lines * 20))
        pattern = r"tokenizer.pattern=\w+(?:['\u2019-]\w+)*|[,;:.?!]"
        options = {"corpus": [corpus], "name": name, "registry": str(registry.root)}
        run_train("ngram", **options, assignments=["ngram.order=3", pattern])
    return registry.root


@pytest.fixture(scope="module")
def http(registry):
    settings = Settings(registry=registry, default_model="cased")
    with running(settings) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        yield client


def test_texts_are_restored(http):
    reply = http.post("/v1/restore", json={"texts": TEXTS}).json()
    assert reply["model"] == "cased@1"
    assert [result["text"] for result in reply["results"]] == RESTORED
    assert [result["words"] for result in reply["results"]] == [[], [], []]


def test_words_are_told_with_offsets_and_posteriors(http):
    [result] = http.post("/v1/restore", json={"texts": TEXTS[:1], "words": True}).json()["results"]
    words = result["words"]
    assert [TEXTS[0][word["start"] : word["end"]] for word in words] == TEXTS[0].split()
    assert " ".join(word["text"] + word["mark"] for word in words) == result["text"]
    assert [word["text"] for word in words if word["ends_sentence"]] == ["Danube", "Ulm"]
    assert all(0.5 < word["posterior"] <= 1 for word in words)


def test_lines_of_a_text_may_be_sentences(http):
    text = "she keeps the list\nis the list in ulm\nanna lives"
    body = {"texts": [text], "one_per_line": True}
    [result] = http.post("/v1/restore", json=body).json()["results"]
    lines = [http.post("/v1/restore", json={"texts": [line]}).json() for line in text.split("\n")]
    assert result["text"].split("\n") == [line["results"][0]["text"] for line in lines]
    [whole] = http.post("/v1/restore", json={"texts": [text.replace("\n", " ")]}).json()["results"]
    [free] = http.post("/v1/restore", json={"texts": [text]}).json()["results"]
    assert free["text"].replace("\n", " ") == whole["text"]


def test_ndjson_gives_a_result_or_an_error_per_line(http):
    lines = [json.dumps({"id": str(n), "text": text}) for n, text in enumerate(TEXTS)]
    body = "\n".join([*lines, "{", '{"text": 1}', json.dumps({"text": "a " * 20_001})])
    headers = {"content-type": "application/x-ndjson"}
    answer = http.post("/v1/restore", content=body, headers=headers, params={"words": "true"})
    results = [json.loads(line) for line in answer.text.splitlines()]
    assert [(one["id"], one["text"]) for one in results[:3]] == list(
        zip(map(str, range(3)), RESTORED, strict=True)
    )
    assert results[0]["words"]
    assert [set(one) for one in results[3:]] == [{"error"}] * 3
    assert results[5]["error"]["message"] == "text has 20001 words; at most 20000 are accepted"
    assert results[5]["error"]["param"] == "text"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "texts", "texts"),
        ({"texts": []}, "texts", "at least 1"),
        ({"texts": ["ok", "a " * 20_001]}, "texts[1]", "has 20001 words; at most 20000 are accepted"),
        ({"texts": [None]}, "texts[0]", "string"),
        ({"texts": ["a"], "one_per_line": "maybe"}, "one_per_line", "maybe"),
        ({"texts": ["a " * 20_000] * 7, "words": True}, "words", "a reply has at most 131072"),
        ({"texts": ["a"] * 10_000}, "texts", "10000"),
        ({"texts": ["a"], "model": "lower"}, "model", "without capitals and punctuation"),
    ],
)
def test_bad_requests_name_the_field(http, body, param, message):
    answer = http.post("/v1/restore", json=body)
    assert 400 <= answer.status_code < 500
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_an_unknown_model_is_not_found(http):
    assert http.post("/v1/restore", json={"texts": ["a"], "model": "none"}).status_code == 404


def test_the_command_restores_arguments_and_lines(registry):
    runner = CliRunner()
    given = runner.invoke(app, ["restore", "cased", TEXTS[0], "--registry", str(registry)])
    assert given.stdout.splitlines() == RESTORED[:1]
    lines = runner.invoke(app, ["restore", "cased", "--registry", str(registry)], input="\n".join(TEXTS[:2]))
    assert lines.stdout.splitlines() == RESTORED[:2]
    as_json = runner.invoke(app, ["restore", "cased", TEXTS[1], "--json", "--registry", str(registry)])
    assert json.loads(as_json.stdout)["results"][0]["words"][0]["text"] == "She"


def test_listing_and_card_tell_what_a_model_restores(registry):
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, ["models", "list", "--json", "--registry", str(registry)]).stdout)
    assert {row["model"]: row["restores"] for row in rows} == {
        "cased@1": {"capitals": True, "marks": ",.?"},
        "lower@1": None,
    }
    card = runner.invoke(app, ["models", "show", "cased", "--registry", str(registry)]).stdout
    assert "it can restore capitals and the marks" in " ".join(card.split())
