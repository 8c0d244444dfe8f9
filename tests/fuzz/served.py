"""A service in a process of its own with a small model of each kind, and what that process holds."""

import contextlib
import re
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import torch

from models.checkpoint.registry import LocalRegistry
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.tokenizers import CharacterTokenizer
from models.vocabulary import Vocabulary
from tests import families
from tests.completion_pieces import learnt_pieces, piece_model
from tests.processes import running_process

MODELS = ("lstm", "mixture", "ngram")
"""The LSTM has characters and computes in int8, the mixture has words, the n-gram model subwords."""

STATE_TTL_S = 4
LIMITS = {
    "GRAMOPHONE_MAX_BODY_BYTES": "200000",
    "GRAMOPHONE_MAX_NEW_TOKENS": "64",
    "GRAMOPHONE_MAX_TOKENS_PER_SEQUENCE": "2000",
    "GRAMOPHONE_MAX_TEXTS_PER_REQUEST": "64",
    "GRAMOPHONE_MAX_USERS": "20",
    "GRAMOPHONE_PREFIX_CACHE_BYTES": "4000000",
    "GRAMOPHONE_BODY_TIMEOUT_S": "2",
    "GRAMOPHONE_STATE_TTL_S": str(STATE_TTL_S),
    "GRAMOPHONE_NUM_THREADS": "1",
    "GRAMOPHONE_LOG_FORMAT": "json",
}
"""Smaller than an operator's, so that made-up requests come to them."""

GOLDEN = (
    ("/v1/score", {"texts": ["the cat sat", "hats"], "detail": "token", "model": "ngram@1"}),
    ("/v1/score", {"token_ids": [[3, 9, 14]], "detail": "word", "model": "mixture@1"}),
    ("/v1/generate", {"prompt": "the ", "seed": 3, "max_tokens": 20, "model": "lstm@1", "logprobs": True}),
    ("/v1/next-token", {"context": "w3 w4", "top_k": 9, "model": "mixture@1"}),
)
"""Requests whose answers never change; they name versions, as aliases may be moved."""

_CARD = {
    "MODEL_CARD.md": b"# A model",
    "perplexities.png": b"\x89PNG",
}  # the document's example is the picture
_ABOUT = CheckpointDescription("2026-01-01T00:00:00+00:00", {"int8": {"cost": 0.0}}, {}, [[3, 4]], _CARD)
_HELD = re.compile(r"^gramophone_(num_requests_\w+|states|states_bytes) (\S+)$", re.MULTILINE)
_ASKED = re.compile(r"^gramophone_http_requests_total\{.*\} (\S+)$", re.MULTILINE)


class Process(NamedTuple):
    """What a process holds of the system."""

    open_files: int
    threads: int
    resident_bytes: int


class Fuzzed(NamedTuple):
    """A service to fuzz.

    Attributes:
        headers: with the key that may do all, if there are keys.
        log: the file that its log goes to.
    """

    url: str
    headers: dict
    pid: int
    log: Path

    @property
    def process(self):
        """What the process holds now."""
        proc = Path(f"/proc/{self.pid}")
        told = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        resident_kib = int(told["VmRSS"].split()[0])
        return Process(len(list((proc / "fd").iterdir())), int(told["Threads"]), 1024 * resident_kib)

    def client(self):
        """A client with the key."""
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=60)

    def golden(self):
        """The answers to the golden requests, byte for byte; what was unloaded is loaded before."""
        with self.client() as client:
            for model in MODELS if self.headers else ():
                client.post("/admin/models/load", json={"model": model, "wait": True}).raise_for_status()
            return [client.post(path, json=body).raise_for_status().content for path, body in GOLDEN]

    def held(self):
        """How much is waiting, under way and kept, by the names of the metrics."""
        return {name: float(value) for name, value in _HELD.findall(self._metrics())}

    def num_asked(self):
        """How many requests it has answered."""
        return int(sum(map(float, _ASKED.findall(self._metrics()))))

    def wait_until_idle(self, open_files):
        """Wait until nothing is held, and no more files are open; what still is after some time."""
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
    """The service, ready, while the block runs; settings as in the environment."""
    log = folder / "log"
    with running_process(_fill(folder), log, **(LIMITS | settings)) as (child, url):
        yield Fuzzed(url, headers, child.pid, log)


def _fill(folder):
    """A registry with the models."""
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
