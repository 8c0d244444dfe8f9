"""Every shell command of the README and the runbook, and every piece of Python in the README, runs."""

import re
import shutil
import sys

import pytest

from tests.support.http import free_port
from tests.support.object_stores import s3_server
from tests.system import readme_commands
from tests.system.readme import ADDRESS, blocks
from tests.system.readme_commands import NOT_RUN, OTHERWISE, SHELL_BLOCKS, first_unlike_line

RUN = [block for block in SHELL_BLOCKS if readme_commands.script(block)]
PYTHON = [block for block in blocks() if block.language == "python"]
FUSION = """
import numpy as np
from tests.contract.decoders import importable
importable("pyctcdecode", "pygtrie")
labels, words = [*" acdehmnost", ""], ["the", "cat", "sat"]
logits = np.log(np.random.default_rng(0).dirichlet(np.ones(len(labels)), size=20))
"""
"""What a recogniser has: its labels, its words, and what it heard."""


@pytest.fixture(scope="session")
def furnished(default_models, tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme") / "workshop"
    readme_commands.furnish(folder, default_models)
    return folder


@pytest.fixture
def workshop(furnished, tmp_path):
    """A folder as the reader has it, for one block to change."""
    return shutil.copytree(furnished, tmp_path / "workshop", symlinks=True)


@pytest.fixture(scope="session")
def store():
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("block", RUN, ids=str)
def test_the_commands_run_and_tell_what_is_shown(block, workshop, served, store):
    output = readme_commands.call(
        workshop,
        readme_commands.script(block),
        URL=served,
        PORT=str(free_port()),
        BUCKET=store.make_bucket("readme"),
        XDG_CACHE_HOME=str(workshop / "cache"),
        **store.environment,
    )
    # a machine on which the load generator itself is slow marks its lines
    assert first_unlike_line(readme_commands.shown(block), output.replace(" ✗", "")) is None


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_the_python_runs(block, served, tmp_path):
    before = FUSION if "pyctcdecode" in block.text else ""
    (tmp_path / "example.py").write_text(before + block.text.replace(ADDRESS, served), encoding="utf-8")
    assert readme_commands.call(tmp_path, f"{sys.executable} example.py").strip()


ALL = [command for block in SHELL_BLOCKS for command in readme_commands.commands(block.text)]


@pytest.mark.parametrize("start", NOT_RUN)
def test_what_is_left_out_is_there(start):
    assert any(command.startswith(start) for command in ALL)


@pytest.mark.parametrize("old", [old for old, _, _ in OTHERWISE])
def test_what_is_said_otherwise_is_there(old):
    assert any(re.search(old.replace("ADDRESS", ADDRESS), command, re.MULTILINE) for command in ALL)
