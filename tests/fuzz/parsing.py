"""Parsers in a process of their own, which no file may crash, hang or fill with memory.

    python -m tests.fuzz.parsing MODULE      (a function, a path a line in, a reply a line out, in JSON)

A function of a test module reads the file at a path and uses the result. It may return, or raise one of the
project's own errors, which name the file; everything else is a failure: other errors, a signal, ten seconds of
processor time, half a gigabyte more than a valid file takes.
"""

import faulthandler
import importlib
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Self

from hypothesis import HealthCheck, currently_in_test_context, event, settings

from models.errors import DomainError

CASES = int(os.environ.get("GRAMOPHONE_FUZZ_CASES", "100"))  # noqa: TID251 - tests are no part of the service
"""Number of files that each test tries."""

SPARE_BYTES = 512 << 20
_PROCESSOR_S = 10
_LONGEST_MESSAGE = 4000  # characters
_PATIENCE_S = 240  # generous for busy machines; the processor time limit catches busy loops

fuzz = settings(
    max_examples=CASES,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
        HealthCheck.filter_too_much,
    ],
)
"""The same cases in every run, as many as `CASES`."""

fuzz_slowly = settings(fuzz, max_examples=max(CASES // 4, 1))
"""A quarter of the cases, for slow parsers."""


class ParserProcess:
    """Context manager that runs functions of a test module in another process, replaced when it dies.

    Args:
        module: name of the test module, such as `__name__`.
    """

    def __init__(self, module: str) -> None:
        self._command = [sys.executable, "-m", "tests.fuzz.parsing", module]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._errors.close()

    def answer(self, function: str, path: Path, *, good: bool = False) -> dict[str, str]:
        """Return a function's result for a file: its `outcome`, and `error` and `message` if any.

        Args:
            function: name of the function, which takes a path.
            path: path of the file.
            good: True if the file is valid; its memory use, plus a margin, becomes the limit for other files.

        Raises:
            AssertionError: the process died or hung.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([function, str(path), good]).encode() + b"\n")
        reply = b""
        while not reply.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], _PATIENCE_S)
            piece = process.stdout.read(1 << 16) if ready else b""
            if not piece:
                raise AssertionError(self._end(process, "died" if ready else "hung"))
            reply += piece
        answer: dict[str, str] = json.loads(reply)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        bounds = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}  # threads reserve memory
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | bounds,  # noqa: TID251 - a process like this one
            bufsize=0,
        )
        return self._process

    def _end(self, process: subprocess.Popen[bytes], how: str) -> str:
        """Return a description of how the process ended."""
        if how == "hung":
            process.kill()
        process.communicate()
        self._process = None
        self._errors.seek(0)
        said = self._errors.read()[-3000:].decode(errors="replace")
        self._errors.seek(0)
        self._errors.truncate()
        name = signal.Signals(-process.returncode).name if process.returncode < 0 else process.returncode
        return f"the process {how}: {name}\n{said}"


class Parser:
    """A function that reads one file.

    Args:
        process: process with the function.
        function: name of the function.
        path: path for the files.
        good: content of a valid file, which must load.
    """

    def __init__(self, process: ParserProcess, function: str, path: Path, good: bytes) -> None:
        self.path = path
        self.good = good
        self._process = process
        self._function = function
        path.write_bytes(good)
        reply = process.answer(function, path, good=True)
        assert reply["outcome"] == "loaded", f"a good file is not read: {reply}"

    def ask(self, content: bytes, *, named: str | None = None) -> str:
        """Return a file's outcome: `loaded`, or `refused` by an error that names it.

        Args:
            content: content of the file.
            named: text required in the error; by default the file name.

        Raises:
            AssertionError: any other outcome.
        """
        self.path.write_bytes(content)
        reply = self._process.answer(self._function, self.path)
        if currently_in_test_context():
            event(f"{reply['outcome']} {reply.get('error', '')}")
        assert reply["outcome"] != "broke", reply["message"]
        if reply["outcome"] == "refused":
            message = reply["message"]
            assert (self.path.name if named is None else named) in message, f"the file is not named: {reply}"
            assert len(message) < _LONGEST_MESSAGE, f"a message of {len(message)} characters"
        return reply["outcome"]


def _main(module: str) -> None:
    """Answer requests until standard input ends."""
    faulthandler.enable()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # library output must not mix with replies
    functions = importlib.import_module(module)
    for line in sys.stdin:
        name, path, good = json.loads(line)
        if good:
            _bound_memory(spare_bytes=None)
        reply = _outcome(getattr(functions, name), Path(path))
        if good:
            _bound_memory(spare_bytes=SPARE_BYTES)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _outcome(read, path: Path) -> dict[str, str]:
    signal.setitimer(signal.ITIMER_PROF, _PROCESSOR_S)  # the signal ends the process
    try:
        read(path)
    except DomainError as error:
        return {"outcome": "refused", "error": type(error).__name__, "message": str(error)}
    except BaseException:  # noqa: BLE001 - it is told of, whatever it is
        return {"outcome": "broke", "message": traceback.format_exc()}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {"outcome": "loaded"}


def _bound_memory(*, spare_bytes: int | None) -> None:
    """Limit this process to its current memory plus `spare_bytes`; None removes the limit."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    used = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) << 10
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most if spare_bytes is None else used + spare_bytes, most))


if __name__ == "__main__":
    _main(*sys.argv[1:])
