"""Generation of the client's reply types from the service's OpenAPI document: `make client-types`."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from datamodel_code_generator import (
    DataModelType,
    Formatter,
    InputFileType,
    LiteralType,
    PythonVersion,
    generate,
)

from docs.hooks import service_description

CLIENT = Path(__file__).parent / "gramophone_client"
TYPES = CLIENT / "types.py"
HEADER = '"""Replies of the service, generated from its OpenAPI document by `make client-types`."""'
EMPTY: dict[str, Any] = {"array": [], "object": {}}
"""Default of an optional field by its type."""
LEFT_OUT = {"title", "pattern", "minLength", "maxLength", "exclusiveMinimum", "maximum"}
"""Keywords without a use in replies: titles repeat names, the others are limits of requests."""


def generate_types() -> str:
    """Return the source of a module with a pydantic model of each reply that the client reads, and of their parts."""
    document, _ = service_description()
    schemas = document["components"]["schemas"]
    names = sorted(set(_with_parts(_imported_types(), schemas)))
    components = {"schemas": {name: _simplified(schemas[name]) for name in names}}
    source = generate(
        json.dumps({**document, "paths": {}, "components": components}),
        input_file_type=InputFileType.OpenAPI,
        output_model_type=DataModelType.PydanticV2BaseModel,
        base_class="gramophone_client.reply.Reply",
        target_python_version=PythonVersion.PY_310,
        custom_file_header=HEADER,
        formatters=[Formatter.BUILTIN],
        keep_model_order=True,
        disable_timestamp=True,
        enum_field_as_literal=LiteralType.All,
        strict_nullable=True,
        use_schema_description=True,
        use_field_description=True,
        use_inline_field_description=True,
        use_single_line_docstring=True,
        use_standard_collections=True,
        use_union_operator=True,
        use_double_quotes=True,
    )
    return f"{source}\n"


def _imported_types() -> list[str]:
    """Return the names that the modules of the client import from the generated one."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in CLIENT.rglob("*.py"))
    imports = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return [
        alias.name for node in imports if node.module == "gramophone_client.types" for alias in node.names
    ]


def _with_parts(names: Iterable[str], schemas: dict[str, Any]) -> Iterator[str]:
    """Yield names of schemas and the names of the schemas that they reference, directly or not."""
    for name in names:
        yield name
        references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schemas[name]))
        yield from _with_parts(references, schemas)


def _simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that allows other fields, without keywords that replies do not use; optional lists are empty."""
    fields = {
        name: {key: value for key, value in field.items() if key not in LEFT_OUT}
        for name, field in schema["properties"].items()
    }
    for name, field in fields.items():
        if name not in schema["required"] and field.get("type") in EMPTY:
            field["default"] = EMPTY[field["type"]]
    others = {key: value for key, value in schema.items() if key != "additionalProperties"}
    return {**others, "properties": fields}


if __name__ == "__main__":
    TYPES.write_text(generate_types(), encoding="utf-8")
