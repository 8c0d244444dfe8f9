"""A service of the stored checkpoints, in a process of its own, started by its command as a user does."""

import contextlib
import functools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from tests.compatibility.checkpoints import Checkpoint
from tests.compatibility.folders import unpack
from tests.compatibility.questions import PARTNER

_KEY = (
    "tests:infer,admin:sha256-b4e5581c780972fa4471d2c8f38a6e08-"
    "aac5027f575e2dbfba4df68f93252eb0c019c2188a0d46c50d7eb0b17297cd9f"
)
"""A key made by c6402de, by which the tests alone are let in."""

_SECRET = "gm_6CQvQSte-_MwM0Qny2tfmD54irtiUm2kCo3YeSxlh5E"  # noqa: S105 - of the key above

_PATIENCE_S = 240
_TIMEOUT_S = 60
_POLL_S = 0.05


class Service:
    """A service of a source tree, which loads its models while others are asked.

    Args:
        tree: the source tree, of this version or of another.
        folder: where the service finds a registry of its own, and leaves its log.
        checkpoints: what is served, beside the model that others are compared with.
        precision: of networks, `int8` or `float32`.
    """

    def __init__(self, tree: Path, folder: Path, checkpoints: Sequence[Checkpoint], precision: str) -> None:
        unpack(folder / "registry")
        self._log = folder / "service.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        names = dict.fromkeys([PARTNER, *(checkpoint.name for checkpoint in checkpoints)])
        settings = {
            "MODELS": ",".join(f"{name}@1" for name in names),
            "DEFAULT_MODEL": f"{PARTNER}@1",
            "WATCH_INTERVAL_S": "0",
            "LOG_LEVEL": "warning",
            "API_KEYS": _KEY,
        }
        inherited = os.environ.items()  # noqa: TID251 - for the child
        environment = {name: value for name, value in inherited if not name.startswith("GRAMOPHONE_")}
        environment |= {f"GRAMOPHONE_{name}": value for name, value in settings.items()}
        environment |= {"PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "service.cli", "serve"]
        command += ["--registry", str(folder / "registry"), "--port", str(self._port)]
        command += ["--precision", precision]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log)

    @functools.cached_property
    def client(self) -> httpx.Client:
        """A client with the key, once all models are loaded."""
        client = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}",
            headers={"authorization": f"Bearer {_SECRET}"},
            timeout=_TIMEOUT_S,
        )
        self._wait_until_loaded(client)
        return client

    def close(self) -> None:
        """Stop the service."""
        self._process.kill()  # what it has written is deleted
        self._process.wait()
        if "client" in vars(self):
            self.client.close()

    def _wait_until_loaded(self, client: httpx.Client) -> None:
        """Wait for every model; one that fails to load fails all."""
        end = time.monotonic() + _PATIENCE_S
        states: dict[str, str] = {}
        while time.monotonic() < end:
            assert self._process.poll() is None, self._log.read_text()
            with contextlib.suppress(httpx.ConnectError):
                listed = client.get("/v1/models").raise_for_status().json()["data"]
                states = {model["id"]: model["state"] for model in listed}
                assert "failed" not in states.values(), self._log.read_text()
                if set(states.values()) == {"loaded"}:
                    return
            time.sleep(_POLL_S)
        raise AssertionError(f"after {_PATIENCE_S} s models are {states}: {self._log.read_text()}")
