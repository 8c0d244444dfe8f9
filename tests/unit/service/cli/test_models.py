"""`gramophone models import-arpa` and `export-arpa`: console output and exit codes."""

import json

import pytest

from tests.reference.backoff import SMALL

pytestmark = pytest.mark.usefixtures("logs_as_before")


@pytest.fixture
def gramophone(typed, tmp_path):
    """Run `gramophone models …`: exit code, standard output, standard error."""
    return lambda *argv: typed("models", *argv, "--registry", tmp_path / "registry")


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.arpa"
    path.write_text(SMALL)
    return path


def words_of(text):
    return " ".join(text.split())


def test_a_file_is_served_by_one_command(gramophone, small):
    code, out, _ = gramophone("import-arpa", small, "--name", "m")
    assert code == 0
    assert "n-grams 5 4 2" in words_of(out)
    assert "note: probabilities do not sum to 1" in words_of(out)
    assert "published m@1" in words_of(out)
    assert gramophone("verify")[:2] == (0, "m@1: ok\n")


def test_figures_are_shown_where_there_is_text(gramophone, small, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a b\n")
    _, out, _ = gramophone("import-arpa", small, "--name", "m", "--corpus", text)
    assert "tokens 3" in words_of(out)
    _, out, _ = gramophone("import-arpa", small, "--name", "m", "--corpus", text, "--json")
    assert json.loads(out)["test"]["tokens"] == 3
    assert json.loads(out)["ngrams"] == [5, 4, 2]


def test_a_file_is_made_smaller_on_the_way(gramophone, small):
    options = ["--prune-entropy", "0.1", "--quantize-bits", "8", "--json"]
    _, out, _ = gramophone("import-arpa", small, "--name", "m", *options)
    assert json.loads(out)["ngrams_before_pruning"] == [5, 4, 2]
    assert sum(json.loads(out)["ngrams"]) < 11


def test_a_model_without_figures_is_listed_without(gramophone, small):
    gramophone("import-arpa", small, "--name", "m")
    _, out, _ = gramophone("list")
    assert "infinite" not in out
    assert json.loads(gramophone("list", "--json")[1])[0]["split"] is None


def test_a_model_is_written_to_a_file(gramophone, small, tmp_path):
    gramophone("import-arpa", small, "--name", "m")
    target = tmp_path / "out.arpa"
    code, out, _ = gramophone("export-arpa", "m", target)
    assert code == 0
    assert "wrote m@1" in words_of(out)
    assert "note:" not in out
    assert sorted(target.read_text().splitlines()) == sorted(SMALL.splitlines())
    assert json.loads(gramophone("export-arpa", "m@1", target, "--json")[1])["ngrams"] == [5, 4, 2]


def test_escapes_and_log_zero_of_an_export_are_noted(gramophone, tmp_path):
    text = SMALL.replace("\\data\\", "# gramophone: escapes=percent log-zero=-99\n\\data\\")
    text = text.replace("\ta", "\t%20").replace(" a", " %20").replace("\t-0.2\n", "\t-99\n")
    (tmp_path / "odd.arpa").write_text(text)
    gramophone("import-arpa", tmp_path / "odd.arpa", "--name", "m", "--lowercase")
    _, out, _ = gramophone("export-arpa", "m", tmp_path / "out.arpa")
    assert "note: 1 words contain white space" in words_of(out)
    assert "note: a back-off weight of -99 stands for minus infinity" in words_of(out)
    assert "note: the file does not contain the model's tokenizer" in words_of(out)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["import-arpa", "{tmp}/absent.arpa", "--name", "m"], "absent.arpa: there is no such file"),
        (
            ["import-arpa", "{tmp}/bad.arpa", "--name", "m"],
            "bad.arpa: line 17: there are more than the 3 n-grams",
        ),
        (["import-arpa", "{tmp}/small.arpa", "--name", "a b"], "name is 'a b'"),
        (
            ["import-arpa", "{tmp}/small.arpa", "--name", "m", "--corpus", "/nosuch"],
            "/nosuch: there is no such",
        ),
        (
            ["import-arpa", "{tmp}/small.arpa", "--name", "m", "--prune-entropy", "-1"],
            "--prune-entropy is -1",
        ),
        (["import-arpa", "{tmp}/small.arpa", "--name", "m", "--quantize-bits", "4"], "--quantize-bits is 4"),
        (["export-arpa", "nosuch", "{tmp}/out.arpa"], "there is no"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(gramophone, small, tmp_path, argv, said):
    (tmp_path / "bad.arpa").write_text(SMALL.replace("2=4", "2=3"))
    code, out, err = gramophone(*(word.format(tmp=tmp_path) for word in argv))
    assert (code, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
