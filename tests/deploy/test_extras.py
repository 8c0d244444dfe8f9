"""An installation without extras: it serves n-gram and int8 models, and names the extra that other work needs.

Tested with the newest and with the oldest versions of the libraries that the metadata allow.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.deploy.tools import ROOT, run, wait_until_it_answers
from tests.support.http import free_port

pytestmark = pytest.mark.long  # installs the libraries
OPTIONAL = ("torch", "matplotlib", "sacrebleu", "jiwer")


def oldest_versions():
    """Return the lower bounds of the direct requirements, as constraints of pip."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = [re.fullmatch(r"([\w-]+)(\[\w+\])?>=([\d.]+)(,<[\d.]+)?", one) for one in requirements]
    return [f"{bound[1]}=={bound[3]}" for bound in bounds]


@pytest.fixture(scope="module", params=["newest", "oldest"])
def folder(request):
    """Yield a folder with an environment `bin/` and a `registry` of a mixture, trained elsewhere."""
    with tempfile.TemporaryDirectory(prefix="extras-", ignore_cleanup_errors=True) as name:
        sizes = ("tokenizer.vocab_size=1000", "train.max_steps=2", "mixture.drop_unused=false")
        run(
            *(sys.executable, "-m", "service.cli", "train", "quickstart", "--name", "mixture"),
            *("--corpus", str(ROOT / "README.md"), "--registry", f"{name}/registry"),
            *(f"--set={size}" for size in (*sizes, "neural.hidden_size=64", "neural.embedding_size=64")),
        )
        run(sys.executable, "-m", "venv", f"{name}/environment")
        constraints = Path(name, "constraints.txt")
        constraints.write_text("\n".join(oldest_versions() if request.param == "oldest" else []))
        pip = (f"{name}/environment/bin/python", "-m", "pip", "install", "--quiet", "--constraint")
        run(*pip, str(constraints), str(ROOT))
        yield Path(name)


def gramophone(folder, *words):
    """Run a command that fails; return its exit code and last line."""
    program = folder / "environment/bin/gramophone"
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.splitlines()[-1]


def test_optional_libraries_are_not_installed(folder):
    ask = f"from importlib.util import find_spec; print([name for name in {OPTIONAL} if find_spec(name)])"
    done = subprocess.run([folder / "environment/bin/python", "-c", ask], capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_mixture_of_an_ngram_and_an_int8_network_is_served(folder):
    port = free_port()
    words = ("serve", "--registry", "registry", "--precision", "int8", "--port", str(port))
    with subprocess.Popen([folder / "environment/bin/gramophone", *words], cwd=folder) as service:
        try:
            wait_until_it_answers(f"http://127.0.0.1:{port}", service, "/health/ready")
            with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
                scored = client.post("/v1/score", json={"texts": ["a"]}, headers={"connection": "close"})
                assert scored.raise_for_status().headers["connection"] == "close"
                for page in ("/", "/docs", "/openapi.json", "/metrics"):
                    assert client.get(page).status_code == 200, page
        finally:
            service.terminate()


def test_float32_networks_need_the_extra_neural(folder):
    assert gramophone(folder, "next", "mixture", "a", "--precision", "float32", "--registry", "registry") == (
        2,
        "gramophone: float32 for lstm models needs the package torch: pip install 'gramophone-lm[neural]'",
    )


def test_training_needs_the_extra_train(folder):
    assert gramophone(folder, "train", "ngram", "--name", "n", "--corpus", str(ROOT / "README.md")) == (
        2,
        "gramophone: training needs the package matplotlib: pip install 'gramophone-lm[train]'",
    )
    assert not (folder / "registry/n").exists()
