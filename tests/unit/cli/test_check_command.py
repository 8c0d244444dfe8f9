"""`gramophone check` in this process."""

import io
import json
import sys

import pytest

from models.checking.calibration import Calibration, CalibrationPoint
from models.checkpoint.documents import CalibrationStore
from tests.checked import SENTENCES

pytestmark = pytest.mark.usefixtures("logs_as_before")
TEXT = "the cat sat on the mat\nshe thought of the old \U0001f600 hosue\nwe think off the cat in the house\n"


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    from training.commands import run_train

    folder = tmp_path_factory.mktemp("check")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES))
    run_train(
        "ngram",
        name="small",
        registry=folder / "registry",
        corpus=[folder / "corpus.txt"],
        assignments=["ngram.order=3"],
    )
    return folder / "registry"


@pytest.fixture
def check(typed, monkeypatch, registry):
    """Run `gramophone check small …`: exit code, standard output, standard error."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return typed("check", "small", *arguments, "--registry", registry)

    return run


def test_people_are_told_where_what_is_wrong_and_what_was_meant(check):
    code, out, _ = check(TEXT)
    assert code == 0
    assert "2:26  hosue  unknown word" in out
    assert "\u2192 house" in out
    assert "3:10  off  wrong word" in out
    assert "2 issues in 21 words" in out


def test_a_file_standard_input_and_an_argument_are_told_alike(check, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT, encoding="utf-8")
    told = [check(TEXT)[1], check(file)[1], check("-", stdin=TEXT)[1], check(stdin=TEXT)[1]]
    assert told == told[:1] * 4


def test_programs_get_the_reply_of_the_service(check):
    code, out, _ = check(TEXT, "--json", "--threshold", "0.3", "--max-suggestions", "1")
    reply = json.loads(out)
    assert code == 0
    assert (reply["model"], reply["threshold"]) == ("small@1", 0.3)
    assert {TEXT[i["start"] : i["end"]] for i in reply["issues"]} >= {"hosue", "off"}
    assert all(len(i["suggestions"]) == 1 for i in reply["issues"])


def test_words_of_a_dictionary_are_right(check, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\nhosue\n\n", encoding="utf-8")
    assert "hosue" not in check(TEXT, "--dictionary", file)[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  "], "there is no text"),
        (["-"], "there is no text"),
        (["the cat", "--threshold", "2"], "threshold is 2.0"),
        (["the cat", "--max-edits", "3"], "max_edits is 3"),
        (["the cat", "--min-precision", "0.9"], "was not calibrated"),
        (["the cat", "--dictionary", "/nowhere"], "/nowhere: cannot be read"),
        (["letter.txt"], "letter.txt: cannot be read"),
        (["."], "Is a directory"),
        (
            ["the cat", "--threshold", "0.4", "--min-precision", "0.9"],
            "either --threshold or --min-precision",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(check, arguments, said):
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_dictionary_may_have_the_weights_that_completions_take(check, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("hosue\t5\n", encoding="utf-8")
    assert "hosue" not in check(TEXT, "--dictionary", file)[1]


def test_a_word_that_ends_a_sentence_is_no_file(check):
    assert "in 1 word;" in check("house.")[1]


def test_a_file_that_is_not_text_is_refused(check, tmp_path):
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    code, _, err = check(file)
    assert (code, "is not UTF-8: byte 0 is 0xff" in err) == (2, True)


def test_a_calibrated_model_is_asked_for_a_precision(check, registry):
    points = [CalibrationPoint(threshold=0.4, precision=0.9, recall=0.5)]
    known = {"kinds": ["real_word"], "words_per_error": 20.0, "corpus_sha256": "", "created": ""}
    CalibrationStore(registry).write(Calibration(model="small@1", points=points, **known))
    code, out, _ = check(TEXT, "--min-precision", "0.8")
    assert code == 0
    assert "issues as probable as 0.4 were errors in 90% of cases" in out
