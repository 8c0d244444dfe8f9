"""`gramophone evaluate --task …`: console output, written files, errors."""

import json

import pytest
from typer.testing import CliRunner

from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.errors import FormatError, InputError, ModelNotFoundError
from service.cli.main import app
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("logs_as_before")

NOUNS, PLACES = ("cat", "dog", "owl", "hen", "cow"), ("mat", "bed", "sofa", "roof")
TEXT = [f"the {noun} sat on the {place} and slept there" for noun in NOUNS for place in PLACES] * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "text").write_text("\n".join(TEXT))
    for order in (1, 3):
        run_train(
            "ngram",
            name=f"order{order}",
            registry=folder,
            corpus=[folder / "text"],
            valid=[folder / "text"],
            assignments=[f"ngram.order={order}"],
        )
    return folder


def evaluate(folder, *options, model="order3"):
    """Run the command and return its standard output without wrapped lines."""
    given = ["--corpus", str(folder / "text"), "--registry", str(folder), *map(str, options)]
    done = CliRunner().invoke(app, ["evaluate", model, *given], env={"COLUMNS": "160"})
    if done.exception:
        raise done.exception
    return done.stdout


def test_autocomplete_prints_tables_and_writes_a_page(folder):
    out = evaluate(folder, "--task", "autocomplete", "--sample", 60, "--report", folder / "page.html")
    for said in (
        "63 words on 7 lines",
        "keystroke savings top 3",
        "phrase match 5",
        "one keystroke with order3@1",
    ):
        assert said in out
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_autocomplete_compares_two_models_for_programs(folder):
    options = (
        "--task",
        "autocomplete",
        "--sample",
        60,
        "--against",
        "order1",
        "--context",
        "stream",
        "--json",
    )
    result = json.loads(evaluate(folder, *options))
    assert (result["task"], result["context"], result["words"]) == ("autocomplete", "stream", 63)
    assert result["against"]["difference"]["keystroke_savings_top_3"]["low"] > 0


def test_check_prints_tables_and_keeps_a_calibration(folder):
    options = ("--task", "check", "--sample", 300, "--kinds", "real_word", "--save-calibration")
    out = evaluate(folder, *options)
    for said in ("words on 34 lines for each kind", "by surprisal", "/v1/check now accepts"):
        assert said in out
    assert CalibrationStore(folder).read("order3@1").kinds == ["real_word"]


def test_check_tells_programs_every_kind(folder):
    result = json.loads(evaluate(folder, "--task", "check", "--sample", 200, "--json"))
    assert (result["task"], list(result["kinds"])) == ("check", ["real_word", "non_word", "space"])


@pytest.fixture(scope="module")
def network(folder):
    """Registry with a small LSTM besides the n-gram models."""
    settings = ["neural.hidden_size=8", "neural.embedding_size=8", "tokenizer.kind=word", "train.max_steps=2"]
    given = {"registry": folder, "corpus": [folder / "text"], "valid": [folder / "text"]}
    run_train("lstm", name="network", assignments=settings, **given)
    return folder


def test_a_model_that_learns_is_told_of_in_as_much_detail(network):
    options = ("--dynamic", "--detail", "--overlap", network / "text", "--json")
    result = json.loads(evaluate(network, *options, "--precision", "float32", model="network"))
    assert result["precision"] == "float32"
    groups = {"by_frequency", "by_position_in_sentence", "by_position_since_start"}
    assert result["detail"].keys() == {"frequency_in", *groups}
    assert (result["overlap"]["sentences"]["share"], len(result["notes"])) == (1.0, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--precision", "int8"], "--precision is int8; --dynamic computes gradients"),
        (["--precision", "int4"], "precision is 'int4'; it must be one of"),
        (["--sample", "9"], "--sample requires --detail or --against"),
        (["--window", "9"], "--dynamic .* cannot be combined with --context document, --window or --against"),
        (
            ["--against", "order1"],
            "--dynamic .* cannot be combined with --context document, --window or --against",
        ),
        (
            ["--context", "document"],
            "--dynamic .* cannot be combined with --context document, --window or --against",
        ),
    ],
)
def test_options_that_dynamic_evaluation_lacks_are_refused(folder, options, said):
    with pytest.raises(InputError, match=said):
        evaluate(folder, "--dynamic", *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--report", "a.html"], "--report requires --task autocomplete; the task is perplexity"),
        (["--no-repeats"], "--no-repeats requires --task autocomplete; the task is perplexity"),
        (["--save-calibration"], "--save-calibration requires --task check; the task is perplexity"),
        (["--task", "check", "--against", "order1"], "--against requires --task perplexity or autocomplete"),
        (["--task", "check", "--context", "stream"], "--context requires"),
        (["--task", "autocomplete", "--kinds", "space"], "--kinds requires --task check"),
        (["--task", "autocomplete", "--misspellings", "a"], "--misspellings requires --task check"),
        (["--task", "autocomplete", "--window", "9"], "--window requires --task perplexity"),
        (["--task", "autocomplete", "--detail"], "--detail requires --task perplexity"),
        (["--task", "check", "--kinds", "grammar"], "the kinds are real_word, non_word, space"),
    ],
)
def test_options_of_another_task_are_refused(folder, options, said):
    with pytest.raises(InputError, match=said):
        evaluate(folder, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fuzzy", 3], "fuzzy is 3; at most 2 errors"),
        (["--report", "nowhere/a.html"], "the folder nowhere does not exist"),
        (["--casing", "ignore", "--window", 9], "--window requires --task perplexity"),
    ],
)
def test_options_of_autocomplete_are_checked_before_a_text_is_read(folder, options, said):
    with pytest.raises(InputError, match=said):
        evaluate(folder, "--task", "autocomplete", "--corpus", folder / "missing", *options)


def fit_errors(folder, text, *options):
    """Run `gramophone fit-errors` on a text and return its output."""
    (folder / "pairs.tsv").write_text(text)
    done = CliRunner().invoke(
        app, ["fit-errors", str(folder / "pairs.tsv"), "--registry", str(folder), *map(str, options)]
    )
    if done.exception:
        raise done.exception
    return done.stdout


def test_a_table_of_errors_is_kept_for_all_versions_of_a_model(folder):
    plain = json.loads(evaluate(folder, "--task", "check", "--sample", 300, "--kinds", "non_word", "--json"))
    told = fit_errors(folder, "teh\tthe\n\nhte\tthe\nsaat->sat, set,\n", "--model", "order3")
    assert told.startswith("3 of 4 misspellings have one edit, 1 two:")
    table = ErrorTableStore(folder).read("order3@7")
    try:
        assert table.edits == {"a>aa": 1, "^th>^ht": 1, "the>teh": 0} | table.edits
        fitted = json.loads(
            evaluate(folder, "--task", "check", "--sample", 300, "--kinds", "non_word", "--json")
        )
    finally:
        (folder / ".errors" / "order3.json").unlink()
    assert fitted["kinds"] != plain["kinds"]


def test_a_table_of_errors_may_be_written_to_a_file(folder):
    for _ in range(2):
        fit_errors(folder, "teh\tthe\n", "--out", folder / "table.json")
    (folder / ".errors").mkdir(exist_ok=True)
    (folder / "table.json").rename(folder / ".errors" / "other.json")
    assert ErrorTableStore(folder).read("other").one_edit == 1
    (folder / ".errors" / "other.json").write_text('{"edits": {"a": 1}}')
    with pytest.raises(FormatError, match="not a table of errors: one_edit"):
        ErrorTableStore(folder).read("other")


@pytest.mark.parametrize(
    ("text", "options", "error", "problem"),
    [
        ("teh\tthe\nthe the\n", ("--model", "order3"), FormatError, "line 2 is 'the the'; it must be"),
        ("teh\tthe\ta\n", ("--model", "order3"), FormatError, "line 1 is"),
        ("teh\tthe\n", ("--model", "none"), ModelNotFoundError, "none"),
        ("teh\tthe\n", ("--model", "order3@1"), InputError, "order3@1"),
        ("teh\tthe\n", (), InputError, "either --model or --out"),
        ("far\tnear\n", ("--out", "x"), InputError, "no misspelling is one edit"),
    ],
)
def test_bad_pairs_of_words_are_told(folder, text, options, error, problem):
    with pytest.raises(error, match=problem):
        fit_errors(folder, text, *options)
