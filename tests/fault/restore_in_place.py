"""Copy a backup over the registry of a service under load, repeatedly; as a program, TIMES times.

python -m tests.fault.restore_in_place TIMES
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.checkpoint.restore import restore_backup
from models.language_model import Vocabulary
from models.tokenizers import WordTokenizer
from tests.support.services import running_process
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress

CLIENTS = 4
SECONDS = 3.0
WORDS = [f"w{number}" for number in range(3000)]
SERVE = "from service.app import serve\nfrom service.settings import read_settings\nserve(read_settings())"


class Told(NamedTuple):
    """Result of a run.

    Attributes:
        copies: number of copies of the backup.
        right: number of replies equal to the first.
        wrong: statuses or errors of the others.
        deaths: number of deaths of serving processes.
    """

    copies: int
    right: int
    wrong: list[str]
    deaths: int


def large_registry(root):
    """Create a registry with an n-gram model of some 10 MB, with writable files like old registries."""
    random = np.random.default_rng(0)
    rows = [random.integers(3, len(WORDS), 10) for _ in range(20_000)]
    tokenizer = WordTokenizer(Vocabulary(WORDS))
    corpus = EncodedCorpus.from_sentences(rows, num_words=200_000, num_bytes=10**6)
    model = estimate(corpus, tokenizer.vocabulary, order=3, progress=Progress()).model
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6]], {})
    registry = LocalRegistry(root, create=True)
    version = registry.publish(
        "ngram", lambda folder: write_checkpoint(folder, model, tokenizer, description)
    )
    registry.set_alias("ngram", "champion", 1)
    for path in version.path.rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    return registry


def copy_over(backup, registry):
    """Copy the backup as operators do."""
    subprocess.run(["cp", "-r", f"{backup}/.", registry.root], check=True)


def damage_and_mend(backup, registry):
    """Damage a file and restore it as `gramophone models restore` does."""
    path = registry.version("ngram", 1).path / "ngram.bin"
    path.chmod(0o644)
    path.write_bytes(b"")
    told = restore_backup(LocalRegistry(backup), registry, (), differing="refuse", progress=lambda *_: None)
    assert told.restored == ["ngram@1"]


def restored_in_place(registry, folder, *, workers, put_back=copy_over, **settings):
    """Serve a registry under load while putting a backup back repeatedly."""
    backup = folder / "backup"
    shutil.copytree(registry.root, backup)
    ours = {"GRAMOPHONE_WORKERS": str(workers), "GRAMOPHONE_WATCH_INTERVAL_S": "0.1", **settings}
    with running_process(registry, folder / "log", program=SERVE, **ours) as (child, url):
        clients = [_Client(url, seed) for seed in range(CLIENTS)]
        until_s, copies = time.monotonic() + SECONDS, 0
        while time.monotonic() < until_s and child.poll() is None:
            put_back(backup, registry)
            copies += 1
        for client in clients:
            client.stop()
        died = child.poll() is not None
        child.terminate()
        child.wait()
    wrong = [problem for client in clients for problem in client.wrong]
    lines = (folder / "log").read_text().splitlines()
    deaths = died + sum("worker died" in line for line in lines)
    return Told(copies, sum(client.right for client in clients), wrong, deaths)


class _Client(threading.Thread):
    """Sends the same texts until stopped, and compares the replies with the first."""

    def __init__(self, url, seed):
        super().__init__()
        words = np.random.default_rng(seed).choice(WORDS, (100, 10))
        self._body = {"texts": [" ".join(row) for row in words]}
        self.right, self.wrong = 0, []
        self._stopped = threading.Event()
        self._http = httpx.Client(base_url=url, timeout=20)
        self._expected = self._answer()
        self.start()

    def run(self):
        while not self._stopped.is_set():
            try:
                is_right = self._answer() == self._expected
            except (httpx.HTTPError, ValueError) as error:
                self.wrong.append(repr(error))
                self._stopped.wait(0.02)
            else:
                self.right += is_right
                self.wrong += [] if is_right else ["another answer"]

    def stop(self):
        self._stopped.set()
        self.join()
        self._http.close()

    def _answer(self):
        return self._http.post("/v1/score", json=self._body).raise_for_status().json()


def main():
    """Run it a number of times with one process and with two, and print the results."""
    for workers in (1, 2):
        for run in range(int(sys.argv[1])):
            with contextlib.ExitStack() as stack:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                told = restored_in_place(large_registry(folder / "registry"), folder, workers=workers)
                print(
                    f"{workers} processes, run {run + 1}: {told.copies} copies, {told.right} right answers, "
                    f"{len(told.wrong)} failed, {told.deaths} deaths",
                    flush=True,
                )


if __name__ == "__main__":
    main()
