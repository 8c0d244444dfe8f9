"""`run_evaluate_autocomplete` on published models: what it tells, its page, and what it refuses."""

import json

import pytest

from models.errors import InvalidInputError
from service.console.evaluation import show_autocomplete_evaluation
from training.commands import run_evaluate_autocomplete, run_train

NOUNS, PLACES = ("cat", "dog", "owl", "hen"), ("mat", "bed", "sofa", "roof")
TRAIN = [f"the {noun} sat on the {place} and slept there" for noun in NOUNS for place in PLACES] * 6
HELD_OUT = [f"the {noun} sat on the {place} and slept" for noun, place in zip(NOUNS, PLACES, strict=True)] * 3
RECIPES = {
    "words": ["ngram.order=3"],
    "unigram": ["ngram.order=1"],
    "characters": ["ngram.order=5", "tokenizer.kind=char"],
    "backward": ["ngram.order=2", "ngram.direction=backward"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completing")
    for name, lines in {"train.txt": TRAIN, "held-out.txt": HELD_OUT}.items():
        (folder / name).write_text("\n".join(lines))
    for name, settings in RECIPES.items():
        given = {"valid": [folder / "train.txt"], "registry": folder, "assignments": settings}
        run_train("ngram", name=name, corpus=[folder / "train.txt"], **given)
    return folder


def evaluate(folder, model="words", **options):
    fixed = {"corpus": [folder / "held-out.txt"], "registry": folder, "unit": "line", "device": "cpu"}
    return run_evaluate_autocomplete(model, **{**fixed, **options})


def value(result, name):
    return result["figures"][name]["value"]


def test_a_model_of_the_text_spares_most_keys(folder):
    result = evaluate(folder)
    json.dumps(result, allow_nan=False)
    assert (result["model"], result["task"], result["lines"], result["words"]) == (
        "words@1",
        "autocomplete",
        12,
        96,
    )
    assert result["unknown_words"] == 0
    assert result["keys"] == sum(len(line) + 1 for line in HELD_OUT)
    pressed = result["keys_pressed"]
    assert value(result, "keystroke_savings_top_3") == pytest.approx(1 - pressed["top_3"] / result["keys"])
    assert value(result, "keystroke_savings_top_3") > value(result, "keystroke_savings_top_1") > 0.6
    assert value(result, "phrase_match_2") > 0.4
    assert result["keystroke_ms"]["p99"] >= result["keystroke_ms"]["p50"] > 0


def test_characters_are_evaluated_by_the_same_keys(folder):
    words, characters = evaluate(folder), evaluate(folder, "characters")
    assert characters["keys"] == words["keys"]
    assert value(characters, "keystroke_savings_top_3") == pytest.approx(
        value(words, "keystroke_savings_top_3"), abs=0.1
    )


def test_two_models_are_compared_line_by_line(folder):
    result = evaluate(folder, against="unigram")
    other, gap = result["against"], result["against"]["difference"]["keystroke_savings_top_1"]
    json.dumps(result, allow_nan=False)
    assert other["model"] == "unigram@1"
    assert gap["value"] == pytest.approx(
        value(result, "keystroke_savings_top_1") - value(other, "keystroke_savings_top_1")
    )
    assert 0 < gap["low"] <= gap["value"] <= gap["high"]


def test_only_so_many_words_are_typed(folder):
    assert evaluate(folder, sample=17)["lines"] == 3


def test_a_stream_is_the_first_lines_as_one_text(folder):
    result = evaluate(folder, context="stream", sample=20)
    assert (result["context"], result["lines"], result["words"]) == ("stream", 3, 24)


def test_people_get_tables_and_a_page(folder, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = evaluate(folder, against="characters", report=folder / "page.html")
    show_autocomplete_evaluation(result)
    out = capsys.readouterr().out
    for said in (
        "keystroke savings top 3",
        "letters typed (characters@1)",
        "one keystroke with words@1, float32",
    ):
        assert said in out
    page = (folder / "page.html").read_text()
    assert "<h1>words@1: autocomplete</h1>" in page
    assert page.count("<svg") == 3
    assert "<script" not in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "backward"}, "reads right to left"),
        ({"against": "backward"}, "reads right to left"),
        ({"context": "document"}, "it can be 'sentence' or 'stream'"),
        ({"sample": 0}, "--sample is 0, it must be at least 1"),
        ({"report": "nowhere/page.html"}, "there is no folder"),
        ({"corpus": ["marks.txt"]}, "no word to type"),
    ],
)
def test_bad_input_is_named(folder, options, said):
    (folder / "marks.txt").write_text("<unk> <unk>\n")
    if "report" in options:
        options = {"report": folder / options["report"]}
    if "corpus" in options:
        options = {"corpus": [folder / name for name in options["corpus"]]}
    with pytest.raises(InvalidInputError, match=said):
        evaluate(folder, **options)
