"""Options in requests, the README's reference and the playground agree.

The README's Python runs, and its table of settings is complete.
"""

import json
import re
from pathlib import Path

import pytest

from service.settings import described_settings
from service.use_cases.autocomplete import AutocompleteRequest
from service.use_cases.check import CheckRequest
from service.use_cases.generate import GenerateRequest
from service.use_cases.next_token import NextTokenRequest
from service.use_cases.rerank_request import RerankRequest
from service.use_cases.score import QualityRequest, ScoreRequest

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
    "/v1/autocomplete": ("write.js",),
    "/v1/check": ("check.js",),
}
"""Where the playground asks each endpoint."""

TIMELY, IDS = "a newer request cancels an older one", "people write text"
LEFT_OUT = {
    "/v1/next-token": {"timeout_ms": TIMELY},
    "/v1/score": {
        "token_ids": IDS,
        "context": "lines are scored whole",
        "bos": "lines are sentences",
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
    },
    "/v1/generate": {},
    "/v1/autocomplete": {"dictionary[].weight": "a word a line is enough"},
    "/v1/check": {"candidates": "a caller's own error model is for programs"},
}
"""What the playground does not offer, with all inside it, and why; /v1/quality filters corpora and has no page."""

FORM = re.compile(r'optionsOf\("(?P<kind>\w+)", (?P<groups>[A-Z]+)')
ROW = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<type>.*?) \| (?P<default>.*?) \| (?P<meaning>.+?) \|$")


def options(schema, definitions, prefix=""):
    """Name, type and default of every field, those of objects in lists too."""
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else said(field.get("default"))
        yield f"{prefix}{name}", type_of(field, definitions), default
        for inner in objects_in(field, definitions):
            yield from options(inner, definitions, f"{prefix}{name}[].")


def said(default):
    """A default as it stands in the table; one that is null, or made anew each time, is not told."""
    return "" if default is None else f"`{json.dumps(default)}`"


def type_of(field, definitions):
    """A type as it stands in the table."""
    if "$ref" in field:
        return type_of(definitions[field["$ref"].rpartition("/")[2]], definitions)
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if alternatives := field.get("anyOf") or field.get("oneOf"):
        kinds = [type_of(one, definitions) for one in alternatives]
        return " or ".join(kind for kind in kinds if kind != "null")
    if field["type"] == "array":
        return f"[{type_of(field['items'], definitions)}]"
    if isinstance(values := field.get("additionalProperties"), dict):
        return f"{{{type_of(values, definitions)}}}"
    return field["type"]


def objects_in(field, definitions):
    """The schemas of a list's items that are objects with fields of their own."""
    if "$ref" in field:
        found = definitions[field["$ref"].rpartition("/")[2]]
        if "properties" in found:
            yield found
    for inner in [
        *field.get("anyOf", ()),
        *field.get("oneOf", ()),
        *([field["items"]] if "items" in field else []),
    ]:
        yield from objects_in(inner, definitions)


def documented(path):
    """The rows of an endpoint's table in the README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition(f"<!-- options {path} -->")[2].partition("<!-- /options -->")[0]
    return [found for line in table.splitlines() if (found := ROW.match(line))]


@pytest.mark.parametrize("path", REQUESTS)
def test_the_readme_has_every_option_with_its_type_and_default(path):
    schema = REQUESTS[path].model_json_schema()
    wanted = sorted(options(schema, schema.get("$defs", {})))
    assert sorted((row["name"], row["type"], row["default"]) for row in documented(path)) == wanted


def page(path):
    return "\n".join((ROOT / "service/static" / name).read_text(encoding="utf-8") for name in PAGES[path])


@pytest.mark.parametrize("path", PAGES)
def test_the_playground_offers_every_option_that_is_not_left_out_on_purpose(path):
    schema = REQUESTS[path].model_json_schema()
    names = {name for name, _, _ in options(schema, schema.get("$defs", {}))}
    left_out, text = LEFT_OUT[path], page(path)
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


README = Path(__file__).parents[2] / "README.md"


def test_the_ngram_example_runs(capsys):
    blocks = [
        block.removeprefix("python\n")
        for block in README.read_text().split("```")
        if block.startswith("python\n")
    ]
    (example,) = [block for block in blocks if "estimate(" in block]
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own text
    total, *best, _ = capsys.readouterr().out.splitlines()
    assert abs(float(total) - 1) < 1e-5
    assert best[0].split()[0] == "cat"


START, END = "<!-- settings -->\n", "<!-- /settings -->"


def test_the_readme_documents_every_setting():
    text = README.read_text(encoding="utf-8")
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for variable, default, meaning in described_settings():
        shown = "" if default == "" else f"`{default}`"
        rows.append(f"| `{variable}` | {shown} | {meaning} |")
        assert meaning
    assert text[text.index(START) + len(START) : text.index(END)].split("\n") == [*rows, ""]
