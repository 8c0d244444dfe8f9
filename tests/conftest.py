"""Fixtures shared by all test folders."""

import functools
import gc
import logging
import os
import sys
import tempfile
from pathlib import Path

import httpx
import hypothesis
import pytest
import structlog

# Tests use plain HTTP; reading the machine's certificates for each client takes 40 ms, and tests poll often.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)
# Errors that tests provoke are logged with plain tracebacks: rich ones, with all local variables, take 0.1 s each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)
# Test processes share the cores; threads in each would compete. Torch reads this variable on
# import, also in the programs that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # noqa: TID251 - tests are no part of the service
# Services of the tests keep users' words to themselves; some are started without our variables.
os.environ.setdefault("GRAMOPHONE_USERS", ":memory:")  # noqa: TID251 - tests are no part of the service
os.environ["XDG_DATA_HOME"] = str(Path(tempfile.gettempdir()) / "gramophone-tests")  # noqa: TID251 - likewise


# A busy machine must not fail an example; pytest's own limit finds tests that hang. Every run draws the same
# examples, so that a change is judged by what it changes; `--hypothesis-profile explore` draws new ones.
hypothesis.settings.register_profile("gramophone", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("gramophone")


def pytest_configure(config):
    """Compile the kernels of serving, before every test process would compile them."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        return
    from models.precompile import ALL_GROUPS, compile_groups

    for compiled in compile_groups(ALL_GROUPS):
        compiled.result()


def pytest_xdist_auto_num_workers():
    """Use one process more than cores: tests often wait, for a service or for a clock."""
    return (os.cpu_count() or 1) + 1


def pytest_collection():
    """Disable garbage collection while tests are collected: none is garbage, and scanning takes two seconds."""
    gc.disable()


def pytest_collection_modifyitems(items):
    """Start long files first: a long file started last keeps one process busy while the others are idle."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish():
    """Exclude the collected tests, thousands of objects, from later garbage collections."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """At the end of a file, exclude what it leaves, such as imported libraries, from garbage collections.

    These took a third of the time. Threads that a file left to torch made all later training twenty times slower.
    """
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()
        if (torch := sys.modules.get("torch")) is not None:
            threads = os.environ["OMP_NUM_THREADS"]  # noqa: TID251 - tests are no part of the service
            assert torch.get_num_threads() == int(threads), (
                f"{item.path} changes the number of torch's threads"
            )


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the public data folder; if GRAMOPHONE_DATA is set, it must exist."""
    named = os.environ.get("GRAMOPHONE_DATA")  # noqa: TID251 - tests are no part of the service
    if not named:
        pytest.skip("GRAMOPHONE_DATA is not set")
    folder = Path(named).resolve()
    assert (folder / "README.md").is_file(), f"GRAMOPHONE_DATA names {folder}, which is no data folder"
    return folder


@pytest.fixture(scope="module")
def no_pictures():
    """Skip the pictures of model cards and reports, in tests that publish models but check something else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.model_card.draw_png", lambda *_: b"")
        patch.setattr("models.report.Picture.svg", "<svg></svg>")
        yield


@pytest.fixture
def logs_as_before():
    """Restore the logging configuration that `serve` replaces for the process; lines are written at once."""
    from service.logs import writer

    writer.stop()  # of a service that another test runs
    root, configuration = logging.getLogger(), structlog.get_config()
    handlers, level, raises = root.handlers, root.level, logging.raiseExceptions
    yield
    structlog.configure(**configuration)
    root.handlers, logging.raiseExceptions = handlers, raises
    root.setLevel(level)
