"""That what the runbook says of threats is shown: every test that it names is there, and runs somewhere."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
RUNBOOK = (TESTS.parent / "deploy" / "RUNBOOK.md").read_text(encoding="utf-8")
THREATS = re.search(r"^## Threats\n(.*?)^## ", RUNBOOK, re.DOTALL | re.MULTILINE)[1]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", THREATS)
ROWS = [line for line in THREATS.splitlines() if line.startswith("| ") and not line.startswith("| Attack ")]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=str)
def test_a_test_that_is_named_is_there(file, test):
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_attack_names_a_test(row):
    assert len(row.strip("|").split(" | ")) == 3
    assert "::test_" in row.rpartition(" | ")[2]


def test_what_is_not_held_off_is_told():
    assert len(ROWS) > 20
    assert THREATS.partition("### What is not held off")[2].count("\n- **") >= 8
