"""The guide's careful recipe for re-ranking, its commands unchanged, on public lists of a recogniser."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.nbest_lists import recognised

pytestmark = pytest.mark.data
ROOT = Path(__file__).parents[2]
NUM_TRAIN, NUM_TEST = 300, 100


def recipe():
    """Return the guide's shell block that tunes with the models of folds."""
    blocks = (ROOT / "docs/guides/rerank-speech.md").read_text(encoding="utf-8").split("```sh\n")[1:]
    (found,) = [block.split("```")[0] for block in blocks if "--fold-models" in block]
    return found


def write_lists(folder, name, entries):
    lines = [f"{i} ||| {text} ||| \n" for i, one in enumerate(entries) for text in one.texts]
    (folder / f"{name}.nbest").write_text("".join(lines), encoding="utf-8")
    (folder / f"{name}.refs").write_text("".join(f"{one.reference}\n" for one in entries), encoding="utf-8")


@pytest.fixture(scope="module")
def done(data_dir, tmp_path_factory):
    """The folder in which the recipe was followed, and what it said."""
    folder = tmp_path_factory.mktemp("recipe")
    entries = recognised(data_dir, "common-voice")
    write_lists(folder, "train", entries[:NUM_TRAIN])
    write_lists(folder, "test", entries[NUM_TRAIN : NUM_TRAIN + NUM_TEST])
    program = folder / "bin" / "gramophone"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m service.cli "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{program.parent}:{os.environ['PATH']}"}  # noqa: TID251
    command = ["bash", "-euo", "pipefail", "-c", recipe()]
    run = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    return folder, run


def test_the_recipe_says_what_the_weights_are_worth(done):
    _, run = done
    assert re.search(r"(Use the weights|Keep the first pass): on held-out lists, WER", run.stdout)
    assert "saved as profile speech" in run.stdout


def test_a_test_set_becomes_no_worse(done):
    _, run = done
    first, reranked = re.search(r"first pass ([\d.]+) %, re-ranked ([\d.]+) %", run.stderr).groups()
    assert float(reranked) <= float(first) + 0.05


def test_all_lists_come_out_with_their_features(done):
    folder, _ = done
    lists = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["id"] for one in lists] == [str(i) for i in range(NUM_TEST)]
    assert {"lm", "tokens", "unk", "words"} <= set(lists[0]["ranking"][0]["features"])
