"""The image: promises of the Dockerfile, and results of its steps, run as in a container but without an engine.

The steps are replayed in a clean folder. The resulting program then runs without capabilities on read-only files:
as in a container, only /tmp and the registry are writable.
"""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.deploy.image_build import DOCKERFILE, command, environment, ignored, is_sent, replay, stages
from tests.deploy.tools import ROOT, run, wait_until_it_answers
from tests.support.http import free_port

pytestmark = pytest.mark.long  # builds the image
STAGES = stages(DOCKERFILE.read_text())
LAST = STAGES[-1]
USER = int(next(each.arguments for each in LAST if each.name == "USER").partition(":")[0])


@pytest.fixture(scope="module")
def image():
    """Yield the folder that stands for the image's `/`."""
    with tempfile.TemporaryDirectory(prefix="image-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        replay(root)
        for writable in ("tmp", "registry"):
            (root / writable).mkdir()
        run("chmod", "-R", "a-w", str(root / "opt"))
        yield root


@contextlib.contextmanager
def started(image, *words, **settings):
    """Run a command in the image's environment, with no more rights than a container has."""
    ours = environment(LAST, image)
    ours["PATH"] = ours["PATH"].replace("$PATH", os.environ["PATH"])  # noqa: TID251 - the environment of a child
    confined = ["setpriv", "--no-new-privs", *(["--bounding-set=-all"] if os.geteuid() == 0 else [])]
    process = subprocess.Popen([*confined, *words], cwd=image / "tmp", env={**ours, **settings})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def trained(image):
    """The image with models in its registry, trained by itself."""
    options = ["--name", "mixture", "--corpus", str(ROOT / "README.md"), "--set", "tokenizer.vocab_size=1000"]
    sizes = ["train.max_steps=2", "neural.hidden_size=64", "neural.embedding_size=64"]
    sizes.append("mixture.drop_unused=false")
    with started(
        image, "gramophone", "train", "quickstart", *options, *(f"--set={size}" for size in sizes)
    ) as it:
        assert it.wait(240) == 0
    bytes_too = ["--name", "bytes", "--corpus", str(ROOT / "README.md"), "--set", "ngram.quantize_bits=8"]
    with started(image, "gramophone", "train", "ngram", *bytes_too) as it:
        assert it.wait(240) == 0
    return image


def test_a_container_cannot_change_what_it_runs(image):
    with started(image, "touch", str(image / "opt/gramophone/added")) as touch:
        assert touch.wait(30) == 1


def test_a_first_start_and_its_first_requests_compile_nothing(trained):
    port = free_port()
    shutil.rmtree(trained / "tmp/numba")  # a new container has an empty /tmp
    with started(trained, *command(LAST, "CMD"), GRAMOPHONE_PORT=str(port)) as service:
        wait_until_it_answers(f"http://127.0.0.1:{port}", service, "/health/ready")
        load = [str(ROOT / "deploy/load_test/run.sh"), f"http://127.0.0.1:{port}", "15", "12s"]
        with started(trained, *load) as generator:
            assert generator.wait(120) == 0
    assert not (trained / "tmp/numba").exists()


def test_the_health_check_is_that_of_a_service(trained):
    port = free_port()
    words = command(LAST, "HEALTHCHECK")
    with started(trained, *words, GRAMOPHONE_PORT=str(port)) as check:
        assert check.wait(30) == 1
    with started(
        trained, "gramophone", "serve", GRAMOPHONE_PORT=str(port), GRAMOPHONE_MODELS="ngram"
    ) as service:
        wait_until_it_answers(f"http://127.0.0.1:{port}", service, "/health/ready")
        with started(trained, *words, GRAMOPHONE_PORT=str(port)) as check:
            assert check.wait(30) == 0


def test_versions_are_those_of_the_list(image):
    ask = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()), sep='\\n')"
    here = subprocess.run(
        [image / "opt/gramophone/bin/python", "-c", ask], capture_output=True, text=True, check=True
    )
    plain = {re.sub(r"[-_.]+", "-", line.partition("+")[0]).lower() for line in here.stdout.split()}
    listed = (ROOT / "deploy/requirements.txt").read_text().splitlines()
    wanted = {re.sub(r"[-_.]+", "-", line).lower() for line in listed if not line.startswith("#")}
    assert {line for line in plain if not line.startswith("gramophone-lm")} == wanted


def test_the_environment_is_whole(image):
    check = ["python3", "-m", "pip", "--python", image / "opt/gramophone/bin/python", "check"]
    assert (
        "No broken requirements" in subprocess.run(check, capture_output=True, text=True, check=True).stdout
    )


def test_bases_are_pinned_and_can_be_pinned_further():
    assert re.search(r"^ARG BASE=python:3\.11\.\d+-slim-bookworm$", DOCKERFILE.read_text(), re.MULTILINE)
    assert [stage[0].arguments.split(" ")[0] for stage in STAGES] == ["${BASE}", "libraries", "${BASE}"]


def test_the_user_is_a_number_that_is_not_root():
    """Kubernetes can verify only for a numeric user that it is not root."""
    assert USER >= 10_000


@pytest.mark.parametrize(
    "path",
    ["keys", ".env", ".git/config", "registry/ngram/versions/1/ngram.bin", "service/__pycache__/app.pyc"],
)
def test_secrets_data_and_caches_are_not_in_the_build_context(path):
    assert not is_sent(Path(path), ignored())


def test_the_repository_names_no_package_index():
    texts = [DOCKERFILE, ROOT / "docker-compose.yml", *(ROOT / "deploy").glob("*.sh")]
    assert not any(
        "://" in line and "pip" in line.lower() for text in texts for line in text.read_text().splitlines()
    )
