"""The command line on remote registries."""

import json

import pytest

from models.checkpoint import folders
from models.checkpoint.registry import open_registry

TEXT = "the cat sat on the mat\na dog ran to the house\nthe cat ran\nthe dog sat\n" * 5


@pytest.fixture
def where(request, tmp_path, monkeypatch):
    """Options for an in-memory registry; its cache is in the test's folder."""
    monkeypatch.setattr(folders, "_chosen_cache_folder", [])
    monkeypatch.setenv("GRAMOPHONE_REGISTRY_CACHE", str(tmp_path / "cache"))
    return ("--registry", f"memory://{abs(hash(request.node.name))}/models")


@pytest.fixture
def trained(typed, where, tmp_path):
    """Options for an in-memory registry that contains `small@1`."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(TEXT)
    options = ("--corpus", corpus, "--set", "ngram.order=2", "--json")
    code, out, _ = typed("train", "ngram", "--name", "small", *options, *where)
    assert (code, json.loads(out)["model"]) == (0, "small@1")
    return where


def test_a_model_is_trained_evaluated_and_asked(typed, trained, tmp_path):
    corpus = tmp_path / "corpus.txt"
    evaluated = json.loads(typed("evaluate", "small", "--corpus", corpus, *trained, "--json")[1])
    scored = typed("score", "small", "the cat sat", *trained)
    assert evaluated["model"] == "small@1"
    assert evaluated["perplexity"] > 1
    assert scored[0] == 0


def test_models_are_listed_shown_verified_promoted_and_deleted(typed, trained):
    [row] = json.loads(typed("models", "list", *trained, "--json")[1])
    assert (row["model"], row["family"], row["aliases"]) == ("small@1", "ngram", [])
    assert "Held-out figures" in typed("models", "show", "small", *trained)[1]
    shown = json.loads(typed("models", "show", "small", *trained, "--json")[1])
    assert shown["path"] == f"{trained[1]}/small/versions/1"
    assert shown["metrics"]["valid"]
    assert "small@1: ok" in typed("models", "verify", *trained)[1]
    assert typed("models", "promote", "small@1", *trained)[0] == 0
    code, _, err = typed("models", "delete", "small@1", *trained)
    assert (code, "is champion" in err) == (2, True)
    open_registry(trained[1]).delete_alias("small", "champion")
    assert typed("models", "delete", "small@1", *trained)[0] == 0
    assert json.loads(typed("models", "list", *trained, "--json")[1]) == []


def test_the_default_is_told_with_its_reason_and_named_anew(typed, trained, tmp_path):
    def default(*name):
        return typed("models", "default", *name, *trained)

    assert default()[1] == "small is the default: it is the only model\n"
    options = ("--corpus", tmp_path / "corpus.txt", "--set", "ngram.order=2")
    typed("train", "ngram", "--name", "other", *options, *trained)
    assert default()[1] == "small is the default: it is set as the registry's default\n"
    assert (
        default("other")[1] == default()[1] == "other is the default: it is set as the registry's default\n"
    )
    code, _, err = default("nobody")
    assert (code, "no model 'nobody'" in err) == (2, True)


def test_leftovers_are_swept_when_they_are_old(typed, trained):
    open_registry(trained[1]).delete("small", 1)
    assert typed("models", "sweep", *trained)[1] == "0 leftovers removed\n"
    _, out, _ = typed("models", "sweep", "--older-than-days", "0", *trained)
    assert int(out.split()[0]) > 3


def test_the_leftovers_of_a_folder_are_swept_too(typed, tmp_path):
    registry = open_registry(tmp_path / "r", create=True)
    (registry.root / "m" / "versions" / ".tmp-dead").mkdir(parents=True)
    assert typed("models", "sweep", "--registry", registry.root)[1] == "1 leftovers removed\n"
    assert typed("models", "sweep", "--registry", registry.root)[1] == "0 leftovers removed\n"


def test_arpa_files_are_imported_and_exported(typed, trained, tmp_path):
    assert typed("models", "export-arpa", "small", tmp_path / "out.arpa", *trained)[0] == 0
    code, out, _ = typed("models", "import-arpa", tmp_path / "out.arpa", "--name", "copy", *trained, "--json")
    assert (code, json.loads(out)["model"]) == (0, "copy@1")


def test_a_mixture_of_published_models_is_trained(typed, trained, tmp_path):
    corpus = tmp_path / "corpus.txt"
    settings = [
        part
        for setting in ('mixture.models=["small", "small"]', "mixture.recipes=[]")
        for part in ("--set", setting)
    ]
    code, out, err = typed(
        "train", "mixture", "--name", "both", "--valid", corpus, *settings, *trained, "--json"
    )
    assert (code, json.loads(out)["model"]) == (0, "both@1"), err


def test_fetched_files_are_in_the_chosen_cache(typed, trained, tmp_path):
    assert open_registry(trained[1]).work_folder.is_relative_to(tmp_path / "cache")
    typed("--registry-cache", tmp_path / "other", "models", "verify", *trained)
    assert list((tmp_path / "other").glob("registries/*/small/versions/1/manifest.json"))


def test_quickstart_leaves_a_registry_with_models_alone(typed, trained):
    code, _, err = typed("quickstart", "--if-empty", *trained)
    assert (code, "holds models already" in err) == (0, True)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://me:secret@bucket/models", "in the environment"),
        ("nosuch://bucket/models", "Protocol not known"),
        ("file://relative", "file:///absolute/path"),
    ],
)
def test_an_address_that_cannot_be_is_one_line_and_exit_code_2(typed, address, said):
    code, out, err = typed("models", "list", "--registry", address)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "secret" not in err


def test_a_store_that_can_only_be_read_is_refused_before_training(typed, tmp_path):
    options = ("--corpus", tmp_path / "nosuch.txt", "--registry", "http://127.0.0.1:9/models")
    code, _, err = typed("train", "ngram", "--name", "m", *options)
    assert (code, "is read-only" in err) == (2, True)
