"""The playground offers the options of requests, and the generated reference describes all that it lists."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from docs import hooks
from service.operations.autocomplete import AutocompleteRequest
from service.operations.check import CheckRequest
from service.operations.generate import GenerateRequest
from service.operations.next_token import NextTokenRequest
from service.operations.rerank_request import RerankRequest
from service.operations.score import QualityRequest, ScoreRequest
from service.settings import described_settings

ROOT = Path(__file__).parents[2]
REQUESTS = {
    "/v1/next-token": NextTokenRequest,
    "/v1/score": ScoreRequest,
    "/v1/rerank": RerankRequest,
    "/v1/generate": GenerateRequest,
    "/v1/autocomplete": AutocompleteRequest,
    "/v1/check": CheckRequest,
    "/v1/quality": QualityRequest,
}
PAGES = {
    "/v1/next-token": ("write.js", "tokens.js"),
    "/v1/score": ("heat.js",),
    "/v1/rerank": ("rerank.js",),
    "/v1/generate": ("generate.js",),
    "/v1/autocomplete": ("write.js", "autocomplete.js"),
    "/v1/check": ("check.js",),
}
"""Where the playground asks each endpoint."""

TIMELY, IDS = "a newer request cancels an older one", "people write text"
LEFT_OUT = {
    "/v1/next-token": {
        "candidates": "programs choose among texts",
        "token_ids": IDS,
        "timeout_ms": TIMELY,
    },
    "/v1/score": {
        "token_ids": IDS,
        "context": "lines are scored whole",
        "bos": "lines are sentences",
        "slots": "completions of the same page have them",
        "ngram_lengths": "for programs that work like KenLM",
        "timeout_ms": TIMELY,
    },
    "/v1/rerank": {
        "mixture": "the model is chosen for the whole page",
        "models": "likewise",
        "commit_eos": "one list, no conversation",
        "lists[].session": "likewise",
        "lists[].commit": "likewise",
        "lists[].continuation": "query likelihood is for programs",
        "lists[].id": "one list has no need of it",
        "corrections": "a profile has them",
        "phrases[].wordlist": "its entries can be pasted",
        "phrases[].weight": "they are equal",
        "phrases[].class": "likewise",
    },
    "/v1/generate": {"phrases": "programs know names"},
    "/v1/autocomplete": {
        "dictionary[].weight": "a word a line is enough",
        "models": "the page has one model",
        "keys": "a page does not know where keys were touched",
        "layout": "likewise",
    },
    "/v1/check": {
        "candidates": "a caller's own error model is for programs",
        "models": "likewise",
        "dictionary[].wordlist": "words typed into the page are enough",
    },
}
"""What the playground does not offer, with all inside it, and why; /v1/quality filters corpora and has no page."""

FORM = re.compile(r'optionsOf\("(?P<kind>\w+)", (?P<groups>[A-Z]+)')


def options(path):
    """Names of all fields of a request, those of objects in lists too."""
    schema = REQUESTS[path].model_json_schema()
    return {row.name for row in hooks.fields(schema, schema.get("$defs", {}))}


def page(path):
    return "\n".join((ROOT / "service/static" / name).read_text(encoding="utf-8") for name in PAGES[path])


@pytest.mark.parametrize("path", PAGES)
def test_the_playground_offers_every_option_that_is_not_left_out_on_purpose(path):
    names, left_out, text = options(path), LEFT_OUT[path], page(path)
    assert set(left_out) <= names
    for name in names:
        word = re.escape(name.rpartition(".")[2])
        offered = re.search(rf"(?<![\w-]){word}(?![\w-])", text)
        assert offered or any(name == out or name.startswith(f"{out}[]") for out in left_out), name


def test_the_forms_of_the_playground_offer_nothing_that_is_no_option():
    kinds = {kind.__name__: kind for kind in REQUESTS.values()}
    forms = 0
    for source in (ROOT / "service/static").glob("*.js"):
        text = source.read_text(encoding="utf-8")
        for form in FORM.finditer(text):
            groups = re.search(rf"const {form['groups']} = \[(.*?)\];\n", text, re.DOTALL)[1]
            offered = set(re.findall(r'"([a-z]+(?:_[a-z]+)*)"', groups))
            assert offered
            assert offered <= set(kinds[form["kind"]].model_json_schema()["properties"]), source.name
            forms += 1
    assert forms >= 5


PYTHON_PAGE = ROOT / "docs/reference/python.md"


def test_the_ngram_example_runs(capsys):
    blocks = [
        block.removeprefix("python\n")
        for block in PYTHON_PAGE.read_text(encoding="utf-8").split("```")
        if block.startswith("python\n")
    ]
    (example,) = [block for block in blocks if "estimate(" in block]
    exec(compile(example, PYTHON_PAGE.name, "exec"), {})  # noqa: S102 - our own text
    total, *best, _ = capsys.readouterr().out.splitlines()
    assert abs(float(total) - 1) < 1e-5
    assert best[0].split()[0] == "cat"


@pytest.fixture(scope="module")
def reference():
    """The generated pages by name; to make them fails where anything has no description."""
    return hooks.reference_pages()


def test_the_reference_has_every_setting_with_its_default(reference):
    for variable, default, _ in described_settings():
        assert f"| `{variable}` | {hooks.shown_setting(default)} | " in reference["settings"]


@pytest.mark.parametrize("path", REQUESTS)
def test_the_reference_has_every_option(path, reference):
    section = reference["endpoints"].partition(f"### POST {path}\n")[2].partition("\n### ")[0]
    assert {name for name in options(path) if f"| `{name}` | " not in section} == set()


def test_the_reference_shows_a_request_and_its_reply(reference):
    section = reference["endpoints"].partition("### POST /v1/score\n")[2].partition("\n### ")[0]
    assert '-d \'{"texts": ["Return the value."]' in section
    assert '"bits_per_byte":' in section


def test_the_reference_has_metrics_of_workers_too(reference):
    assert "| `gramophone_worker_restarts_total` | counter | " in reference["metrics"]
    assert "| `gramophone_http_requests_total` | counter | " in reference["metrics"]


class Progress(BaseModel):
    """A recipe's table with a key that nobody described."""

    mystery: int = 1


def test_a_key_without_a_description_is_named():
    with pytest.raises(hooks.UndocumentedError, match=r"cache\.mystery has no description"):
        hooks.key_row("cache.mystery", "mystery", Progress)


def test_defaults_of_settings_are_as_in_the_environment():
    assert [hooks.shown_setting(default) for default in (True, 8000, "")] == ["`true`", "`8000`", ""]


def test_an_option_without_help_is_found():
    listed = "* `--seed INTEGER`:   [default: 1]\n"
    assert hooks.UNDOCUMENTED_OPTION.search(listed)[1] == "`--seed INTEGER`"
    assert hooks.UNDOCUMENTED_OPTION.search("* `--json`\n")
    assert not hooks.UNDOCUMENTED_OPTION.search("* `--json`: Print JSON.\n")


def test_a_field_without_a_description_is_named():
    schema = {"properties": {"mystery": {"type": "integer"}}}
    operation = {
        "description": "Ask.",
        "requestBody": {"content": {"application/json": {"schema": schema}}},
        "responses": {"200": {}},
    }
    with pytest.raises(hooks.UndocumentedError, match="POST /v1/ask: mystery"):
        hooks.operation_section("POST", "/v1/ask", operation, {}, {})


def test_pages_of_other_folders_link_within_the_site():
    text = hooks.relinked("deploy/RUNBOOK.md", "runbook.md")
    assert "](../docs/" not in text
    assert "](kubernetes/" not in text


def test_links_of_an_example_are_relative_to_its_place_on_the_site():
    text = hooks.relinked("examples/speech/README.md", "examples/speech.md")
    assert "](../guides/rerank-speech.md" in text
    assert "](../../" not in text


def test_the_drawing_has_every_layer():
    drawing = hooks.layers_svg()
    for name in ("cli", "engine", "checkpoint", "kernels", "training"):
        assert f">{name}</text>" in drawing
