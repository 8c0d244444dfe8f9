"""What the OpenAPI document says of operations beside what their code says: groups, summaries, parameters, keys."""

import re
from collections.abc import Mapping
from typing import Any

from service.schemas.autocomplete import NAME_PATTERN
from service.security.access import AccessTable
from service.security.keys import KeyScope

Json = dict[str, Any]

INTRODUCTION = """\
Small language models over HTTP: what comes next, how probable a text is, which candidate is best.

- **Models** are named `name`, `name@7` or `name@champion`; every reply says which version answered, as
  `name@version`. A request that names none is answered by the default.
- **Log-probabilities** are natural logarithms; a probability of zero is `-9999` and makes a perplexity `null`.
- **Errors** have one shape, `{"error": {"message", "type", "param", "code"}}`; `code` is stable, `param` names the
  field.
- **Keys**: where the service has them, send `Authorization: Bearer KEY`. `/admin/…` always asks for one.
- **Limits**: what is past them is answered 400, 408, 413, 415, 429, 431 or 503, with `Retry-After` where coming back
  helps.
- **Lines**: where a body may be `application/x-ndjson`, options stand in the query string, and each line is answered
  by a line, in order; one that is wrong fails alone, as a line with `error`.
"""
"""The document's own description, in Markdown."""

TAGS: Mapping[str, str] = {
    "Predict": "What comes next: the most probable tokens, or the whole distribution.",
    "Score": "How probable texts are.",
    "Re-rank": "Which of some candidates is best, and weights that tell.",
    "Generate": "Texts that go on.",
    "Complete": "The word that somebody is typing, and what they are used to.",
    "Check": "Words that are probably wrong, and texts that are probably bad.",
    "States": "States of texts, kept for decoders that search.",
    "OpenAI": "OpenAI's contract, for its clients.",
    "Tokenise": "What tokens a text is made of.",
    "Models": "What is served, and what is known of it.",
    "Admin": "Models, aliases and profiles; asks for a key of the scope `admin`.",
    "Health": "Whether the service lives and is ready.",
}
"""The groups of operations, in order, and what each is for."""

_TAG_OF = {
    "/v1/next-token": "Predict",
    "/v1/score": "Score",
    "/v1/rerank": "Re-rank",
    "/v1/generate": "Generate",
    "/v1/autocomplete": "Complete",
    "/v1/check": "Check",
    "/v1/quality": "Check",
    "/v1/states": "States",
    "/v1/completions": "OpenAI",
    "/tokenize": "Tokenise",
    "/detokenize": "Tokenise",
    "/tokenizer_info": "Tokenise",
    "/v1/models": "Models",
    "/admin": "Admin",
    "/health": "Health",
}
"""The group of a path and of all below it."""

_ADDRESS = {"description": "A model: `name`, `name@7` or `name@champion`.", "example": "mixture"}
_USER = {
    "description": "Whose words; a user belongs to the key that made it.",
    "example": "ann",
    "schema": {"type": "string", "pattern": NAME_PATTERN},
}
_PARAMETERS: Mapping[str, Mapping[str, Json]] = {
    "/v1/autocomplete/users/{user}": {"user": _USER},
    "/v1/autocomplete/users/{user}/accepted": {"user": _USER},
    "/v1/models/{address}": {"address": _ADDRESS},
    "/v1/models/{address}/card": {"address": _ADDRESS},
    "/v1/models/{address}/files": {"address": _ADDRESS},
    "/v1/models/{address}/files/{name}": {
        "address": _ADDRESS,
        "name": {"description": "One of the names in the list of files.", "example": "perplexities.png"},
    },
    "/tokenizer_info": {
        "model": {
            **_ADDRESS,
            "description": "`name`, `name@7` or `name@champion`; the default if it is left out.",
        }
    },
    "/admin/profiles/{name}": {"name": {"description": "The name of a profile.", "example": "speech"}},
    "/admin/models/{name}/aliases/{alias}": {
        "name": {"description": "The name of a model, without a version.", "example": "ngram"},
        "alias": {"description": "What a version is to be called: `name@alias`.", "example": "candidate"},
    },
}
"""Parameters in paths and queries, where the code says their names and types only."""

_OTHER_STATUSES: Mapping[str, Mapping[str, str]] = {
    "/admin/models/load": {"202": "the model is being loaded"},
    "/health/live": {"503": "no more: a model computes without end, and the process should be replaced"},
    "/health/ready": {"503": "not now: the status says why"},
}
"""Statuses beside 200 whose reply is the same, and what they mean."""

SECURITY_SCHEMES: Json = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "From `gramophone keys create`, with the scope that an operation names. Where the service has "
        "no keys all but administration is open.",
    }
}
"""How a key is sent."""

_access_table = AccessTable()
_CLAUSE_END = re.compile(r"[.:;](?:\s|$)")


def describe_operation(path: str, operation: Json, schemas: Json) -> None:
    """Tell an operation's group, summary, parameters, key, and what its reply is.

    Args:
        path: of the operation.
        operation: as the framework describes it; changed.
        schemas: of all replies, by name.
    """
    operation["tags"] = [tag for prefix, tag in _TAG_OF.items() if f"{path}/".startswith(f"{prefix}/")]
    operation["summary"] = _CLAUSE_END.split(operation["description"], maxsplit=1)[0].replace("\n", " ")
    operation["security"] = _security(path)
    for parameter in operation.get("parameters", ()):
        parameter.update(_PARAMETERS.get(path, {}).get(parameter["name"], {}))
    replies = operation["responses"]
    replies["200"]["description"] = _reply_description(
        replies["200"]["content"]["application/json"]["schema"], schemas
    )
    for status, meaning in _OTHER_STATUSES.get(path, {}).items():
        replies[status] = {**replies["200"], "description": meaning}


def _reply_description(schema: Json, schemas: Json) -> str:
    """What a reply is in a sentence: of the first, where there are several."""
    first = schema.get("anyOf", [schema])[0]
    described = schemas.get(first.get("$ref", "").rpartition("/")[2], {})
    return str(described.get("description", "The file.")).partition("\n")[0]


def _security(path: str) -> list[Json]:
    """What a key needs; alternatives, of which an empty one means none."""
    demand = _access_table.rule(path)
    if demand is None or demand.scope is None:
        return []
    asked: Json = {"key": [str(demand.scope)]}
    return [asked] if demand.scope is KeyScope.ADMIN else [{}, asked]
