"""`gramophone train --engine duckdb`: the same model and output as in-memory training."""

import json
import random
import resource
import shutil
from pathlib import Path

import pytest

from models.checkpoint.load import load_checkpoint
from models.errors import RegistryError
from training import commands, purpose
from training.scale import training as estimation

pytestmark = pytest.mark.usefixtures("no_pictures")

LINES = [
    f"the {a} {b} the {c}\n" for a in ("cat", "dog", "cow") for b in ("saw", "ate") for c in ("sun", "hay")
]
UNSEEN = "a sun that nobody saw before was seen by the cow\n"


@pytest.fixture
def train(typed, tmp_path, monkeypatch):
    """Run the command on a small text: exit code, result or None, standard error."""
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("".join(LINES * 3))
    Path("test.txt").write_text(LINES[0] + UNSEEN)

    def run(*argv, engine="duckdb", recipe="ngram"):
        files = ["--corpus", "corpus.txt", "--test", "test.txt"]
        place = ["--registry", "registry", "--name", "m", "--engine", engine]
        code, told, errors = typed("train", recipe, *files, *place, *argv, "--json")
        return code, json.loads(told) if told else None, errors

    return run


@pytest.mark.parametrize(
    "more", [(), ("ngram.prune=[0, 1]", "ngram.direction=backward"), ("tokenizer.kind=char",)]
)
def test_the_model_and_all_that_is_told_of_it_are_those_of_the_engine_memory(train, more):
    settings = [word for key in ("ngram.order=3", *more) for word in ("--set", key)]
    _, expected, _ = train(*settings, engine="memory")
    _, found, errors = train(*settings)
    assert "sorting 3-grams: done in" in errors
    first, second = Path(expected["path"]), Path(found["path"])
    assert load_checkpoint(second).model.order == 3
    for name in ("ngram.bin", "token_counts.npy", "metrics.json", "tokenizer.json", "golden.json"):
        assert (second / name).read_bytes() == (first / name).read_bytes(), name
    assert not Path("registry/.runs").exists() or not any(Path("registry/.runs").iterdir())


def failing(*_):
    raise RegistryError("cannot write to registry: No space left on device")


def test_stages_before_a_failure_are_reused(train, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(commands, "publish", failing)
        code, _, errors = train("--set", "ngram.order=2")
    assert (code, errors.splitlines()[-1]) == (
        2,
        "gramophone: cannot write to registry: No space left on device",
    )
    assert Path("registry/.runs/m/estimation/stage-automaton").is_dir()
    monkeypatch.setattr(estimation, "start_engine", lambda *_: pytest.fail("the engine was started again"))
    code, result, _ = train("--set", "ngram.order=2")
    assert code == 0
    assert result["notes"][0] == "15 stages of the estimation were already complete"


@pytest.mark.parametrize("other", ["ngram.prune=[0, 1]", "ngram.smoothing=absolute", "tokenizer.min_count=2"])
def test_stages_of_another_recipe_are_removed_with_a_note(train, monkeypatch, other):
    with monkeypatch.context() as broken:
        broken.setattr(commands, "publish", failing)
        train("--set", "ngram.order=2")
    code, result, _ = train("--set", "ngram.order=2", "--set", other)
    assert code == 0
    assert result["notes"][0] == (
        "an unfinished estimation of another text or recipe in registry/.runs/m/estimation was removed"
    )
    expected = train("--set", "ngram.order=2", "--set", other, engine="memory")[1]
    assert result["test"] == expected["test"]


def test_a_table_that_is_gone_is_told(train, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(estimation, "assemble", failing)
        train("--set", "ngram.order=2")
    for kept in ("sorted_2", "probs_2"):
        shutil.rmtree(f"registry/.runs/m/estimation/stage-{kept}")
    code, _, errors = train("--set", "ngram.order=2")
    assert code == 2
    assert "stage-shares_2: No files found" in errors.splitlines()[-1]
    assert "remove it and try again" in errors.splitlines()[-1]


def test_a_work_folder_of_the_users_is_left_empty(train):
    Path("work").mkdir()
    assert train("--set", "ngram.order=2", "--work-dir", "work")[0] == 0
    assert list(Path("work").iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "recipe", "said"),
    [
        (("--memory-limit", "50MB"), "ngram", "--memory-limit is 50 MB; text, vocabulary and program take"),
        (("--memory-limit", "lots"), "ngram", "--memory-limit is 'lots'; it must be a size"),
        (("--set", "ngram.smoothing=mle"), "ngram", "ngram.smoothing absolute, kneser-ney or"),
        ((), "lstm", "--engine duckdb estimates with family ngram only, given neural"),
        (("--work-dir", "."), "ngram", ". is not empty and contains no stages of an estimation"),
    ],
)
def test_impossible_training_ends_with_one_line(train, argv, recipe, said):
    code, result, errors = train(*argv, recipe=recipe)
    assert (code, result) == (2, None)
    assert len(errors.splitlines()) == 1
    assert said in errors


@pytest.fixture
def room():
    """Limit the size of files, so writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit_bytes", [1_000, 30_000, 60_000])
def test_a_disk_without_room_is_told_in_one_line_and_nothing_is_published(train, room, limit_bytes):
    words = random.Random(1)
    lines = (" ".join(f"w{int(words.paretovariate(0.7)) % 500}" for _ in range(9)) for _ in range(1000))
    Path("corpus.txt").write_text("\n".join(lines))
    room(limit_bytes)
    code, result, errors = train("--set", "ngram.order=3")
    assert (code, result) == (2, None)
    assert errors.splitlines()[-1].startswith("gramophone: cannot write to registry/")
    assert not Path("registry/m/versions/1").exists()


def test_a_recipe_is_chosen_for_a_use_with_reasons_and_keys_can_be_set(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("".join(LINES * 10))
    more = ["--corpus", "text.txt", "--name", "m", "--set", "ngram.order=2", "--json"]
    code, told, errors = typed("train", "--for", "rerank", *more)
    assert (code, json.loads(told)["model"]) == (0, "m@1")
    assert errors.splitlines()[1].startswith("tokenizer.kind=word: the text has neither capitals nor")
    recipe = json.loads(Path("registry/m/versions/1/provenance.json").read_text())["recipe"]
    assert (recipe["family"], recipe["tokenizer"]["kind"], recipe["ngram"]["order"]) == ("ngram", "word", 2)
    for argv, said in (
        (("train", "ngram", "--for", "rerank", *more), "RECIPE is ngram, and --for chooses one"),
        (("train", *more), "no recipe: give a RECIPE, or a use of the model with --for"),
    ):
        code, told, errors = typed(*argv)
        assert (code, told) == (2, "")
        assert said in errors


@pytest.mark.parametrize(
    ("typists", "chosen"),
    [((), "ngram"), (("--typists", "3"), "ngram"), (("--typists", "21"), "ngram of words")],
)
def test_the_cost_of_a_key_is_printed_and_kept(typed, tmp_path, monkeypatch, typists, chosen):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(purpose, "available_cores", lambda: 1.0)
    cost = purpose.typing_cost
    monkeypatch.setattr(
        purpose,
        "typing_cost",
        lambda model, tokenizer, *more, **options: (
            cost(model, tokenizer, *more, **options)
            | {"core_ms_per_key": 0.2 if tokenizer.kind == "word" else 4.7}
        ),
    )
    Path("text.txt").write_text("".join(LINES * 10))
    code, told, _ = typed("train", "--for", "autocomplete", "--corpus", "text.txt", "--name", "m", *typists)
    assert code == 0
    rows = [line.split() for line in told.splitlines()]
    marked = [row for row in rows if "✓" in row]
    assert [row[: row.index("✓")] for row in marked] == [chosen.split()]
    assert [row[-2] for row in rows if row[:1] == ["ngram"] and "words" not in row] == ["20"]
    assert "a typist presses a key every 200 ms" in " ".join(told.split())
    folder = Path("registry/m/versions/1")
    typing = json.loads((folder / "metrics.json").read_text())["typing"]
    assert (typing["chosen"], len(typing["candidates"])) == (chosen, 2 if chosen != "ngram" else 1)
    recipe = json.loads((folder / "provenance.json").read_text())["recipe"]
    assert recipe["tokenizer"]["kind"] == ("word" if chosen == "ngram of words" else "unigram")
    card = (folder / "MODEL_CARD.md").read_text()
    assert "| ngram | 4.70 | 20 |" in card
    assert ("it carries 21 typists" in card) == (chosen != "ngram")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--for", "autocomplete", "--typists", "0"], "typists is 0; it must be at least 1"),
        (["--for", "autocomplete", "--typists", "-1"], "typists is -1; it must be at least 1"),
        (["--for", "rerank", "--typists", "5"], "--typists requires --for autocomplete, given rerank"),
        (["ngram", "--typists", "5"], "--typists requires --for autocomplete"),
    ],
)
def test_typists_are_refused_by_name(typed, options, problem):
    code, told, errors = typed("train", *options, "--name", "m")
    assert (code, told, errors) == (2, "", f"gramophone: {problem}\n")


def test_out_of_core_an_ngram_model_is_chosen(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(purpose, "_MIN_NETWORK_WORDS", 1)
    Path("text.txt").write_text("".join(LINES * 10))
    more = ["--corpus", "text.txt", "--name", "m", "--set", "ngram.order=2", "--json"]
    code, told, errors = typed("train", "--for", "score", "--engine", "duckdb", *more)
    assert (code, json.loads(told)["model"]) == (0, "m@1")
    assert "recipe ngram: --engine duckdb trains no networks" in errors


def test_select_prints_the_compared_shares(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("small.txt").write_text("".join(LINES * 10))
    Path("large.txt").write_text("".join(LINES * 30) + UNSEEN * 300)
    code, told, _ = typed("select", "large.txt", "--in-domain", "small.txt", "--output", "out.txt")
    assert code == 0
    table = [line.split() for line in told.splitlines()]
    assert table[0] == ["share", "lines", "tokens", "held-out", "perplexity"]
    assert [row[:2] for row in table[-3:-1]] == [["50.00%", "330"], ["100.00%", "660"]]
    assert told.splitlines()[-1].startswith("wrote ")
    code, told, errors = typed("select", "large.txt", "--in-domain", "small.txt", "--output", "out.txt")
    assert (code, told) == (2, "")
    assert "--output out.txt exists; name a new file" in errors
    options = ("--in-domain", "small.txt", "--output", "next.txt", "--share", "0.1", "--json")
    _, told, _ = typed("select", "large.txt", *options)
    assert json.loads(told)["trials"][0]["lines"] == 66
