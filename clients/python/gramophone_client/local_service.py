"""Service of an ARPA file or a registry folder, in a process that ends with the program.

A process between the program and the service waits for the end of its standard input, which the system closes with
the program, however it ends. It then ends the service and deletes its temporary folder. Run as a script, this file is
that process.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from pathlib import Path
from typing import IO, Any

import httpx

_START_TIMEOUT_S = 600.0
_POLL_S = 0.02


class LocalService:
    """Service of a file or folder on a free local port; ends with this object or the program.

    Args:
        path: registry folder, or ARPA file, also .gz, .xz, .zst or .bz2.

    Attributes:
        url: URL of the service.
        close: function that ends the service.

    Raises:
        OSError: the path does not exist, the program `gramophone` is not installed, or the service does not start.
    """

    def __init__(self, path: str) -> None:
        own = Path(sys.executable).with_name("gramophone")
        program = str(own) if own.exists() else shutil.which("gramophone")
        if not Path(path).exists():
            raise FileNotFoundError(f"cannot read model {path!r}: there is no such file or folder")
        if program is None:
            raise OSError(
                f"cannot serve {path!r}: the program gramophone is not installed; install gramophone-lm, or give the "
                "URL of a service"
            )
        environment = _environment()
        folder = tempfile.mkdtemp(prefix="gramophone-")
        registry = path
        if Path(path).is_file():
            registry, environment["GRAMOPHONE_COPY_MODELS"] = folder, "false"
            command = [program, "models", "import-arpa", path, "--name", "lm", "--registry", folder]
            imported = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if imported.returncode:
                shutil.rmtree(folder, ignore_errors=True)
                raise OSError(f"cannot read model {path!r}: {imported.stderr.strip()}")
        log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed by _stop
        keeper = subprocess.Popen(
            [sys.executable, "-I", __file__, folder, program, "serve", "--registry", registry, "--port", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=environment,
            start_new_session=True,  # Ctrl-C interrupts the program only
        )
        self.close = weakref.finalize(self, _stop, keeper, log)
        self.url = _wait_until_ready(path, keeper, log)


def _environment() -> dict[str, str]:
    """Return the environment of a service that logs JSON, without settings of other services."""
    inherited = os.environ.items()  # noqa: TID251 - for a process
    kept = {name: value for name, value in inherited if not name.startswith("GRAMOPHONE_")}
    return {**kept, "GRAMOPHONE_LOG_FORMAT": "json"}


def _wait_until_ready(path: str, keeper: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """Return the URL of a started service once its models are loaded.

    Raises:
        OSError: it ends, a model fails, or it takes longer than ten minutes.
    """
    end_s = time.monotonic() + _START_TIMEOUT_S
    while keeper.poll() is None and time.monotonic() < end_s:
        url = next((event["url"] for event in _events(log) if event.get("event") == "serving"), None)
        if url is not None:
            status = _status(url)
            if status == "ok":
                return str(url)
            if status == "failed":
                break
        time.sleep(_POLL_S)
    log.seek(0)
    raise OSError(f"cannot serve {path!r}: {log.read().decode(errors='replace')[-2000:].strip()}")


def _events(log: IO[bytes]) -> list[dict[str, Any]]:
    """Return the complete lines of a log that are JSON."""
    log.seek(0)
    lines = log.read().rpartition(b"\n")[0].splitlines()
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def _status(url: str) -> str:
    """Return the status of a service; empty before it listens."""
    try:
        return str(httpx.get(f"{url}/health/ready").json()["status"])
    except httpx.TransportError:
        return ""


def _stop(keeper: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """End a service and wait for it."""
    if keeper.stdin is not None:
        keeper.stdin.close()
    keeper.wait()
    log.close()


def _keep(folder: str, *command: str) -> int:
    """Run a service until standard input ends; delete a folder, and return the service's exit status."""
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def wait_for_end() -> None:
        sys.stdin.read()
        service.terminate()

    threading.Thread(target=wait_for_end, daemon=True).start()
    status = service.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    os._exit(_keep(*sys.argv[1:]))  # standard input may still be read
