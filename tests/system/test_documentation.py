"""Links, commands and endpoints that the README, the documentation site and the runbook name exist."""

import re
import shlex

import httpx
import pytest
import typer

from service.cli.main import app
from tests.system.documentation import BLOCKS, DOCUMENTS, EXAMPLES, PAGE_OF, README, ROOT

PROJECT_PAGES = (README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *EXAMPLES)
"""Pages that are read on a code host, so that MkDocs does not check the links of the first."""

ALL_TEXT = "\n".join(page.text for page in PAGE_OF.values())
ALL_PROSE = "\n".join(page.prose for page in PAGE_OF.values())


def anchor(heading):
    """Return the fragment that leads to a heading."""
    named = re.search(r"\{ #([\w-]+) \}$", heading)
    return named[1] if named else re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(file):
    """Return the fragments of all headings of a page."""
    return {
        anchor(heading)
        for heading in re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PROJECT_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        file, _, place = target.partition("#")
        if file.startswith("https://"):
            continue
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not place or place in anchors(there), target


@pytest.mark.parametrize("words", sorted(set(re.findall(r"`gramophone ([a-z][^`\n]*)`", ALL_PROSE))))
def test_commands_in_the_text_exist(words):
    command = typer.main.get_command(app)
    for word in (said := shlex.split(words.replace("[", "").replace("]", ""))):
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
    assert not hasattr(command, "commands") or len(said) == 1
    known = {option for param in command.params for option in param.opts}
    assert {word for word in said if word.startswith("--")} <= known


def test_blocks_have_a_language():
    assert {block.language for block in BLOCKS if not block.title and not block.reason} <= {
        "sh",
        "python",
        "calc",
    }


def test_every_endpoint_is_named(served):
    """Text in braces may have an example's name."""
    paths = httpx.get(f"{served}/openapi.json").json()["paths"]
    patterns = {path: re.sub(r"\{\w+\}", r"[^/\\s`]+", path) + r"(?![\w/])" for path in paths}
    assert [path for path, pattern in patterns.items() if not re.search(pattern, ALL_TEXT)] == []


def test_every_command_is_named():
    command = typer.main.get_command(app)
    for name, inner in command.commands.items():
        for words in [f"{name} {one}" for one in getattr(inner, "commands", ())] or [name]:
            assert f"gramophone {words}" in ALL_TEXT or f"`{words}`" in ALL_TEXT, words


@pytest.mark.parametrize(
    ("page", "limit"), [("README.md", 20_000), ("CONTRIBUTING.md", 14_000), ("deploy/RUNBOOK.md", 30_000)]
)
def test_pages_are_short_enough_to_be_read(page, limit):
    assert (ROOT / page).stat().st_size <= limit


def test_documents_are_found():
    assert len(DOCUMENTS) > 30
