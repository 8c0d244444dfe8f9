"""The Python client as its users install it, and the service that it starts for a file."""

import os
import signal
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.reference.backoff import random_arpa
from tests.support.services import wait_until

ROOT = Path(__file__).parents[2]
MAX_WHEEL_BYTES = 100_000
MAX_INSTALLED_BYTES = 15_000_000
"""Limit of the client and all packages that it requires."""

PROGRAM = """
from gramophone_client import BadRequestError, Client
from gramophone_client.kenlm import Model, State
from gramophone_client.types import NextTokenReply


def best(client: Client, context: str) -> list[tuple[str, float]]:
    reply: NextTokenReply = client.next_token(context, top_k=3)
    return [(one.text, one.logprob) for one in reply.results[0].candidates]


def last(model: Model, state: State, words: list[str]) -> float:
    return max(model.BaseScore(state, word, State()) for word in words)


try:
    with Client("http://127.0.0.1:1", max_retries=0) as client:
        print(best(client, "Return the"))
except BadRequestError as error:
    print(error.param)
except Exception as error:
    print(type(error).__name__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT / "clients/python")], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """Python of a new environment with the client, and a folder of a user's project; the size of what was installed."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "venv", with_pip=True)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    before = size_of(packages)
    python = folder / "venv/bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*install, str(wheel)], check=True, env=environment())
    installed = size_of(packages) - before
    subprocess.run([*install, "mypy"], check=True, env=environment())
    for package in ("models", "service"):
        (folder / "project" / package).mkdir(parents=True)
        (folder / "project" / package / "__init__.py").write_text("raise ImportError('not the client's')")
    (folder / "project/program.py").write_text(PROGRAM)
    return python, folder / "project", installed


def environment():
    """Environment without the paths of this project."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # noqa: TID251 - for a child


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def run(clean, *arguments):
    python, project, _ = clean
    done = subprocess.run(
        [str(python), *arguments], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_small(wheel, clean):
    assert wheel.stat().st_size < MAX_WHEEL_BYTES
    assert clean[2] < MAX_INSTALLED_BYTES


def test_it_is_imported_beside_other_packages_of_our_names(clean):
    code = "import gramophone_client.kenlm, gramophone_client.fusion, sys; print(*sys.modules)"
    assert {"service", "models", "numpy", "torch"}.isdisjoint(run(clean, "-c", code).split())


def test_programs_are_typed(clean):
    assert "Success" in run(clean, "-m", "mypy", "--strict", "program.py")
    assert run(clean, "program.py") == "UnreachableError\n"


def test_without_a_service_a_file_is_one_clear_error(clean):
    (clean[1] / "lm.arpa").write_text("\\data\\\n")
    code = """
        from gramophone_client.kenlm import Model
        try:
            Model("lm.arpa")
        except OSError as error:
            print(error)
    """
    python, project, _ = clean
    done = subprocess.run(
        [str(python), "-c", textwrap.dedent(code)],
        cwd=project,
        env={**environment(), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("cannot serve 'lm.arpa': the program gramophone is not installed; install")


@pytest.fixture(scope="module")
def arpa(tmp_path_factory):
    path = tmp_path_factory.mktemp("arpa") / "lm.arpa"
    path.write_text(random_arpa(np.random.default_rng(0), order=3)[0], encoding="utf-8")
    return path


HOLD = """
import sys
from gramophone_client.kenlm import Model
model = Model(sys.argv[1])
print(model.score("a b"), model._service.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, None])
def test_the_service_of_a_file_ends_with_its_program(arpa, kill, tmp_path):
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}  # noqa: TID251 - for a child
    program = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(arpa)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=temporary,
        text=True,
    )
    score, url = program.stdout.readline().split()
    assert float(score) < 0
    assert httpx.get(f"{url}/health/live").is_success
    assert list(tmp_path.iterdir())
    program.send_signal(kill) if kill else program.stdin.close()
    program.wait()
    program.stdin.close()
    program.stdout.close()
    wait_until(lambda: not is_answering(url))
    wait_until(lambda: not list(tmp_path.iterdir()))


def is_answering(url):
    try:
        return httpx.get(f"{url}/health/live").is_success
    except httpx.TransportError:
        return False


def test_a_registry_folder_is_served(default_models):
    from gramophone_client.kenlm import Model

    with Model(default_models, model="ngram") as model:
        assert model.score("Return the value.") < 0
        assert "Return" in model


def test_a_damaged_file_is_one_clear_error(tmp_path):
    from gramophone_client.kenlm import Model

    (tmp_path / "lm.arpa").write_text("no model")
    with pytest.raises(OSError, match=r"cannot read model '.*lm\.arpa': "):
        Model(tmp_path / "lm.arpa")
