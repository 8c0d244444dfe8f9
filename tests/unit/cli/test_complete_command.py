"""`gramophone complete`: options, output for people and programs, files of words."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("logs_as_before")
TEXT = "\n".join(
    f"the {noun} sat on the {place}" for noun in ("cat", "cow", "owl") for place in ("mat", "bed") * 9
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """A small n-gram model of words."""
    from training.commands import run_train

    folder = tmp_path_factory.mktemp("complete")
    corpus = folder / "corpus.txt"
    corpus.write_text(TEXT)
    run_train(
        "ngram",
        name="small",
        registry=folder / "registry",
        corpus=[corpus],
        assignments=["ngram.order=2", "tokenizer.kind=word"],
    )
    return folder / "registry"


@pytest.fixture
def complete(typed, registry):
    """Run `gramophone complete small …`: exit code, standard output, standard error."""
    return lambda *argv: typed("complete", "small", *argv, "--registry", registry)


def completions(complete, *argv):
    code, out, _ = complete(*argv, "--json")
    assert code == 0
    return {one["text"]: one for one in json.loads(out)["completions"]}


def test_people_see_words_and_probabilities(complete):
    code, out, _ = complete("the c", "--max-words", 2)
    assert code == 0
    assert "cat" in out
    assert "cow sat" in out
    assert "0." in out
    assert "remarks" not in out


def test_programs_get_what_the_service_replies(complete):
    found = completions(complete, "the c")
    assert set(found) == {"cat", "cow"}
    assert sum(one["probability"] for one in found.values()) == pytest.approx(1)
    assert found["cat"]["suffix"] == "at"


def test_options_are_those_of_the_service(complete):
    assert set(completions(complete, "the C", "--ignore-case")) == {"Cat", "Cow"}
    assert completions(complete, "the maat", "--fuzzy", 1)["mat"]["edits"] == 1
    assert len(completions(complete, "the ", "--limit", 2, "--rank", "savings")) == 2
    assert completions(complete, "the c", "--min-probability", 0.9) == {}


def test_words_come_from_files(complete, tmp_path):
    dictionary, blocklist = tmp_path / "words.txt", tmp_path / "not.txt"
    dictionary.write_text("canary\t5\ncactus\n\n")
    blocklist.write_text("cow\n")
    found = completions(complete, "the c", "--dictionary", dictionary, "--blocklist", blocklist)
    assert set(found) == {"cat", "canary", "cactus"}
    assert found["canary"]["probability"] == pytest.approx(5 * found["cactus"]["probability"])
    assert complete("the c", "--dictionary", dictionary)[1].count("dictionary") == 2


@pytest.mark.parametrize(
    ("content", "said"), [("canary\tmany\n", "entry 1: the weight is 'many'"), (None, "cannot be read")]
)
def test_files_that_are_none_are_refused(complete, tmp_path, content, said):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_text(content)
    code, _, err = complete("the c", "--dictionary", path)
    assert (code, said in err, str(path) in err) == (2, True, True)


def test_values_out_of_range_are_refused(complete):
    code, _, err = complete("the c", "--fuzzy", 3)
    assert (code, "fuzzy is 3" in err) == (2, True)


def test_that_there_is_no_completion_is_told(complete):
    assert "no completion" in complete("the xyzzy")[1]


def test_the_start_of_a_sentence_is_completed(complete):
    assert set(completions(complete, "")) >= {"the"}
    assert "the start of a sentence" in complete("")[1]
