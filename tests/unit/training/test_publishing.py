"""What a published model says about itself."""

import json
import subprocess

import pytest

from models.checkpoint.registry import LocalRegistry
from models.errors import InvalidInputError
from training import publish
from training.commands import run_train

SMALL = [
    "tokenizer.kind=word",
    "ngram.order=2",
    "neural.hidden_size=8",
    "neural.embedding_size=8",
    "train.max_steps=2",
    "train.max_minutes=5",
    "train.batch_size=2",
    "train.bptt_length=4",
]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """The directory of a small mixture."""
    folder = tmp_path_factory.mktemp("publishing")
    corpus = folder / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    run_train("mixture", name="m", registry=folder / "registry", corpus=[corpus], assignments=SMALL)
    return folder / "registry" / "m" / "versions" / "1"


def read(path):
    return json.loads(path.read_text())


def test_a_part_is_recorded_with_the_tokenizer_it_was_trained_with(mixture):
    whole, *parts = (
        read(folder / "provenance.json")["recipe"]["tokenizer"]
        for folder in (mixture, mixture / "parts" / "0", mixture / "parts" / "1")
    )
    assert whole["kind"] == "word"
    assert parts == [whole, whole]


def test_the_learning_curve_is_kept_as_numbers(mixture):
    history = read(mixture / "parts" / "1" / "metrics.json")["history"]
    assert [record["step"] for record in history] == [1, 2]
    assert history[-1]["valid_perplexity"] > 1


@pytest.mark.parametrize(
    ("part", "said"),
    [("", "A mixture language model"), ("parts/0", "An n-gram"), ("parts/1", "An LSTM")],
)
def test_the_card_names_the_family_and_shows_its_pictures(mixture, part, said):
    card = (mixture / part / "MODEL_CARD.md").read_text()
    assert said in card
    pictures = [line.split("](")[1].rstrip(")") for line in card.splitlines() if line.startswith("![")]
    assert pictures
    assert all((mixture / part / picture).is_file() for picture in pictures)


def test_an_installed_copy_does_not_claim_the_commit_of_the_repository_around_it(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    module = tmp_path / "publishing.py"
    module.touch()
    monkeypatch.setattr(publish, "__file__", str(module))
    assert publish._git_commit() is None


def test_a_part_may_be_a_recipe_of_ones_own_and_is_called_by_its_file(tmp_path):
    mine = tmp_path / "recipes" / "mine.toml"
    mine.parent.mkdir()
    mine.write_text('family = "neural"\n[neural]\ncell = "gru"\n')
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\na dog lay on a rug\n" * 20)
    parts = f'mixture.recipes=["ngram", "{mine}"]'
    settings = [*SMALL, parts, "mixture.publish_parts=true"]
    result = run_train("mixture", name="m", registry=tmp_path / "r", corpus=[corpus], assignments=settings)
    assert [part["name"] for part in result["parts"]] == ["ngram@1", "mine@1"]
    assert (tmp_path / "r" / "mine" / "versions" / "1" / "learning-curve-mine.png").is_file()
    assert LocalRegistry(tmp_path / "r").default() == "m"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ('["ngram", "ngram"]', "two parts 'ngram'"),
        ('["ngram", "/nosuch/my recipe.toml"]', "mixture.recipes is 'my recipe'"),
        ('["ngram", "/nosuch/mine.toml"]', "/nosuch/mine.toml: No such file"),
    ],
)
def test_parts_that_cannot_be_trained_or_published_are_refused_before_any_text_is_read(tmp_path, parts, said):
    settings = [f"mixture.recipes={parts}", "mixture.publish_parts=true"]
    absent = tmp_path / "absent.txt"
    with pytest.raises(InvalidInputError, match=said):
        run_train("mixture", name="m", registry=tmp_path / "r", corpus=[absent], assignments=settings)
