"""The command line in this process: help, human and JSON output, errors and exit codes."""

import io
import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer

from models.checkpoint.registry import LocalRegistry
from service.cli.main import app
from service.settings import Settings
from training.recipe import recipe_names

pytestmark = pytest.mark.usefixtures("logs_as_before")

TEXT = "\n".join(
    f"the {noun} sat on the {place} today" for noun in ("cat", "dog", "owl") for place in ("mat", "bed") * 9
)
SMALL = ["--set", "ngram.order=3"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A registry with one model of two versions."""
    from training.commands import run_train

    folder = tmp_path_factory.mktemp("cli")
    corpus = folder / "corpus.txt"
    corpus.write_text(TEXT)
    for order in (2, 3):
        run_train(
            "ngram",
            name="small",
            registry=folder / "registry",
            corpus=[corpus],
            assignments=[f"ngram.order={order}"],
        )
    return folder / "registry"


@pytest.mark.parametrize(
    "command", ["quickstart", "train", "evaluate", "next", "score", "generate", "rerank", "serve", "models"]
)
def test_every_command_explains_itself(typed, command):
    code, out, _ = typed(command, "--help")
    assert code == 0
    assert "--help" in out


def test_the_version_is_that_of_the_package(typed):
    assert typed("--version")[:2] == (0, f"gramophone-lm {version('gramophone-lm')}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_completes_commands_in_a_shell_is_printed(typed, monkeypatch, shell):
    monkeypatch.setattr("shellingham.detect_shell", lambda: (shell, f"/bin/{shell}"))
    code, out, _ = typed("--show-completion")
    assert code == 0
    assert f"complete_{shell}" in out
    assert "_GRAMOPHONE_COMPLETE" in out


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("gramophone precom", ["precompile"]),
        ("gramophone models exp", ["export-arpa"]),
        ("gramophone xyz", []),
    ],
)
def test_commands_are_completed(typed, monkeypatch, line, completions):
    variables = {
        "_GRAMOPHONE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, out, _ = typed()
    assert (code, out.split()) == (0, completions)


def test_help_imports_no_library_of_models_or_of_the_service():
    """Help takes a fifth of a second; the limit is 10 % above today's number of modules."""
    code = (
        "import sys; from service.cli.main import main; sys.argv = ['gramophone', '--help']\n"
        "try: main()\nexcept SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    assert modules.isdisjoint(
        {"torch", "numpy", "numba", "pydantic", "fastapi", "httpx", "structlog", "uvicorn"}
    )
    assert len(modules) < 445


def test_the_help_of_train_names_every_recipe(typed):
    _, out, _ = typed("train", "--help")
    words = {word.strip(",.") for word in out.split()}
    assert set(recipe_names()) <= words
    assert "cpu-30min" in recipe_names()


def test_training_publishes_and_reports_held_out_figures(typed, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)
    code, out, _ = typed(
        "train", "ngram", "--name", "m", "--corpus", corpus, "--registry", tmp_path / "r", *SMALL, "--json"
    )
    result = json.loads(out)
    assert code == 0
    assert result["model"] == "m@1"
    assert result["valid"]["word_perplexity"] > 1
    assert LocalRegistry(tmp_path / "r").versions("m") == [1]


def test_next_ranks_tokens(typed, registry):
    _, out, _ = typed("next", "small", "the cat sat on", "--registry", registry, "--json")
    assert json.loads(out)["results"][0]["candidates"][0]["text"] == "the"
    code, out, _ = typed("next", "small@1", "the cat sat on", "--registry", registry)
    assert code == 0
    assert "small@1: entropy" in out


def test_score_reads_lines_of_standard_input(typed, registry):
    import io

    _, out, _ = typed(
        "score", "small", "--registry", registry, "--json", stdin=io.StringIO("the cat\n\nthe dog sat\n")
    )
    reply = json.loads(out)
    assert [r["num_tokens"] for r in reply["results"]] == [3, 4]
    assert reply["corpus"]["logprob"] == pytest.approx(sum(r["logprob"] for r in reply["results"]))


def test_generate_streams_what_it_reports(typed, registry):
    options = ["generate", "small", "the cat", "--seed", "5", "--registry", registry]
    _, streamed, _ = typed(*options)
    _, out, _ = typed(*options, "--json")
    assert streamed == "the cat" + json.loads(out)["choices"][0]["text"] + "\n"


def test_generate_prints_each_of_several_continuations(typed, registry):
    options = ["generate", "small", "the", "--registry", registry, "-n", "3"]
    for more in (["--seed", "5", "--bad-word", "cat"], ["--strategy", "beam", "--num-beams", "5"]):
        _, lines, _ = typed(*options, *more)
        _, out, _ = typed(*options, *more, "--json")
        assert lines.splitlines() == ["the" + choice["text"] for choice in json.loads(out)["choices"]]


def test_rerank_orders_each_line(typed, registry, tmp_path):
    lists = tmp_path / "lists.jsonl"
    texts = [{"text": "mat the on", "features": {"am": -1}}, {"text": "the cat sat", "features": {"am": -2}}]
    lists.write_text(json.dumps({"id": "a", "candidates": texts}) + "\n")
    _, out, _ = typed("rerank", "small", lists, "--registry", registry)
    assert [c["index"] for c in json.loads(out)["ranking"]] == [1, 0]
    _, out, _ = typed("rerank", "small", lists, "--weights", "lm=0,am=1", "--registry", registry)
    assert [c["index"] for c in json.loads(out)["ranking"]] == [0, 1]


def test_evaluate_reports_every_figure(typed, registry, tmp_path):
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("the cat sat\nthe emu sat\n")
    _, out, _ = typed("evaluate", "small", "--corpus", held_out, "--registry", registry, "--json")
    figures = json.loads(out)
    names = {
        "tokens",
        "oov",
        "logprob",
        "perplexity",
        "perplexity_without_oov",
        "word_perplexity",
        "bits_per_byte",
    }
    assert names <= set(figures)
    assert (figures["tokens"], figures["oov"], figures["context"]) == (8, 1, "sentence")


def test_models_are_listed_shown_verified_promoted_and_deleted(typed, registry):
    where = ("--registry", registry)
    _, out, _ = typed("models", "list", *where, "--json")
    assert [row["model"] for row in json.loads(out)] == ["small@1", "small@2"]
    assert "small@2: ok" in typed("models", "verify", *where)[1]
    assert "Held-out figures" in typed("models", "show", "small", *where)[1]
    assert json.loads(typed("models", "show", "small", *where, "--json")[1])["manifest"]["family"] == "ngram"
    assert typed("models", "promote", "small@1", *where)[0] == 0
    assert LocalRegistry(registry).resolve("small").number == 1
    code, _, err = typed("models", "delete", "small@1", *where)
    assert (code, "is champion" in err) == (2, True)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["next", "nosuch"], "there is no model 'nosuch'"),
        (["next", "small@9"], "no version 9"),
        (["next", "small", "--top-k", "0"], "top_k is 0"),
        (["next", "small", "--top-k", "999999"], "999999"),
        (["generate", "small", "--temperature", "-1"], "temperature is -1"),
        (["generate", "small", "the", "--max-tokens", "0"], "max_tokens is 0"),
        (["score", "small", ""], "texts[0] is empty"),
        (["score", "small"], "there is no text"),
        (["rerank", "small", "-", "--weights", "lm"], "NAME=VALUE"),
        (["evaluate", "small", "--corpus", "/nosuch/file"], "/nosuch/file: there is no such file"),
        (["train", "nosuch", "--name", "x"], "unknown recipe 'nosuch'"),
        (["train", "ngram", "--name", "a/b"], "name is 'a/b'"),
        (["train", "ngram", "--name", "x", "--device", "tpu"], "device is 'tpu'"),
        (["train", "ngram", "--name", "x", "--set", "ngram.order=-3"], "ngram.order"),
        (["train", "ngram", "--name", "x", "--corpus", "/nosuch/file"], "/nosuch/file"),
        (["models", "delete", "small"], "NAME@NUMBER"),
    ],
)
def test_bad_input_is_one_line_on_standard_error_and_exit_code_2(typed, registry, argv, said):
    code, out, err = typed(*argv, "--registry", registry, stdin=io.StringIO())
    assert code == 2
    assert out == ""
    assert said in err
    assert err.rstrip("\n").count("\n") == 0
    assert "Traceback" not in err


def test_a_registry_that_is_not_there_is_named(typed, tmp_path):
    for argv in (["models", "list"], ["next", "m"], ["serve"]):
        code, _, err = typed(*argv, "--registry", tmp_path / "absent")
        assert code == 2
        assert "there is no registry at" in err


def test_a_damaged_version_is_reported_and_the_others_stay_usable(typed, registry, tmp_path):
    import shutil

    copy = tmp_path / "registry"
    shutil.copytree(registry, copy)
    weights = copy / "small" / "versions" / "2" / "ngram.bin"
    weights.chmod(0o644)
    weights.write_bytes(weights.read_bytes()[:-1])
    code, out, _ = typed("models", "verify", "--registry", copy)
    assert code == 1
    assert "small@1: ok" in out
    assert "ngram.bin has" in out
    code, _, err = typed("next", "small@2", "--registry", copy)
    assert (code, "ngram.bin" in err) == (1, True)
    assert typed("next", "small@1", "--registry", copy)[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("next", "small", "BAD"),
        ("next", "small", "BAD", "--unit", "word"),
        ("score", "small", "BAD"),
        ("score", "small", "ok", "--context", "BAD"),
        ("generate", "small", "BAD"),
        ("generate", "small", "BAD", "--json"),
        ("generate", "small", "the", "--stop", "BAD"),
        ("generate", "small", "the", "--bad-word", "BAD"),
        ("generate", "small", "BAD", "--lines", "2", "--out", "OUT"),
        ("check", "small", "BAD is"),
        ("complete", "small", "BAD"),
    ],
)
def test_arguments_with_other_bytes_than_utf8_are_refused(typed, registry, tmp_path, arguments):
    given = [one.replace("BAD", "caf\udce9").replace("OUT", str(tmp_path / "lines.txt")) for one in arguments]
    code, out, err = typed(*given, "--registry", registry)
    assert (code, out) == (2, "")
    assert err == "gramophone: the text is not UTF-8: convert it first, for example with iconv\n"
    assert not [*tmp_path.iterdir()]


def test_bytes_that_are_not_utf8_are_refused_by_name(typed, registry, tmp_path):
    stdin = io.TextIOWrapper(io.BytesIO(b"the cat\n\xff\n"), encoding="utf-8")
    code, _, err = typed("score", "small", "--registry", registry, stdin=stdin)
    assert (code, err) == (2, "gramophone: the text is not UTF-8: convert it first, for example with iconv\n")
    lists = tmp_path / "lists"
    lists.write_bytes(b'{"candidates": [{"text": "\xff"}]}\n')
    code, _, err = typed("rerank", "small", lists, "--registry", registry)
    assert code == 2
    assert f"{lists}:1: the text is not UTF-8" in err


def test_a_list_nested_without_end_is_told(typed, registry, tmp_path):
    lists = tmp_path / "lists"
    lists.write_text("[" * 100_000)
    code, _, err = typed("rerank", "small", lists, "--format", "jsonl", "--registry", registry)
    assert (code, err.splitlines()[0]) == (2, f"gramophone: {lists}:1: JSON is nested too deeply")


@pytest.mark.parametrize("command", [["score", "small@", "a b"], ["models", "show", "small@"]])
def test_an_address_without_what_it_announces_is_refused(typed, registry, command):
    code, _, err = typed(*command, "--registry", registry)
    assert code == 2
    assert err.startswith("gramophone: the model is 'small@'; a version number or an alias must follow the @")


def test_a_number_without_end_deletes_nothing(typed, registry):
    code, _, err = typed("models", "delete", "small@" + "9" * 5000, "--registry", registry)
    assert code == 2
    assert "has no version" in err


def test_damaged_aliases_are_listed_as_such(typed, registry, tmp_path):
    other = tmp_path / "registry"
    shutil.copytree(registry, other)
    (other / "small" / "aliases.json").write_text("{")
    code, out, _ = typed("models", "list", "--registry", other, "--json")
    rows = json.loads(out)
    assert code == 0
    assert "is damaged" in rows[0]["problem"]
    assert [row["model"] for row in rows[1:]] == ["small@1", "small@2"]


@pytest.mark.parametrize(
    ("text", "said"), [("[]", "must be an object"), ("[" * 100_000, "recursion"), ('{"test": 1}', None)]
)
def test_damaged_figures_are_listed_as_such(typed, registry, tmp_path, text, said):
    """Regression: damaged metrics ended the list with a traceback."""
    other = tmp_path / "registry"
    shutil.copytree(registry, other)
    metrics = other / "small" / "versions" / "1" / "metrics.json"
    metrics.chmod(0o644)
    metrics.write_text(text)
    code, out, _ = typed("models", "list", "--registry", other, "--json")
    first, second = json.loads(out)
    assert (code, second.get("problem")) == (0, None)
    assert said is None or said in first["problem"]


def test_nothing_is_printed_before_a_request_is_refused(typed, registry, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the cat sat\nthe dog sat\n" * 9)
    where = tmp_path / "backward"
    options = ["--corpus", text, "--registry", where, "--set", "ngram.direction=backward"]
    assert typed("train", "ngram", "--name", "b", *options)[0] == 0
    code, out, err = typed("generate", "b", "the cat", "--registry", where)
    assert (code, out) == (2, "")
    assert "right to left" in err
    absent = tmp_path / "absent.txt"
    refused = ("evaluate", "b", "--context", "stream", "--corpus", absent, "--registry", where)
    assert "supports only 'sentence'" in typed(*refused)[2]


def test_serve_lists_every_setting(typed):
    code, out, _ = typed("serve", "--settings")
    assert code == 0
    assert all(f"GRAMOPHONE_{name.upper()}" in out for name in Settings.model_fields)


def commands_below(command, path=()):
    yield path
    for name, below in getattr(command, "commands", {}).items():
        yield from commands_below(below, (*path, name))


@pytest.mark.parametrize("path", list(commands_below(typer.main.get_command(app))), ids=" ".join)
def test_help_tells_what_to_give_and_not_the_types_that_hold_it(typed, monkeypatch, path):
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 300)  # no wrapped or truncated lines
    code, out, _ = typed(*path, "--help")
    assert code == 0
    bracketed = {
        one for one in re.findall(r"<[^>]*>|list\[.*|\[\[.*|{[^}]*…}|,  +and", out) if "|" not in one
    }
    assert bracketed <= {"<s>", "</s>", "<eps>"}, "neither names of types nor what Markdown takes for tags"
