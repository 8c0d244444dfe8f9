"""`gramophone lists`: converting and showing n-best list files."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from models.errors import FormatError, InputError
from service.cli import options
from service.cli.main import app
from service.local import streams

MOSES = """\
0 ||| a b ||| lm= -1 ||| -3
bad
0 ||| a c ||| lm= -2 ||| -4
1 ||| x ||| lm= -3 ||| -5
1 ||| x ||| lm= -3 ||| -5
"""


@pytest.fixture
def moses(tmp_path):
    (tmp_path / "lists.nbest").write_text(MOSES)
    (tmp_path / "references").write_text("a c\nx\n")
    return tmp_path / "lists.nbest"


def run(command, *arguments, **options):
    return CliRunner().invoke(
        app, ["lists", command, *map(str, arguments)], catch_exceptions=False, **options
    )


def test_good_lists_are_written_and_bad_lines_told(moses):
    done = run("convert", moses, "-")
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["0", "1"]
    assert f"gramophone: {moses}:2: no |||" in done.stderr
    assert done.exit_code == 0


def test_dropped_features_are_noted(moses, tmp_path):
    done = run("convert", moses, tmp_path / "out.json.gz", "--output-format", "mlm-scoring")
    assert done.stderr.splitlines()[-1] == "note: format mlm-scoring cannot represent features.lm"
    assert json.loads(run("show", tmp_path / "out.json.gz", "--json").stdout)["features"] == {"score": 4}


def test_kaldis_words_alone_are_printed(moses):
    done = run("convert", moses, "-", "--output-format", "kaldi")
    assert done.stdout.splitlines()[0] == "0-1 a b"
    assert done.stderr.splitlines()[-1] == "note: format kaldi cannot represent features.lm, features.score"


def test_standard_input_is_read():
    done = run("convert", "-", "-", "--output-format", "moses", input="u-1 a\nu-2 b\n")
    assert done.stdout == "u ||| a ||| \nu ||| b ||| \n"


def test_references_go_into_the_file(moses, tmp_path):
    done = run(
        "convert",
        moses,
        "-",
        "--references",
        tmp_path / "references",
        "--references",
        tmp_path / "references",
    )
    assert json.loads(done.stdout.splitlines()[0])["references"] == ["a c", "a c"]


def test_figures_of_a_file(moses, tmp_path):
    done = run("show", moses, "--references", tmp_path / "references", "--json")
    assert json.loads(done.stdout) == {
        "lists": 2,
        "candidates": 4,
        "duplicates": 1,
        "lists_of_one_text": 1,
        "lists_with_references": 2,
        "features": {"lm": 4, "score": 4},
        "first_wer": pytest.approx(100 / 3),
        "oracle_wer": 0.0,
    }


def test_figures_for_people(moses):
    shown = run("show", moses).stdout
    assert "candidates with lm" in shown
    assert "wer" not in shown


def test_error_rates_of_a_file_for_people(moses, tmp_path):
    shown = run("show", moses, "--references", tmp_path / "references").stdout
    assert re.search(r"first wer +33\.33 %\noracle wer +0\.00 %", shown)


def test_scores_of_kaldi_and_beams_of_nemo(tmp_path):
    (tmp_path / "text").write_text("u-1 a\n")
    (tmp_path / "costs").write_text("u-1 2\n")
    done = run("convert", tmp_path / "text", "-", "--format", "kaldi", "--scores", f"am={tmp_path}/costs")
    assert json.loads(done.stdout)["candidates"] == [{"text": "a", "features": {"am": -2.0}}]
    done = run("show", "-", "--beam-size", "2", "--json", input="a\t1\nb\t2\n")
    assert json.loads(done.stdout)["lists"] == 1


def told_of_scores(**features):
    """Standard error of `lists show` for lists of one candidate each with these feature values."""
    rows = [dict(zip(features, values, strict=True)) for values in zip(*features.values(), strict=True)]
    lists = [{"candidates": [{"text": "a", "features": row}]} for row in rows]
    return run("show", "-", input="\n".join(map(json.dumps, lists))).stderr


@pytest.mark.parametrize("name", ["am", "lm", "score", "old_lm", "am_score", "AC"])
def test_scores_that_look_like_probabilities_are_told_once(name):
    assert told_of_scores(**{name: [1e-40, 0.0, 0.25, 1.0], "words": [1, 2, 3, 4]}) == (
        f"gramophone: -: all values of {name} lie between 1e-40 and 1, so they look like probabilities; natural "
        "logarithms are expected: replace each by its logarithm\n"
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("am", [-0.5, -0.1, 0.5]),
        ("am", [0.5, 1.5]),
        ("score", [0, 0]),
        ("lm", [1, 1, 0]),
        ("words", [0.5, 1.0]),
        ("posterior", [0.5, 0.25]),
        ("lm_posterior", [0.5, 0.25]),
        ("comet_score", [0.5, 0.25]),
    ],
)
def test_other_numbers_between_0_and_1_are_no_alarm(name, values):
    assert told_of_scores(**{name: values}) == ""


def test_complaints_have_an_end(monkeypatch):
    monkeypatch.setattr(streams, "MAX_SHOWN", 2)
    done = run("show", "-", "--format", "moses", input="bad\n" * 5 + "0 ||| a\n")
    assert done.stderr.splitlines()[2:] == ["gramophone: -: 3 more bad lines"]


def test_a_file_without_a_good_list_is_refused():
    with pytest.raises(FormatError, match="no readable list"):
        run("show", "-", "--format", "moses", input="bad\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "x"], "format is 'x'; it must be one of jsonl"),
        (["--output-format", "x"], "format is 'x'; it must be one of jsonl"),
        (["--scores", "am"], "--scores takes NAME=FILE, given 'am'"),
        (["--output-format", "srilm"], "give a folder"),
    ],
)
def test_wrong_options_are_refused(moses, options, message):
    with pytest.raises(InputError, match=message):
        run("convert", moses, "-", *options)


def test_a_closed_stream_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"):
        list(options.ListSource("-").lists())


def test_names_of_features_are_no_markup(tmp_path):
    """Regression: such a name raised an error in the printing library."""
    one = {"candidates": [{"text": "a", "features": {"am[/x]": -1.0}}]}
    (tmp_path / "lists.jsonl").write_text(json.dumps(one))
    assert "candidates with am[/x]" in run("show", tmp_path / "lists.jsonl").stdout
