"""Fixtures that every test folder may use."""

import functools
import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import httpx
import hypothesis
import pytest
import structlog

ROOT = Path(__file__).parents[1]

# Tests ask over plain HTTP; to read the machine's certificates anew for each client takes 40 ms, and polls are many.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)
# What tests make fail is logged with a plain traceback: to draw one with all local variables takes a tenth of a second.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
# Test processes share the cores: threads of their own would wait for one another. Torch reads this when it is
# imported, also in the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # noqa: TID251 - tests are no part of the service


# A machine that is busy is no fault of an example's; what takes too long is found by pytest's own limit.
hypothesis.settings.register_profile("gramophone", deadline=None)
hypothesis.settings.load_profile("gramophone")


def pytest_configure(config):
    """Compile the kernels once, two processes half of them each, as all test processes would compile all of them."""
    alone = hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None)
    if alone or any(ROOT.glob("models/**/__pycache__/*.nbi")):
        return
    folders = (ROOT / "models", ROOT / "training")
    files = [
        path
        for folder in folders
        for path in folder.rglob("*.py")
        if "njit" in path.read_text(encoding="utf-8")
    ]
    modules = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)
    program = (
        "import gc, importlib, sys; gc.disable(); [importlib.import_module(name) for name in sys.argv[1:]]"
    )
    compiling = [
        subprocess.Popen([sys.executable, "-c", program, *names], cwd=ROOT)
        for names in (modules, modules[::-1])
    ]
    assert [process.wait() for process in compiling] == [0, 0]


def pytest_xdist_auto_num_workers():
    """One process more than cores: tests often wait, for a service that starts or for a clock."""
    return (os.cpu_count() or 1) + 1


def pytest_collection():
    """Collect no garbage meanwhile: thousands of tests are none, and to look through them takes two seconds."""
    gc.disable()


def pytest_collection_modifyitems(items):
    """Long files first: one that is begun last keeps one process busy while the others have nothing left."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish():
    """Keep what stands now, thousands of tests, out of the garbage collections that loading a model asks for."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The public data folder; where GRAMOPHONE_DATA is set it must be there."""
    named = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - tests are no part of the service
    if not named:
        pytest.skip("GRAMOPHONE_DATA is not set")
    folder = Path(named).resolve()
    assert (folder / "README.md").is_file(), f"GRAMOPHONE_DATA names {folder}, which is no data folder"
    return folder


@pytest.fixture(scope="module")
def no_pictures():
    """Leave out the pictures of model cards and reports: for files that publish models and look at other things."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.model_card.draw_png", lambda *_, **__: b"")
        patch.setattr("training.report.draw_svg", lambda *_, **__: "<svg></svg>")
        yield


@pytest.fixture
def logs_as_before():
    """`serve` sends the whole process's log lines elsewhere; put that back."""
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions
    yield
    structlog.configure(**configuration)
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)
