"""Every request of the README runs and answers in the shape that it shows; its links and names lead somewhere."""

import json
import re
import shlex

import httpx
import pytest
import typer

from service.cli.main import app
from tests.system import readme
from tests.system.readme_commands import differences, first_unlike_line

TEXT = readme.README.read_text(encoding="utf-8")
PROSE = readme.FENCED.sub("", TEXT)
REQUESTS = [block for block in readme.blocks() if block.is_request]


@pytest.mark.parametrize("block", REQUESTS, ids=str)
def test_the_reply_has_the_shape_shown(block, served):
    output = readme.ask(block, served)
    if block.language_shown == "json":
        assert not list(differences(json.loads(block.shown), json.loads(output)))
    else:
        assert first_unlike_line(block.shown, output) is None


def test_every_request_shows_its_reply():
    assert [str(block) for block in REQUESTS if not block.shown] == []


def test_blocks_have_a_language_that_is_run_or_shown():
    assert {block.language for block in readme.blocks()} <= {"sh", "python"}


def anchor(heading):
    """What a heading is called in links."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)\s]+)\)", PROSE))))
def test_links_lead_somewhere(target):
    file, _, place = target.partition("#")
    if file:
        assert file.startswith("https://") or (readme.ROOT / file).exists()
    else:
        assert place in {anchor(heading) for heading in re.findall(r"^#+ (.+)$", PROSE, re.MULTILINE)}


@pytest.mark.parametrize("words", sorted(set(re.findall(r"`gramophone ([a-z][^`\n]*)`", PROSE))))
def test_commands_in_the_text_exist(words):
    command = typer.main.get_command(app)
    for word in (said := shlex.split(words.replace("[", "").replace("]", ""))):
        if word not in getattr(command, "commands", ()):
            break
        command = command.commands[word]
    assert not hasattr(command, "commands")
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in said if word.startswith("--")} <= known


def test_every_endpoint_is_named(served):
    """What stands in braces may have an example's name."""
    paths = httpx.get(f"{served}/openapi.json").json()["paths"]
    patterns = {path: re.sub(r"\{\w+\}", r"[^/\\s`]+", path) + r"(?![\w/])" for path in paths}
    assert [path for path, pattern in patterns.items() if not re.search(pattern, TEXT)] == []


def test_every_command_is_named():
    command = typer.main.get_command(app)
    for name, inner in command.commands.items():
        for words in [f"{name} {one}" for one in getattr(inner, "commands", ())] or [name]:
            assert f"gramophone {words}" in TEXT or f"`{words}`" in TEXT, words
