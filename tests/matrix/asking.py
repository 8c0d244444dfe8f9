"""A service process with the models of many cells, and requests to each."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from service.api_keys import KeyScope, create_key
from tests.matrix.cells import CELLS, FLOAT32, INT8, Cell
from tests.matrix.zoo import BACKWARD, PARTS, TEXTS, model, tokenizer
from tests.support.http import free_port

CARD = "MODEL_CARD.md"

DEFAULT = "default"
"""Default model beside those of the matrix: it answers requests without a model, so it cannot be unloaded."""


def publish_all(root, cells) -> LocalRegistry:
    """Publish the models of cells, their parts, and the default."""
    registry, made = LocalRegistry(root, create=True), {}

    def path_of(cell):
        if cell.model not in made:
            parts = [cell._replace(family=part, precision=FLOAT32) for part in PARTS.get(cell.family, ())]
            made[cell.model] = _publish(registry, cell.model, cell, [path_of(part) for part in parts])
        return made[cell.model]

    for cell in cells:
        path_of(cell)
    _publish(registry, DEFAULT, CELLS[0], [])
    return registry


def _publish(registry: LocalRegistry, name: str, cell: Cell, parts):
    direction = "backward" if cell.family in BACKWARD else "forward"
    golden, card = tokenizer(cell.tokens).encode_all(TEXTS), {CARD: f"# {name}\n".encode()}
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, golden, card, direction=direction)
    whole, tokens = model(cell.family, cell.tokens), tokenizer(cell.tokens)
    version = registry.publish(
        name, lambda folder: write_checkpoint(folder, whole, tokens, about, parts=parts)
    )
    return version.path


_ROOT = Path(__file__).parents[2]
_PROGRAM = "from service.app import serve; from service.settings import read_settings; serve(read_settings())"
_START_S, _TIMEOUT_S = 600, 60
_JSON, _LINES, _BINARY = "application/json", "application/x-ndjson", "application/octet-stream"

ASKED = Counter()
"""Number of requests by endpoint, cell and success."""


class Model:
    """One model of a service.

    Args:
        client: client with the service's address and a key.
        cell: cell of the model.
    """

    def __init__(self, client, cell):
        self.client, self.cell = client, cell
        self.tokenizer = tokenizer(cell.tokens)
        self.vocab_size = len(self.tokenizer.vocabulary)

    def send(self, endpoint, *, content=None, headers=None, params=None, **names):
        """Send any request; `endpoint` is a method and a path as in the routes, and `names` are its parameters."""
        method, path = endpoint.split(" ")
        answer = self.client.request(
            method,
            path.replace(":path", "").format(**names),
            content=content,
            headers=headers or {},
            params=params or {},
        )
        ASKED[endpoint, self.cell, answer.is_success] += 1
        return answer

    def post(self, endpoint, body, *, accept="*/*", **names):
        """Post a JSON body; return the reply, whatever its status."""
        headers = {"content-type": _JSON, "accept": accept}
        return self.send(f"POST {endpoint}", content=json.dumps(body), headers=headers, **names)

    def ask(self, endpoint, **body):
        """Post a JSON body with this model; return the JSON of the reply."""
        return _good(self.post(endpoint, {"model": self.cell.model, **body})).json()

    def lines(self, endpoint, items):
        """Post lines with this model; return one value per line."""
        content, query = "\n".join(map(json.dumps, items)), {"model": self.cell.model}
        answer = _good(
            self.send(f"POST {endpoint}", content=content, headers={"content-type": _LINES}, params=query)
        )
        return [json.loads(line) for line in answer.text.splitlines()]

    def events(self, endpoint, **body):
        """Return the events that this model streams, without the end mark."""
        text = _good(self.post(endpoint, {"model": self.cell.model, "stream": True, **body})).text
        told = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return [json.loads(one) for one in told if one != "[DONE]"]

    def rows(self, contexts):
        """Return full distributions [B, V] from POST /v1/next-token."""
        body = {"model": self.cell.model, "context": contexts}
        answer = _good(self.post("/v1/next-token", body, accept=_BINARY))
        return np.frombuffer(answer.content, "<f4").reshape(-1, self.vocab_size)

    def score(self, texts, **options):
        """Return the results of POST /v1/score, one per text."""
        return self.ask("/v1/score", texts=texts, **options)["results"]

    def log_probs(self, text, **options):
        """Return the log-probability of each token of a text from POST /v1/score."""
        return [token["logprob"] for token in self.score([text], detail="token", **options)[0]["tokens"]]


def _good(answer):
    assert answer.is_success, f"{answer.request.url}: {answer.status_code} {answer.text}"
    return answer


@contextlib.contextmanager
def serving_models(registry, device, names, log):
    """Serve a registry's models on a device; yield a client once all are loaded."""
    key = create_key("matrix", list(KeyScope))
    port = free_port()
    rounded = [name for name in names if name.endswith(INT8)]
    ours = {
        "REGISTRY": registry.root,
        "MODELS": ",".join([DEFAULT, *names]),
        "DEFAULT_MODEL": DEFAULT,
        "PORT": port,
        "DEVICE": device,
        "PRECISION": ",".join(["float32", *(f"{name}={INT8}" for name in rounded)]),
        "API_KEYS": key.key.line,
        "WATCH_INTERVAL_S": 0,
        "LOG_LEVEL": "warning",
    }
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRAMOPHONE_")}  # noqa: TID251 - for the child
    environment |= {f"GRAMOPHONE_{name}": str(value) for name, value in ours.items()}
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", _PROGRAM], cwd=_ROOT, env=environment, stderr=file)
    url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {key.secret}"}
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT_S) as client:
            _wait_until_loaded(child, client, log)
            yield client
    finally:
        child.terminate()
        child.wait(_TIMEOUT_S)


def _wait_until_loaded(child, client, log):
    """Wait until every model is loaded; fail if one fails."""
    end = time.monotonic() + _START_S
    states = set()
    while time.monotonic() < end:
        assert child.poll() is None, log.read_text()
        with contextlib.suppress(httpx.ConnectError):
            states = {model["state"] for model in client.get("/v1/models").json()["data"]}
            assert "failed" not in states, log.read_text()
            if states == {"loaded"}:
                return
        time.sleep(0.5)
    raise AssertionError(f"after {_START_S} s models are {states}: {log.read_text()}")
