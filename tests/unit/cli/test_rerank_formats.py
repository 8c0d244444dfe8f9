"""`gramophone rerank` with files of other programs."""

import json

import pytest
from typer.testing import CliRunner

from models.errors import InvalidInputError
from service.cli.main import app
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("logs_as_before")

MOSES = """\
0 ||| mat the on ||| lm= -1 ||| -3
0 ||| the cat sat ||| lm= -2 ||| -4
bad
1 ||| the owl ||| lm= -3 ||| -5
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerank")
    (folder / "corpus").write_text("\n".join(f"the {n} sat on the mat" for n in ("cat", "dog", "owl") * 12))
    run_train(
        "ngram", name="small", registry=folder, corpus=[folder / "corpus"], assignments=["ngram.order=2"]
    )
    return folder


@pytest.fixture
def rerank(registry, tmp_path):
    (tmp_path / "lists").write_text(MOSES)
    (tmp_path / "references").write_text("the cat sat\nthe owl\n")

    def run(*options, **more):
        arguments = ["rerank", "small", tmp_path / "lists", "--registry", registry, *options]
        return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, **more)

    return run


def test_a_format_is_told_by_its_lines_and_bad_ones_are_told(rerank, tmp_path):
    done = rerank()
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["id"], [c["index"] for c in first["ranking"]], second["id"]) == ("0", [1, 0], "1")
    assert first["ranking"][0]["features"]["old_lm"] == -2
    assert done.stderr.startswith(f"gramophone: {tmp_path}/lists:3: there is no |||")


def test_the_new_order_is_written_in_a_format(rerank):
    done = rerank("--weights", "old_lm=-2", "--output-format", "moses", "--top", "1")
    first, second = done.stdout.splitlines()
    assert first.startswith("0 ||| the cat sat ||| ")
    assert "old_score= -4.0" in first
    assert (first.endswith(" ||| 4.0"), second.endswith(" ||| 6.0")) == (True, True)


def test_a_folder_is_written_for_srilm(rerank, tmp_path):
    rerank("--output-format", "nbestlist1.0", "--output", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1"]


def test_error_rates_before_and_after_are_told(rerank, tmp_path):
    done = rerank("--references", tmp_path / "references")
    assert done.stderr.splitlines()[-1] == (
        "word error rate of 2 lists with references: first pass 60.00 %, re-ranked 0.00 %, best possible 0.00 %"
    )


def test_a_list_that_cannot_be_ranked_fails_alone(rerank, tmp_path):
    some = [
        {"id": "u", "candidates": [{"text": "the"}]},
        {"candidates": [{"text": "a", "features": {"am": 1}}]},
    ]
    (tmp_path / "lists").write_text("\n".join(map(json.dumps, some)))
    done = rerank("--weights", "am=1")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith(f"gramophone: {tmp_path}/lists: list 1 (u): ")


def test_that_no_list_can_be_ranked_is_an_error(rerank):
    with pytest.raises(InvalidInputError, match="no list can be re-ranked"):
        rerank("--weights", "nothing=1")


def test_an_output_needs_its_format(rerank, tmp_path):
    with pytest.raises(InvalidInputError, match="--output needs --output-format"):
        rerank("--output", tmp_path / "out")
