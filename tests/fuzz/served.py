"""A service process with a small model of each kind, and its OpenAPI document with likelier values for a fuzzer."""

import contextlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import hypothesis
import schemathesis
import torch
from fastapi import FastAPI

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.language_model import Vocabulary
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.tokenizers import CharacterTokenizer
from service.app import include_endpoints
from service.routes.endpoints import make_document
from tests.support import families
from tests.support.services import running_process
from tests.support.text_models import learnt_pieces, piece_model

MODELS = ("lstm", "mixture", "ngram")
"""The LSTM reads characters and computes in int8, the mixture reads words, the n-gram model subwords."""

STATE_TTL_S = 4
LIMITS = {
    "GRAMOPHONE_MAX_BODY_BYTES": "200000",
    "GRAMOPHONE_MAX_NEW_TOKENS": "64",
    "GRAMOPHONE_MAX_TOKENS_PER_SEQUENCE": "2000",
    "GRAMOPHONE_MAX_TEXTS_PER_REQUEST": "64",
    "GRAMOPHONE_MAX_USERS": "20",
    "GRAMOPHONE_MAX_WORDLISTS": "20",
    "GRAMOPHONE_MAX_WORDLIST_BYTES": "400000",
    "GRAMOPHONE_PREFIX_CACHE_BYTES": "4000000",
    "GRAMOPHONE_BODY_TIMEOUT_S": "2",
    "GRAMOPHONE_STATE_TTL_S": str(STATE_TTL_S),
    "GRAMOPHONE_NUM_THREADS": "1",
    "GRAMOPHONE_LOG_FORMAT": "json",
}
"""Smaller than in production, so that made-up requests reach them."""

GOLDEN = (
    ("/v1/score", {"texts": ["the cat sat", "hats"], "detail": "token", "model": "ngram@1"}),
    ("/v1/score", {"token_ids": [[3, 9, 14]], "detail": "word", "model": "mixture@1"}),
    ("/v1/generate", {"prompt": "the ", "seed": 3, "max_tokens": 20, "model": "lstm@1", "logprobs": True}),
    ("/v1/next-token", {"context": "w3 w4", "top_k": 9, "model": "mixture@1"}),
)
"""Requests whose replies never change; they name versions, since aliases may move."""

_CARD = {
    "MODEL_CARD.md": b"# A model",
    "perplexities.png": b"\x89PNG",
}  # the document's example is the picture
_ABOUT = CheckpointDescription("2026-01-01T00:00:00+00:00", {"int8": {"cost": 0.0}}, {}, [[3, 4]], _CARD)
_HELD = re.compile(r"^gramophone_(num_requests_\w+|states|states_bytes) (\S+)$", re.MULTILINE)
_ASKED = re.compile(r"^gramophone_http_requests_total\{.*\} (\S+)$", re.MULTILINE)


class Process(NamedTuple):
    """System resources of a process."""

    open_files: int
    threads: int
    resident_bytes: int


class Fuzzed(NamedTuple):
    """A service to fuzz.

    Attributes:
        headers: headers with the full key, if there are keys.
        log: the service's log file.
    """

    url: str
    headers: dict
    pid: int
    log: Path

    @property
    def process(self):
        """Current resources of the process."""
        proc = Path(f"/proc/{self.pid}")
        told = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        resident_kib = int(told["VmRSS"].split()[0])
        return Process(len(list((proc / "fd").iterdir())), int(told["Threads"]), 1024 * resident_kib)

    def client(self):
        """Return a client with the key."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60)

    def golden(self):
        """Return the replies to the golden requests, byte for byte; unloaded models are loaded first."""
        with self.client() as client:
            for model in MODELS if self.headers else ():
                client.post("/admin/models/load", json={"model": model, "wait": True}).raise_for_status()
            return [client.post(path, json=body).raise_for_status().content for path, body in GOLDEN]

    def held(self):
        """Return the numbers of waiting, running and stored items, by metric."""
        return {name: float(value) for name, value in _HELD.findall(self._metrics())}

    def num_asked(self):
        """Return the number of requests answered."""
        return int(sum(map(float, _ASKED.findall(self._metrics()))))

    def wait_until_idle(self, open_files):
        """Wait until nothing is held and the number of open files has dropped; return the remainder after a limit."""
        until = time.monotonic() + 8 * STATE_TTL_S
        while (
            any(self.held().values()) or self.process.open_files > open_files
        ) and time.monotonic() < until:
            time.sleep(0.1)
        return {name: value for name, value in self.held().items() if value}, self.process.open_files

    def _metrics(self):
        with self.client() as client:
            return client.get("/metrics").raise_for_status().text


@contextlib.contextmanager
def fuzzed(folder, *, headers, **settings):
    """Run the service during the block, ready; settings are environment variables."""
    log = folder / "log"
    with running_process(_fill(folder), log, **(LIMITS | settings)) as (child, url):
        yield Fuzzed(url, headers, child.pid, log)


def _fill(folder):
    """Publish the models to a registry."""
    registry, scratch = (LocalRegistry(folder / name, create=True) for name in ("registry", "parts"))
    characters = CharacterTokenizer(Vocabulary([*map(chr, range(32, 127)), *"éß中🎷"]))
    torch.manual_seed(5)
    network = Network(NetworkConfig(layers=1, embedding_size=16, hidden_size=24), len(characters.vocabulary))
    _publish(registry, "lstm", NeuralModel(network, characters.vocabulary), characters)
    _publish(registry, "ngram", piece_model("bpe"), learnt_pieces("bpe"))
    words = families.tokenizer()
    parts = [_publish(scratch, name, families.model(name), words) for name in ("ngram", "lstm")]
    _publish(registry, "mixture", families.model("mixture"), words, parts)
    registry.set_default("mixture")
    return registry


def _publish(registry, name, model, tokenizer, parts=()):
    def write(folder):
        write_checkpoint(folder, model, tokenizer, _ABOUT, parts=parts)

    return registry.publish(name, write).path


CASES = int(os.environ.get("GRAMOPHONE_FUZZ_CASES", "12"))  # noqa: TID251 - tests are no part of the service
"""Cases drawn for each operation, in addition to its examples and schema boundaries."""

JSON, LINES, EVENTS = "application/json", "application/x-ndjson", "text/event-stream"
STATES = tuple(f"(state {number})" for number in range(3))
"""Placeholders for handles of states, which are opened just before the request."""

_TEXTS = [
    "the cat sat on the mat",
    " hats",
    "w3 w4 w5",
    "a cat can't sit. It is",
    "don't",
    "Paris 中 🎷\n\nthe",
]
_ADDRESSES = [*MODELS, "mixture@1", "ngram@champion", "lstm@9"]
_LIKELY: dict[str, Any] = {
    "address": {"enum": _ADDRESSES},
    "against": {"enum": ["ngram", "lstm"]},
    "alias": {"enum": ["champion", "next"]},
    "commit": {"enum": _TEXTS},
    "max_tokens": {"minimum": 1, "maximum": 32, "type": "integer"},
    "model": {"enum": _ADDRESSES},
    "name": {"enum": [*MODELS, "MODEL_CARD.md"]},
    "session": {"enum": ["abc"]},
    "state": {"enum": list(STATES)},
    "text": {"enum": _TEXTS},
    "timeout_ms": {"enum": [20000, 10]},
    "user": {"enum": ["ann", "bob"]},
}
"""Likely values by name of the field or parameter."""

_TOKEN = {"type": "integer"}
_LIKELY_TOKEN = {"type": "integer", "minimum": 0, "maximum": 39}


def served_document():
    """Return the document of /openapi.json without a running service."""
    app = FastAPI(title="Gramophone", version="0")
    include_endpoints(app)
    return make_document(app, app.state.endpoints)


def likely(document, *, lines):
    """Return a copy of the document with likely values: with `lines` only non-JSON bodies, else only JSON bodies."""
    document = json.loads(json.dumps(document))
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            schema["properties"][name] = _with_likely(name, _with_likely_items(name, field))
    for path, operations in list(document["paths"].items()):
        for operation in operations.values():
            for param in operation.get("parameters", ()):
                param["schema"] = _with_likely(param["name"], param["schema"])
            if "requestBody" in operation:
                _keep_bodies(operation, lines=lines)
        if lines and not any(
            operation.get("requestBody", {}).get("content") for operation in operations.values()
        ):
            del document["paths"][path]
    return document


def _with_likely(name, schema):
    return {"anyOf": [_LIKELY[name], schema]} if name in _LIKELY else schema


def _with_likely_items(name, schema):
    """Add likely values to token ids in lists and to handles of states, at any depth of a schema."""
    if isinstance(schema, list):
        return [_with_likely_items(name, one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _with_likely_items(name, value) for key, value in schema.items()}
    if found.get("items") == _TOKEN:
        found["items"] = {"anyOf": [_LIKELY_TOKEN, _TOKEN]}
    elif name in {"free", "states"} and "items" in found:
        found["items"] = {"anyOf": [_LIKELY["state"], found["items"]]}
    return found


def _keep_bodies(operation, *, lines):
    """Keep bodies of some media types with their options; a body of lines becomes a list, which `_lines` serialises."""
    content = operation["requestBody"]["content"]
    operation["requestBody"]["content"] = {
        media_type: body for media_type, body in content.items() if (media_type != JSON) == lines
    }
    if not lines:
        asked = operation.get("parameters", ())
        operation["parameters"] = [param for param in asked if "x-only-with" not in param]
    elif LINES in content:
        del content[LINES]["examples"]  # texts of several lines
        content[LINES]["schema"] = {
            "type": "array",
            "items": content[LINES]["schema"],
            "minItems": 1,
            "maxItems": 4,
        }


@schemathesis.serializer(LINES)
def _lines(_context, value):
    lines = value if isinstance(value, list) else [value]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def fuzz_schema(document, *, lines=False):
    """Return the schema that schemathesis draws cases from: those with bodies of lines, or all others."""
    settings = {
        "generation": {
            "max-examples": CASES,
            "deterministic": True,
            "database": "none",
            "with-security-parameters": False,  # no made-up keys
        },
        "checks": {
            # statuses of a service that has too little time
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503", "504"]},
            # too much work is refused as well; a request that times out is not validated
            "negative_data_rejection": {"expected-statuses": ["4xx", "503", "504"]},
            # the schema describes neither dependent fields nor the service's limits
            "positive_data_acceptance": {"enabled": False},
            "ignored_auth": {"enabled": False},  # another test draws keys
        },
    }
    config = schemathesis.Config.from_dict(settings)
    return schemathesis.openapi.from_dict(likely(document, lines=lines), config=config)


settings = hypothesis.settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
"""Settings of every fuzzer: the same cases in every run."""

drawn = hypothesis.settings(settings, phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink))
"""Without examples and schema boundaries."""

many = hypothesis.settings(settings, max_examples=20 * CASES)
"""For a fuzzer in a single test."""
