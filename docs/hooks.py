"""MkDocs hooks: reference pages made from the code, pages of other folders, a diagram of the layers.

Nothing that these functions write is in the repository. A request field, setting, recipe key, command option or metric
without a description stops the build with `UndocumentedError`, which names it.
"""

import html
import inspect
import json
import posixpath
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from service.app import create_app
from service.routes.endpoints import TAGS, attribute_descriptions, make_document
from service.settings import Settings, described_settings
from service.workers.broadcast import pool_metrics
from training.recipe import PartSettings, Recipe, recipe_names

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "tests/contract/openapi_replies.json"
ELSEWHERE = {
    "runbook.md": "deploy/RUNBOOK.md",
    "benchmarks.md": "tests/benchmarks/RESULTS.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    **{
        f"examples/{name}.md": f"examples/{name}/README.md"
        for name in ("speech", "translation", "kenlm", "web", "java")
    },
}
"""Pages of the site that live in another folder of the repository."""
COPIED = {
    "assets/soak.png": "tests/benchmarks/soak.png",
    "assets/favicon.svg": "service/static/icon.svg",
    "examples/screenshot.png": "examples/web/screenshot.png",
}
UNDOCUMENTED_OPTION = re.compile(r"^\* (`[^`]+`):?\s*(?:\[.*\])?$", re.MULTILINE)
"""An item of Typer's list of options that has no help."""

Json = dict[str, Any]


class UndocumentedError(Exception):
    """Something in the code that the reference lists has no description."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages of other folders and the pictures to the site."""
    for name, page in reference_pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=relinked(source, page)))
    for place, source in COPIED.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "assets/layers.svg", content=layers_svg()))
    return files


def reference_pages() -> dict[str, str]:
    """Return the generated pages of the reference by name."""
    document, exposition = service_description()
    return {
        "endpoints": endpoints_page(document),
        "settings": settings_page(),
        "commands": commands_page(),
        "recipes": recipes_page(),
        "metrics": metrics_page(exposition),
    }


@cache
def service_description() -> tuple[Json, str]:
    """Return the OpenAPI document of the service, and its metrics as a scrape shows them.

    The service is not started, so a registry with the name of a model is enough.
    """
    with tempfile.TemporaryDirectory() as folder:
        version = Path(folder) / "model/versions/1"
        version.mkdir(parents=True)
        (version / "manifest.json").write_text("{}")
        service = create_app(Settings(registry=folder, copy_models=False))
        metrics = service.state.services.metrics.exposition().decode()
        return make_document(service, service.state.endpoints), metrics


def described(what: str, text: str | None) -> str:
    """Return a description as one line for a cell of a table.

    Raises:
        UndocumentedError: there is none.
    """
    line = " ".join((text or "").split())
    if not line:
        raise UndocumentedError(f"{what} has no description: write one where it is defined")
    line = line if line[0] in "`<" else line[0].upper() + line[1:]
    return cell(line if line[-1] in ".:!?" else f"{line}.")


def cell(text: str) -> str:
    """Return Markdown that does not end a cell of a table."""
    spans = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(one if one.startswith("`") else html.escape(one, quote=False) for one in spans)


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown, empty without rows."""
    lines = [" | ".join(row) for row in rows]
    names = list(header)
    head = [" | ".join(names), "|".join("-" for _ in names)]
    return "\n".join(f"| {line} |" for line in head + lines) + "\n" if lines else ""


# settings, recipes, metrics


def settings_page() -> str:
    """Return the page of the settings of `gramophone serve`."""
    rows = [
        (f"`{variable}`", shown_setting(default), described(variable, meaning))
        for variable, default, meaning in described_settings()
    ]
    return f"""# Settings

`gramophone serve` reads these environment variables. It refuses to start when it finds a variable that begins with
`GRAMOPHONE_` and is not listed here, except those that Kubernetes sets for its Services. Sizes are bytes, or text
such as `512MiB` and `2GiB`.

{table(("Variable", "Default", "Meaning"), rows)}
Two more variables belong to other programs: `GRAMOPHONE_API_KEY` is the key that `gramophone bench` sends, and
`GRAMOPHONE_DATA` is a folder of corpora for the tests.
"""


def shown_setting(default: Any) -> str:
    """Return a default as it is written in the environment."""
    return "" if default == "" else f"`{str(default).lower() if isinstance(default, bool) else default}`"


def recipes_page() -> str:
    """Return the page of the keys of recipes, one table for each table of the TOML file."""
    parts = []
    tables = [(name, f"[{name}]", field.annotation) for name, field in Recipe.model_fields.items()]
    for name, header, kind in [*tables, ("mixture.parts", "[[mixture.parts]]", PartSettings)]:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys = {key: field.alias or key for key, field in kind.model_fields.items()}
            rows = [key_row(f"{name}.{shown}", key, kind) for key, shown in keys.items()]
            parts.append(f"## {header}\n\n{table(KEY_COLUMNS, rows)}")
    top = [key_row(key, key, Recipe) for key in ("family", "seed", "direction")]
    names = ", ".join(f"`{name}`" for name in recipe_names())
    return f"""# Recipes

A recipe is a TOML file that defines a training run: `gramophone train RECIPE`, where `RECIPE` is the path of a file or
one of the built-in names: {names}. `--set key=value` overrides one key, as in `--set ngram.order=3`. Start a
recipe of your own from one of the files in `training/recipes/`.

## Top level

{table(KEY_COLUMNS, top)}
{chr(10).join(parts)}"""


KEY_COLUMNS = ("Key", "Type", "Default", "Meaning")


def key_row(address: str, key: str, kind: type[BaseModel]) -> tuple[str, ...]:
    """Return the row of a recipe's key."""
    field, schema = kind.model_fields[key], kind.model_json_schema()
    default = "required" if field.default is PydanticUndefined else shown_default(field.default)
    meaning = described(
        address, field.description or attribute_descriptions(inspect.getdoc(kind) or "")[1].get(key)
    )
    declared = schema["properties"][field.alias or key]
    return f"`{address}`", type_of(declared, schema.get("$defs", {})), default, meaning


def shown_default(value: Any) -> str:
    """Return a default as it is written in a recipe or a request; nothing for None."""
    if value is None:
        return ""
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def metrics_page(exposition: str) -> str:
    """Return the page of the metrics of `/metrics`."""
    rows = []
    for family in [*text_string_to_metric_families(exposition), *pool_metrics(2, (0, 0))]:
        if not family.name.endswith("_created"):
            name = family.name + "_total" * (family.type == "counter")
            rows.append((f"`{name}`", family.type, described(name, family.documentation)))
    return f"""# Metrics

`GET /metrics` returns Prometheus' text format; if the service has keys, it requires one with the scope `metrics`. With
several workers, every sample has the label `worker`: sum over it. The `gramophone_worker…` metrics exist only with
several workers. A histogram `x` has the series `x_bucket`, `x_count` and `x_sum`.

{table(("Metric", "Type", "Meaning"), sorted(rows))}"""


# the command line


def commands_page() -> str:
    """Return the page of all commands, their arguments and options, as Typer documents them."""
    documenter = [
        sys.executable,
        "-m",
        "typer",
        "service/cli/main.py",
        "utils",
        "docs",
        "--name",
        "gramophone",
    ]
    text = subprocess.run(documenter, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if undocumented := UNDOCUMENTED_OPTION.search(text):
        command = re.findall(r"^#+ `(.*)`$", text[: undocumented.start()], re.MULTILINE)[-1]
        raise UndocumentedError(f"{undocumented[1]} of `{command}` has no help: write one in service/cli")
    text = re.sub(r"\*\*Commands\*\*:\n\n(?:\* .*\n)+\n", "", text)  # the summaries are cut; sections follow
    return text.replace("# `gramophone`", "# Command line", 1)


# endpoints


class FieldRow(NamedTuple):
    """A field of a request or reply.

    Attributes:
        name: path of the field; `[]` follows the name of a list.
        type: types allowed, in Markdown.
        default: default value, `required`, or nothing.
        meaning: description.
    """

    name: str
    type: str
    default: str
    meaning: str


ENDPOINTS_HEAD = """# Endpoints

A running service has the same reference at `/docs`, where requests can be changed and sent, and as an OpenAPI document
at `/openapi.json`. [HTTP conventions](http.md) explains model addresses, errors, limits and streams. A field marked
*required* has no default.
"""


def endpoints_page(document: Json) -> str:
    """Return the page of all operations of an OpenAPI document."""
    replies = json.loads(EXAMPLES.read_text(encoding="utf-8"))
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [ENDPOINTS_HEAD]
    for tag, about in TAGS.items():
        parts.append(f"## {tag}\n\n{described(tag, about)}\n")
        parts += [
            operation_section(*one, document["components"]["schemas"], replies)
            for one in operations
            if one[2]["tags"] == [tag]
        ]
    return "\n".join(parts)


def operation_section(method: str, path: str, operation: Json, schemas: Json, replies: Json) -> str:
    """Return the section of one operation: key, request, reply and an example."""
    name = f"{method} {path}"
    scopes = [scope for needed in operation.get("security", []) for scope in needed.get("key", [])]
    always = {} not in operation.get("security", [{}])
    lines = [f"### {method} {path}\n", operation.get("description") or described(name, ""), ""]
    if scopes:
        lines.append(f"Key scope: `{scopes[0]}`{' (a key is always required)' if always else ''}.\n")
    body = operation.get("requestBody", {}).get("content", {})
    lines += [*parameter_lines(name, operation, body), *request_lines(name, body, schemas)]
    content = operation["responses"]["200"].get("content", {})
    if json_reply := content.get("application/json"):
        for number, schema in enumerate(json_reply["schema"].get("anyOf", [json_reply["schema"]])):
            lines.append("\n**Or**\n" if number else "\n**Reply**\n")
            lines.append(field_table(f"reply of {name}", schema, schemas, defaults=False))
    if others := [f"`{kind}`" for kind in content if kind != "application/json"]:
        lines.append(f"\n{'Also replies' if json_reply else 'Replies'} {', '.join(others)}.\n")
    return "\n".join(lines) + example(name, path, body.get("application/json"), replies)


def parameter_lines(name: str, operation: Json, body: Json) -> Iterator[str]:
    """Yield an item for each parameter in the path, and in the query string if they are not fields of a JSON body."""
    for param in operation.get("parameters", []):
        if param["in"] == "path":
            yield f"- `{{{param['name']}}}`: {param.get('description') or 'Part of the path.'}"
        elif "application/json" not in body:
            what = described(f"{name}: {param['name']}", param.get("description"))
            default = param["schema"].get("default")
            yield f"- `?{param['name']}=`: {what}" + (f" Default: `{default}`." if default else "")


def request_lines(name: str, body: Json, schemas: Json) -> Iterator[str]:
    """Yield the tables of a request's fields, as JSON if it can be JSON."""
    is_json = "application/json" in body
    shown = ["application/json"] if is_json else list(body)
    for kind in shown:
        for number, schema in enumerate(body[kind]["schema"].get("anyOf", [body[kind]["schema"]])):
            if number and is_json:
                yield "\n**Or**\n"
            elif not number:
                yield "\n**Request**\n" if is_json else f"\n**Request** (`{kind}`)\n"
            yield field_table(name, schema, schemas, defaults=True)
    if others := [f"`{kind}`" for kind in body if kind not in shown]:
        yield f"Also accepts {', '.join(others)}.\n"


def example(name: str, path: str, body: Json | None, replies: Json) -> str:
    """Return an operation's first example and its recorded reply, folded; nothing without one."""
    examples = (body or {}).get("examples", {})
    reply = replies.get(name, {}).get("application/json", {}).get("example")
    if not examples or reply is None:
        return "\n"
    sent = json.dumps(examples["example"]["value"], ensure_ascii=False)
    method = "" if name.startswith("POST") else f" -X {name.split(maxsplit=1)[0]}"
    curl = f"curl{method} http://127.0.0.1:8000{path} -H 'content-type: application/json' \\\n  -d '{sent}'"
    blocks = f"```sh\n{curl}\n```\n\n```json\n{json.dumps(reply, indent=2, ensure_ascii=False)}\n```"
    return '\n??? example "Example"\n\n' + textwrap.indent(blocks, "    ") + "\n"


def field_table(name: str, schema: Json, schemas: Json, *, defaults: bool) -> str:
    """Return the table of the fields of a request, with defaults, or of a reply.

    Raises:
        UndocumentedError: a field has no description.
    """
    rows = [
        (
            f"`{row.name}`",
            row.type,
            *([row.default] if defaults else []),
            described(f"{name}: {row.name}", row.meaning),
        )
        for row in fields(schema, schemas)
    ]
    return table(("Field", "Type", *(["Default"] if defaults else []), "Meaning"), rows)


def fields(schema: Json, schemas: Json, prefix: str = "") -> Iterator[FieldRow]:
    """Yield every field of an object, and of the objects in its lists, by the path of its name."""
    schema = resolved(schema, schemas)
    required = schema.get("required", ())
    properties = schema.get("properties", {}).items()
    for name, field in sorted(properties, key=lambda one: (one[0] not in required, one[0] == "timeout_ms")):
        default = "required" if name in required else shown_default(field.get("default"))
        yield FieldRow(
            f"{prefix}{name}",
            type_of(field, schemas),
            default,
            field.get("description", ""),
        )
        for inner, mark in objects_in(field, schemas):
            yield from fields(inner, schemas, f"{prefix}{name}{mark}.")


def resolved(schema: Json, schemas: Json) -> Json:
    """Return the schema that a reference leads to."""
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def objects_in(field: Json, schemas: Json, mark: str = "") -> Iterator[tuple[Json, str]]:
    """Yield the schemas of objects that a field holds, with `[]` for those in a list."""
    if "properties" in (found := resolved(field, schemas)):
        yield found, mark
    for inner in (*field.get("anyOf", ()), *field.get("oneOf", ())):
        yield from objects_in(inner, schemas, mark)
    if "items" in field:
        yield from objects_in(field["items"], schemas, f"{mark}[]")


def type_of(field: Json, schemas: Json) -> str:
    """Return the types of a field in Markdown."""
    if "$ref" in field:
        return type_of(resolved(field, schemas), schemas)
    if values := field.get("enum") or [field[key] for key in ("const",) if key in field]:
        return ", ".join(f"`{value}`" for value in values)
    if alternatives := field.get("anyOf") or field.get("oneOf"):
        kinds = dict.fromkeys(type_of(one, schemas) for one in alternatives)
        return " or ".join(kind for kind in kinds if kind != "null") or "null"
    if "items" in field:
        return f"[{type_of(field['items'], schemas)}]"
    if isinstance(inner := field.get("additionalProperties"), dict):
        return f"{{{type_of(inner, schemas)}}}"
    return str(field.get("type", "any"))


# pages and pictures of other folders


def relinked(source: str, place: str) -> str:
    """Return a page of another folder, with its links to pages of the site made relative to its place there.

    Links to files that are not on the site become code.
    """
    pages = {path: page for page, path in ELSEWHERE.items()} | {path: asset for asset, path in COPIED.items()}

    def link(match: re.Match[str]) -> str:
        words, target = match.groups()
        path, mark, fragment = target.partition("#")
        if not path or "://" in path:
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if file in pages or file.startswith("docs/"):
            page = pages.get(file, file.removeprefix("docs/"))
            return f"[{words}]({posixpath.relpath(page, posixpath.dirname(place))}{mark}{fragment})"
        return words if words.startswith("`") else f"`{file}`" if words == path else f"{words} (`{file}`)"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, (ROOT / source).read_text(encoding="utf-8"))


ROW_HEIGHT, WIDTH, GAP = 34, 300, 70


def layers_svg() -> str:
    """Return a drawing of the layers that import-linter enforces, read from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    service, models = ([*one["layers"]] for one in contracts if one["type"] == "layers")
    height = max(len(service), len(models)) * ROW_HEIGHT + 90
    parts = [
        column("service: serves models over HTTP", service, 10, "#d7eeea"),
        column("models: language models", models, 10 + WIDTH + GAP, "#fbe3d3"),
        column("training: makes checkpoints", ["training"], 10 + 2 * (WIDTH + GAP), "#e5e1f4"),
        arrow(10 + WIDTH + 8, 10 + WIDTH + GAP - 8, "imports"),
        arrow(10 + 2 * (WIDTH + GAP) - 8, 10 + 2 * WIDTH + GAP + 8, "imports"),
    ]
    width = 3 * WIDTH + 2 * GAP + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="14"><title>Layers of the packages</title>'
        f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>{"".join(parts)}</svg>'
    )


def column(title: str, layers: list[str], left: int, colour: str) -> str:
    """Return a stack of boxes; those above may import those below."""
    parts = [f'<text x="{left}" y="30" font-weight="600" fill="#222">{html.escape(title)}</text>']
    for row, layer in enumerate(layers):
        top = 48 + row * ROW_HEIGHT
        names = re.split(r"\s*[|:]\s*", layer)
        wide = WIDTH / len(names)
        for number, name in enumerate(names):
            x = left + number * wide
            short = name.removeprefix("service.").removeprefix("models.")
            box = f'x="{x + 1:.0f}" y="{top}" width="{wide - 2:.0f}" height="{ROW_HEIGHT - 5}" rx="4"'
            middle = f'x="{x + wide / 2:.0f}" y="{top + 19}" text-anchor="middle"'
            parts.append(
                f'<rect {box} fill="{colour}"/><text {middle} fill="#222">{html.escape(short)}</text>'
            )
    return "".join(parts)


def arrow(start: int, end: int, words: str) -> str:
    """Return a horizontal arrow with words above it."""
    tip = -7 if end > start else 7
    path = f"M{start} 66H{end}M{end + tip} 61L{end} 66L{end + tip} 71"
    return (
        f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.5"/>'
        f'<text x="{(start + end) / 2:.0f}" y="58" text-anchor="middle" font-size="12" fill="#555">{words}</text>'
    )
