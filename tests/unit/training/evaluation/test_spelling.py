"""`run_check_task`: artificial errors in text, and detection metrics."""

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rapidfuzz.distance import OSA

from models.checking.checker import Checker
from models.checking.error_model import CalibrationStore
from models.checking.sentences import sentence_splitter_for
from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import open_registry
from models.errors import FormatError, InputError, UnsupportedError
from tests.support.text_models import SENTENCES, trigram
from training.commands import run_train
from training.evaluation.spelling import (
    KINDS,
    CorruptedLine,
    Detections,
    ErrorInjector,
    InjectedError,
    LineDetections,
    _calibration,
    _detect_in_halves,
    _figures,
    _match_errors,
    _misspelling_rate,
    _word_counts,
    best_threshold,
    detect_errors,
    f_score,
    figures_at_threshold,
    read_misspellings,
    run_check_task,
)
from training.progress import Progress

COUNTS = {word: 5 for line in SENTENCES for word in line.split()}


def damager(kind, rate=0.5, seed=0):
    return ErrorInjector(COUNTS, kind=kind, rate=rate, random=np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_stands_where_it_says_and_the_rest_is_as_it_was(kind):
    cutter, put = sentence_splitter_for(trigram()[1]), damager(kind)
    number = 0
    for line in SENTENCES:
        damaged = put.inject_errors(cutter.sentence(line))
        text, shift = damaged.text, 0
        for error in damaged.errors:
            begin = error.start + shift
            wrong = text[begin : error.end + shift]
            text = text[:begin] + error.meant + text[error.end + shift :]
            shift += len(error.meant) - len(wrong)
            assert wrong != error.meant
            words = wrong.split()
            assert all(w in COUNTS for w in words) == (kind == "real_word") or kind == "space"
        assert text == line
        number += len(damaged.errors)
    assert number > 10


def test_figures_are_those_of_one_half_at_the_threshold_chosen_on_the_other():
    def half(errors, alarms):
        found = Detections(np.array(errors), np.ones(len(errors), bool), np.array(alarms))
        return LineDetections(found, found, found)

    strict, lenient = half([0.9, 0.9], [0.8, 0.8]), half([0.9, 0.2], [0.1])
    figures = _figures(strict, lenient)
    for method in ("tuned", "left_only", "surprisal"):
        assert (figures[method]["threshold"], figures[method]["recall"]) == (0.9, 0.5)
        assert figures["gain"] == 0  # of a method over an equal one
    assert _figures(lenient, strict)["tuned"]["precision"] == 0.5
    recalls = {one["threshold"]: one["recall"] for one in figures["at_thresholds"]}
    assert (recalls[0.2], recalls[0.3], recalls[0.95]) == (1, 0.5, 0)


def test_half_of_the_errors_of_spaces_omit_one():
    sentence, put = sentence_splitter_for(trigram()[1]).sentence("house thought"), damager("space", rate=1.0)
    texts = [put.inject_errors(sentence).text for _ in range(300)]
    assert texts.count("housethought") / len(texts) == pytest.approx(0.5, abs=0.1)


def test_a_calibration_has_the_words_for_each_error_of_all_kinds():
    some = found([0.9, 0.6, 0.4, -np.inf], [0.7])
    assert _calibration("m@1", some, ["space"], 100, "").words_per_error == 25


LISTED = {"the": ["teh", "hte"], "zyzzyva": ["ziziva"], "cat": ["cut"]}


def test_listed_words_are_misspelt_in_proportion_whether_known_or_not():
    sentence = sentence_splitter_for(trigram()[1]).sentence
    put = damager(LISTED, rate=1.0)
    assert put.inject_errors(sentence("a zyzzyva and The cat")) == (
        "a ziziva and The cut",
        ((2, 8, "zyzzyva"), (17, 20, "cat")),
    )
    made = [put.inject_errors(sentence("the end")).text for _ in range(200)]
    assert 70 < made.count("teh end") < 130
    assert made.count("teh end") + made.count("hte end") == 200


def test_a_list_has_one_error_in_twenty_words_of_all():
    tokenizer = trigram()[1]
    lines = ["the dog sees a dog"] * 10
    assert _misspelling_rate(LISTED, Checker(tokenizer), lines) == pytest.approx(0.05 * 5)
    assert _misspelling_rate({"cow": ["kow"]}, Checker(tokenizer), lines) == 1.0


def test_lists_are_read_in_the_format_of_codespell(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(
        "teh->the\nclas->class, disabled because of a name clash\nhte -> the\n\nabd->and, bad,\nalot->a lot\n"
    )
    assert read_misspellings(path) == {
        "the": ["teh", "hte"],
        "class": ["clas"],
        "and": ["abd"],
        "bad": ["abd"],
        "a lot": ["alot"],
    }


@pytest.mark.parametrize("line", ["the", "the->", "->the", "the->the", "the, teh", "teh->,"])
def test_a_line_in_another_format_is_named(tmp_path, line):
    (tmp_path / "list.txt").write_text(f"teh->the\n{line}\n")
    with pytest.raises(FormatError, match=f"{line}'; it must be 'wrong->right'"):
        read_misspellings(tmp_path / "list.txt")


def test_no_error_without_a_rate():
    cutter = sentence_splitter_for(trigram()[1])
    assert all(
        not damager(kind, rate=0.0).inject_errors(cutter.sentence(SENTENCES[0])).errors for kind in KINDS
    )


def found(errors, alarms):
    return Detections(np.array(errors), np.zeros(len(errors), dtype=bool), np.array(alarms))


def test_figures_are_those_counted_by_hand():
    some = Detections(np.array([0.9, 0.6, -np.inf]), np.array([True, False, False]), np.array([0.7, 0.1]))
    figures = figures_at_threshold(some, 0.5)
    assert (figures.precision, figures.recall) == (2 / 3, 2 / 3)
    assert figures.f0_5 == pytest.approx(2 / 3)
    assert figures.correction_accuracy == 0.5
    assert f_score(0.5, 0.25) == pytest.approx(1.25 * 0.125 / (0.125 + 0.25))


def test_the_best_threshold_is_the_best_of_all():
    random = np.random.default_rng(2)
    some = found(random.random(40) ** 0.5, random.random(80))
    every = [figures_at_threshold(some, t).f0_5 for t in np.concatenate([some.errors, some.alarms])]
    assert figures_at_threshold(some, best_threshold(some)).f0_5 == max(every)
    assert best_threshold(found([-np.inf], [0.5])) == 1.0


def test_of_thresholds_that_are_as_good_the_highest_is_chosen():
    """One error of eight without false alarms, or two with two: F0.5 is 5/12."""
    some = found([0.5, 0.9, *[-np.inf] * 6], [0.6, 0.7])
    assert [figures_at_threshold(some, t).f0_5 for t in (0.5, 0.9)] == [pytest.approx(5 / 12)] * 2
    assert best_threshold(some) == 0.9


THE_CAT = CorruptedLine("the hte cat", (InjectedError(4, 7, "the"),))


@pytest.mark.parametrize(
    ("detections", "scores", "corrected", "alarms"),
    [
        ([(14, 17, 0.5, "the")], [0.5], [True], []),
        ([(14, 17, 0.5, "hat")], [0.5], [False], []),
        ([(10, 17, 0.5, "the")], [0.5], [False], []),  # replaces another word, too
        ([(10, 17, 0.4, "the"), (14, 17, 0.5, "the")], [0.5], [True], []),
        ([(10, 17, 0.5, "the"), (14, 17, 0.4, "the")], [0.5], [False], []),
        ([(10, 13, 0.3, ""), (13, 14, 0.2, ""), (17, 21, 0.1, "")], [-np.inf], [False], [0.3, 0.2, 0.1]),
        ([(4, 7, 0.5, "the"), (21, 24, 0.5, "the")], [-np.inf], [False], []),  # in other lines
    ],
)
def test_detections_are_of_the_error_that_they_overlap_or_false_alarms(detections, scores, corrected, alarms):
    matched = _match_errors(THE_CAT, 10, detections)
    assert [column.tolist() for column in matched] == [scores, corrected, alarms]


def test_equal_lines_have_equal_detections():
    model, tokenizer = trigram()
    line = CorruptedLine("the cat sat on teh mat", (InjectedError(15, 18, "the"),))
    first, second = detect_errors(
        SimpleNamespace(model=model, tokenizer=tokenizer), Checker(tokenizer), [line] * 2
    )
    assert first.method.corrected.tolist() == second.method.corrected.tolist() == [True]
    for one, other in zip(first, second, strict=True):
        assert one.errors == pytest.approx(other.errors)
        assert one.alarms == pytest.approx(other.alarms)


def test_every_other_line_is_of_the_other_half():
    """Also with more than one batch."""

    def one_alarm_each(lines):
        for line in lines:
            alone = found([], [float(line.text)])
            yield LineDetections(alone, alone, alone)

    checker, lines = Checker(trigram()[1]), [str(number) for number in range(70)]
    halves, words = _detect_in_halves(
        one_alarm_each, checker, damager("space", rate=0.0), lines, progress=Progress(), title=""
    )
    assert [half.method.alarms.tolist() for half in halves] == [[*range(0, 70, 2)], [*range(1, 70, 2)]]
    assert words == 70


def test_four_in_five_non_words_are_one_edit_away():
    sentence, put = sentence_splitter_for(trigram()[1]).sentence("thought"), damager("non_word", rate=1.0)
    edits = [OSA.distance(put.inject_errors(sentence).text, "thought") for _ in range(500)]
    assert edits.count(1) / len(edits) == pytest.approx(0.8, abs=0.06)
    assert edits.count(2) == 500 - edits.count(1)


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checking")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    for name, settings in {"words": ["ngram.order=3"], "backward": ["ngram.direction=backward"]}.items():
        run_train("ngram", name=name, registry=folder, corpus=[folder / "text.txt"], assignments=settings)
    return folder


def evaluated(registry, model="words", **options):
    fixed = {"corpus": [registry / "text.txt"], "registry": registry, "device": "cpu"}
    return run_check_task(model, **{**fixed, "sample": 280, **options})


def test_real_words_are_as_frequent_as_in_the_text_that_a_model_was_trained_on(registry):
    """One in ten lines is not trained on, and each word counts once more."""
    store = open_registry(registry)
    checkpoint = load_checkpoint(store.fetch(store.resolve("words")), device="cpu")
    counts = Counter(word for line in SENTENCES for word in line.split())
    assert _word_counts(checkpoint, ["a text of other words"]) == pytest.approx(counts, rel=0.15)


def test_both_contexts_find_more_than_surprisal_does(registry):
    result = evaluated(registry, kinds=("real_word",))
    json.dumps(result, allow_nan=False)
    figures = result["kinds"]["real_word"]
    assert figures["errors"] > 2
    assert figures["tuned"]["f0_5"] > figures["surprisal"]["f0_5"]
    assert figures["tuned"]["f0_5"] >= figures["left_only"]["f0_5"]


def test_the_same_seed_gives_the_same_figures(registry):
    assert evaluated(registry, seed=3, kinds=("non_word",)) == evaluated(
        registry, seed=3, kinds=("non_word",)
    )


def test_calibration_is_saved_with_the_registry(registry):
    result = evaluated(registry, save_calibration=True)
    kept = CalibrationStore(Path(registry)).read("words@1")
    assert [point.precision for point in kept.points] == [p["precision"] for p in result["thresholds"]]
    assert kept.kinds == list(KINDS)
    assert kept.words_per_error > 5


def test_a_list_is_a_kind_of_its_own_and_alone_unless_others_are_named(registry, tmp_path):
    (tmp_path / "list.txt").write_text("teh->the\ndgo->dog\n")
    result = evaluated(registry, misspellings=tmp_path / "list.txt", save_calibration=True)
    assert list(result["kinds"]) == CalibrationStore(Path(registry)).read("words@1").kinds == ["misspelling"]
    assert result["kinds"]["misspelling"]["errors"] > 2
    both = evaluated(registry, misspellings=tmp_path / "list.txt", kinds=("space",))
    assert list(both["kinds"]) == ["space", "misspelling"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sample": 0}, "--sample is 0"),
        ({"kinds": ("typo",)}, "'typo'.*real_word"),
        ({"kinds": ()}, "--kinds is empty"),
    ],
)
def test_wrong_options_are_named(registry, options, said):
    with pytest.raises(InputError, match=said):
        evaluated(registry, **options)


def test_a_model_that_reads_backward_is_refused(registry):
    with pytest.raises(UnsupportedError, match="right to left"):
        evaluated(registry, "backward")


def test_one_line_is_too_few_to_choose_a_threshold(registry, tmp_path):
    (tmp_path / "one.txt").write_text(SENTENCES[0])
    with pytest.raises(InputError, match="has 1 line; at least 2"):
        evaluated(registry, corpus=[tmp_path / "one.txt"])
    assert evaluated(registry, sample=1)["lines"] == 2


def test_a_text_without_an_error_calibrates_nothing(registry, tmp_path):
    (tmp_path / "short.txt").write_text("1 2\n3 4\n")
    with pytest.raises(InputError, match="no error was injected into the text"):
        evaluated(registry, corpus=[tmp_path / "short.txt"], save_calibration=True)
