"""Generation of the client's reply types from the service's OpenAPI document: `make client-types`."""

import json
from collections.abc import Iterator
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

TYPES = Path(__file__).parent / "gramophone_client/types.py"
HEADER = '"""Replies of the service, generated from its OpenAPI document by `make client-types`."""'
JSON_TYPE = "application/json"
OPENAI_PATH = "/v1/completions"
TOKENIZER_PATHS = ("/detokenize", "/tokenizer_info")
EMPTY: dict[str, Any] = {"array": [], "object": {}}
"""Default of an optional field by its type."""


def generate_types() -> str:
    """Return the source of a module with a pydantic model of each reply that the client reads, and of their parts."""
    document, _ = service_description()
    schemas = document["components"]["schemas"]
    replies = [
        response["content"][JSON_TYPE]["schema"]
        for path, operations in document["paths"].items()
        if (path.startswith("/v1/") and path != OPENAI_PATH) or path in TOKENIZER_PATHS
        for operation in operations.values()
        for response in operation["responses"].values()
        if JSON_TYPE in response.get("content", {})
    ]
    names = sorted(set(_referenced(replies, schemas)))
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


def _referenced(part: Any, schemas: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the schemas that a part of the document references, directly or not."""
    if isinstance(part, list):
        for item in part:
            yield from _referenced(item, schemas)
    elif isinstance(part, dict) and "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        yield name
        yield from _referenced(schemas[name], schemas)
    elif isinstance(part, dict):
        yield from _referenced(list(part.values()), schemas)


def _simplified(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose fields have no titles, which repeat their names, and whose optional lists are empty."""
    fields = {name: {**field} for name, field in schema["properties"].items()}
    for name, field in fields.items():
        field.pop("title", None)
        if name not in schema["required"] and field.get("type") in EMPTY:
            field["default"] = EMPTY[field["type"]]
    return {**schema, "properties": fields}


if __name__ == "__main__":
    TYPES.write_text(generate_types(), encoding="utf-8")
