"""The service is killed with -9 at random moments under load and restarted: no client gets a wrong reply."""

import contextlib
import random
import threading
import time
from itertools import pairwise

import httpx

from models.checkpoint.load import FAMILIES, load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.tokenizers import WordTokenizer
from tests.contract.conftest import publish
from tests.support.fake_models import WORDS, FakeModel, fake_vocabulary
from tests.support.services import made_up_registry, poisoned_program, running_process

KILLS = 4
CLIENTS = 4
SERVED = {"GRAMOPHONE_MODELS": "main@1"}


class Client:
    """Requests scores until stopped, and repeats failed requests as a retrying client does."""

    def __init__(self, seed, urls):
        self.told, self.refused, self.retries = [], set(), 0
        self._generator, self._urls = random.Random(seed), urls
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self):
        while not self._stop.is_set():
            text = " ".join(self._generator.sample(WORDS, self._generator.randrange(1, 9)))
            with contextlib.suppress(httpx.TransportError, IndexError):
                reply = httpx.post(
                    f"{self._urls[-1]}/v1/score", json={"texts": [text], "model": "main@1"}, timeout=20
                )
                if reply.status_code == 200:
                    self.told.append((text, reply.json()["results"][0]["logprob"]))
                    continue
                self.refused.add(reply.status_code)
            self.retries += 1
            time.sleep(0.02)

    def stop(self):
        self._stop.set()
        self._thread.join()


def test_clients_that_retry_get_right_answers_and_the_registry_is_unhurt(monkeypatch, tmp_path):
    monkeypatch.setitem(FAMILIES, "fake", ("tests.support.fake_models", "PoisonedModel"))
    registry, generator, urls = made_up_registry(tmp_path), random.Random(0), []
    clients = [Client(seed, urls) for seed in range(CLIENTS)]
    try:
        for number in range(KILLS):
            with running_process(
                registry, tmp_path / f"log-{number}", program=poisoned_program(), **SERVED
            ) as (
                child,
                url,
            ):
                urls.append(url)
                before = sum(len(client.told) for client in clients)
                while sum(len(client.told) for client in clients) < before + 5:
                    assert child.poll() is None
                    time.sleep(0.01)
                words = WordTokenizer(fake_vocabulary())
                publish(registry, "main", FakeModel(words.vocabulary, seed=number), words)
                time.sleep(generator.random())
                child.kill()
    finally:
        for client in clients:
            client.stop()
    assert sum(client.retries for client in clients)
    expected = scores_of(LocalRegistry(registry.root))
    for client in clients:
        assert client.refused <= {503}  # while the models are loaded
        for text, log_prob in client.told:
            assert abs(log_prob - expected(text)) < 1e-4
    assert registry.versions("main") == list(range(1, KILLS + 2))


def scores_of(registry):
    """Return a function that scores texts with version 1."""
    checkpoint = load_checkpoint(registry.fetch(registry.version("main", 1)))
    table, id_of = checkpoint.model.table, checkpoint.model.vocabulary.id_of

    def score(text):
        ids = [1, *(id_of(word) for word in text.split()), 2]
        return float(sum(table[before, after] for before, after in pairwise(ids)))

    return score
