"""Every block of the README, the documentation site, the examples and the runbook runs, and prints what the page shows.

The blocks of a page run in order, in a folder of the page's own. A block with a title is written to the file of that
name. What is run in another way, and why, stands in `documentation_commands.py`.
"""

import json
import re
import shutil
import subprocess
from functools import partial

import pytest

from tests.support.http import free_port
from tests.support.object_stores import s3_server
from tests.system import documentation_commands
from tests.system.conftest import made_once
from tests.system.documentation import ADDRESS, BLOCKS, DOCUMENTS, EXAMPLES, PAGE_OF, ROOT, ask
from tests.system.documentation_commands import (
    FURNISHED,
    INDEPENDENT,
    NEED_DATA,
    NOT_RUN,
    OTHERWISE,
    call,
    differences,
    first_unlike_line,
    script,
)

FUSION = """
import numpy as np
from tests.contract.decoders import importable
importable("pyctcdecode", "pygtrie")
labels, words = [*" acdehmnost", ""], ["the", "cat", "sat"]
logits = np.log(np.random.default_rng(0).dirichlet(np.ones(len(labels)), size=20))
"""
"""What a recogniser has: its labels, its words, and its output."""

RUN = [
    block
    for block in BLOCKS
    if not block.reason
    and (block.title or block.language == "python" or (block.language == "sh" and script(block)))
]


class Workshop:
    """The folder of a page, and the port of the service that the page starts."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()

    def close(self):
        """End the service of the page."""
        if (started := self.folder / ".service").exists():
            subprocess.run(["kill", started.read_text().strip()], check=False)


@pytest.fixture(scope="session")
def furnished(default_models, tmp_path_factory):
    furnish = partial(documentation_commands.furnish, default_models=default_models)
    return made_once(tmp_path_factory, "furnished", furnish)


@pytest.fixture(scope="session")
def workshop(furnished, tmp_path_factory):
    """Gives the folder of a block: the page's own, or a new one for a block that follows no other."""
    of_pages = {}

    def find(block):
        if (found := of_pages.get(block.document)) is not None:
            return found
        folder = tmp_path_factory.mktemp(block.document.stem) / "workshop"
        if block.document in INDEPENDENT | FURNISHED:
            shutil.copytree(furnished, folder, symlinks=True)
        elif block.document in EXAMPLES:
            shutil.copytree(block.document.parent, folder)
        else:
            folder.mkdir()
        made = Workshop(folder)
        if block.document not in INDEPENDENT:
            of_pages[block.document] = made
        return made

    yield find
    for one in of_pages.values():
        one.close()


@pytest.fixture(scope="session")
def store():
    with s3_server() as server:
        yield server


def page_tests(blocks):
    """Return a class of tests for the blocks of one page: pytest-xdist keeps a class in one process, in order."""

    @pytest.mark.parametrize("block", blocks, ids=str)
    def run(_self, block, workshop, furnished, served, store, request):
        data = request.getfixturevalue("data_dir") if block.document in NEED_DATA else ""
        check(block, workshop, furnished, served, store, data)

    return type("PageTests", (), {"test_a_block_does_what_the_page_shows": run})


for document in DOCUMENTS:
    if any(block.document == document for block in RUN):
        name = "".join(
            part.capitalize() for part in re.findall(r"[a-z]+", str(document.relative_to(ROOT)).lower())
        )
        globals()[f"Test{name}"] = page_tests([block for block in RUN if block.document == document])


def check(block, workshop, furnished, served, store, data):
    """Run a block, and assert that it prints what the page shows."""
    place = workshop(block)
    url = f"http://127.0.0.1:{place.port}" if PAGE_OF[block.document].asks_own_service(block) else served
    if block.title:
        (place.folder / block.title).write_text(block.text.replace(ADDRESS, url), encoding="utf-8")
        return
    if block.is_request:
        compare(block, ask(block, url, place.folder))
        return
    variables = {
        "URL": url,
        "PORT": str(place.port),
        "BUCKET": store.make_bucket("documentation"),
        "DATA": str(data),
        "XDG_CACHE_HOME": str(place.folder / "cache"),
        **store.environment,
    }
    if block.language == "python":
        before = FUSION if "pyctcdecode" in block.text else ""
        example = place.folder / "example.py"
        example.write_text(before + block.text.replace(ADDRESS, url), encoding="utf-8")
        output = call(place.folder, "python example.py", programs=furnished / ".venv/bin", **variables)
    else:
        output = call(place.folder, script(block), programs=furnished / ".venv/bin", **variables)
    compare(
        block, output.replace(" ✗", "")
    )  # a machine on which the load generator itself is slow marks its lines


def compare(block, output):
    """Assert that an output has the shape of the one shown, if one is."""
    if block.language_shown == "json":
        assert not list(differences(json.loads(block.shown), json.loads(output)))
    elif block.shown:
        assert first_unlike_line(documentation_commands.shown(block), output) is None


def test_every_block_is_run_shown_as_a_file_or_exempt_with_a_reason():
    """Arithmetic of the runbook (`calc`) is evaluated by tests/deploy/test_runbook.py."""
    known = {id(block) for block in RUN}
    rest = [
        block for block in BLOCKS if id(block) not in known and not block.reason and block.language != "calc"
    ]
    assert [
        str(block) for block in rest if not (block.document in INDEPENDENT and block.language == "sh")
    ] == []


def test_every_request_shows_its_reply():
    assert [str(block) for block in BLOCKS if block.is_request and not block.shown and not block.reason] == []


ALL = [
    command
    for block in BLOCKS
    if block.language == "sh" and not block.reason
    for command in documentation_commands.commands(block.text)
]


@pytest.mark.parametrize("start", NOT_RUN)
def test_exempted_commands_are_in_the_documentation(start):
    assert any(command.startswith(start) for command in ALL)


@pytest.mark.parametrize("old", [old for old, _, _ in OTHERWISE])
def test_replaced_commands_are_in_the_documentation(old):
    assert any(re.search(old.replace("ADDRESS", ADDRESS), command, re.MULTILINE) for command in ALL)
