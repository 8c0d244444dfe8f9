"""`gramophone tune` and `gramophone fold-texts`."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from models.errors import FormatError, InputError
from service.cli.main import app
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("logs_as_before")

PEOPLE, DEEDS = (
    ["the cat", "the dog", "an owl", "my hen"],
    ["sat on the mat", "ran to the door", "saw a mouse"],
)
QUICK = ("--restarts", "1", "--resamples", "4", "--bootstrap-samples", "200")


def right_texts(count, seed=0):
    rng = np.random.default_rng(seed)
    return [f"{PEOPLE[rng.integers(4)]} {DEEDS[rng.integers(3)]} {rng.integers(50)}" for _ in range(count)]


def made_lists(count=40):
    """Lists of permuted sentences; the correct one is second or third in most lists."""
    rng = np.random.default_rng(1)
    for number, reference in enumerate(right_texts(count)):
        words = reference.split()
        texts = [" ".join(rng.permutation(words)) for _ in range(2)]
        texts.insert(int(rng.choice([0, 1, 2], p=[0.3, 0.4, 0.3])), reference)
        candidates = [{"text": text, "features": {"am": -1.0}} for text in texts]
        yield {"id": f"u{number}", "candidates": candidates, "reference": reference}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tune")
    (folder / "corpus").write_text("\n".join(right_texts(60, seed=2)))
    for name in ("small", "other"):
        run_train(
            "ngram",
            name=name,
            registry=folder / "reg",
            corpus=[folder / "corpus"],
            assignments=["ngram.order=2"],
        )
    (folder / "lists.jsonl").write_text("\n".join(map(json.dumps, made_lists())))
    return folder


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def tune(folder):
    def run(*options, model="small", file="lists.jsonl"):
        return invoke("tune", model, folder / file, "--registry", folder / "reg", *QUICK, *options)

    return run


def test_tuned_weights_are_reported_saved_and_used(tune, folder):
    done = tune("--save", "mine")
    assert "Use the weights: on held-out lists, WER changes by -" in " ".join(done.stdout.split())
    command = [
        "rerank",
        "small",
        folder / "lists.jsonl",
        "--profile",
        "mine",
        "--top",
        "1",
        "--registry",
        folder / "reg",
    ]
    best = [json.loads(line)["ranking"][0]["text"] for line in invoke(*command).stdout.splitlines()]
    references = [one["reference"] for one in made_lists()]
    assert np.mean([a == b for a, b in zip(best, references, strict=True)]) > 0.8


@pytest.fixture(scope="module")
def replaced(tune, folder):
    """Profile `kept`, tuned on the first version of a model; the second has learnt the wrong candidates."""
    told = ((one["text"], given["reference"]) for given in made_lists() for one in given["candidates"])
    (folder / "wrong").write_text("\n".join(text for text, right in told if text != right))
    for text in ("corpus", "wrong"):
        asked = {"registry": folder / "reg", "corpus": [folder / text], "assignments": ["ngram.order=2"]}
        run_train("ngram", name="kept", **asked)
    assert tune("--save", "kept", "--features", "lm", model="kept@1").exit_code == 0
    return folder


def test_weights_that_hold_are_told_from_those_that_do_not(tune, replaced):
    for model, code in (("kept@1", 0), ("kept", 1)):
        done = tune("--check", "kept", "--json", model=model)
        told = json.loads(done.stdout)
        assert (done.exit_code, told["holds"], told["lists"]) == (code, not code, 40)
        assert (told["significance"]["p_value"] < 0.2) == told["holds"]
        assert told["tuned_on"] == ([] if model == "kept@1" else ["kept@1"])


def test_people_are_told_whether_weights_hold(tune, replaced):
    done = tune("--check", "kept", model="-")
    assert (done.exit_code, "the weights hold" in done.stdout) == (0, True)
    done = tune("--check", "kept", model="kept")
    assert "profile kept was tuned on kept@1" in done.stderr
    assert "the weights do not hold: tune again" in done.stdout


def test_a_profile_is_checked_by_the_metric_that_it_was_tuned_for(tune, folder):
    tune("--save", "characters", "--metric", "cer", "--normaliser", "lower")
    told = json.loads(tune("--check", "characters", "--json").stdout)
    assert (told["metric"], told["signature"]) == ("cer", "nrefs:1|units:characters|normaliser:lower")


def test_a_first_pass_that_was_kept_holds(tune):
    tune("--save", "first", "--max-p-value", "0")
    told = json.loads(tune("--check", "first", "--json", model="-").stdout)
    assert (told["holds"], told["baseline"]) == (True, told["tuned"])


@pytest.mark.parametrize("option", [("--save", "x"), ("--fold-models", "small,other"), ("--nbest", "5")])
def test_options_without_effect_on_a_check_are_refused(tune, option):
    with pytest.raises(InputError, match="--check tunes nothing"):
        tune("--check", "mine", *option)


def test_programs_are_told_in_json(tune):
    told = json.loads(tune("--json").stdout)
    assert (told["decision"], told["model"], told["counts"]["lists"]) == ("tuned", "small@1", 40)
    assert told["weights"]["lm"] > 0


def test_a_report_is_written_for_people_and_programs(tune, tmp_path):
    tune("--report", tmp_path / "made")
    page = (tmp_path / "made" / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "lists.jsonl: tuning report" in page
    assert json.loads((tmp_path / "made" / "tuning.json").read_text())["decision"] == "tuned"


def test_no_model_is_needed_for_what_is_given(tune):
    told = json.loads(tune("--json", "--features", "rank,am,words", model="-").stdout)
    assert (told["model"], told["features"]) == (None, ["rank", "am", "words"])


def test_further_models_and_mixtures_score_too(tune):
    told = json.loads(tune("--json", "--models", "old=other", model="small=0.5,other=0.5").stdout)
    assert (told["model"], told["models"]) == ("0.5 small@1 + 0.5 other@1", {"old": "other@1"})
    assert [one["weight"] for one in told["profile"]["models"] if not one.get("name")] == [0.5, 0.5]


def test_models_by_fold_score_the_lists_and_the_weights_are_for_the_main_one(tune):
    plain, same = (
        json.loads(tune("--json", *more).stdout) for more in ((), ("--fold-models", "other,other"))
    )
    assert same["model"] == "small@1"
    assert same["weights"] == plain["weights"]  # both models were trained on one text


def test_each_fold_needs_a_model(tune):
    with pytest.raises(InputError, match="--fold-models names 1 models; 2 folds"):
        tune("--fold-models", "small")


def test_too_few_lists_for_the_folds_are_told_before_anything_is_scored(tune, folder):
    (folder / "few.jsonl").write_text("\n".join(map(json.dumps, list(made_lists(2)))))
    with pytest.raises(InputError, match="folds is 3, but 2 lists have 2 distinct references"):
        tune("--folds", "3", "--fold-models", "small,other,small", file="few.jsonl")


def test_texts_of_folds_hold_the_references_of_all_others(folder, tmp_path):
    paths = invoke("fold-texts", folder / "lists.jsonl", tmp_path, "--folds", "3").stdout.split()
    texts = [Path(path).read_text().splitlines() for path in paths]
    assert sorted(line for text in texts for line in text) == sorted(2 * right_texts(40))
    held_out = [set(right_texts(40)) - set(text) for text in texts]
    assert sum(map(len, held_out)) == len(set(right_texts(40)))


def test_texts_of_folds_have_no_ids_of_references_in_another_file(folder, tmp_path):
    lists = [{**one, "reference": None} for one in made_lists()]
    (tmp_path / "lists.jsonl").write_text("\n".join(map(json.dumps, lists)))
    references = [f"{one['id']} {one['reference']}\n" for one in made_lists()]
    (tmp_path / "text").write_text("".join(references[::-1]))
    told = invoke("fold-texts", tmp_path / "lists.jsonl", tmp_path, "--references", tmp_path / "text")
    texts = [Path(path).read_text().splitlines() for path in told.stdout.split()]
    assert sorted(line for text in texts for line in text) == sorted(right_texts(40))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--folds", "-1"), "folds is -1; it must be from 2 to 20"),
        (("--folds", "0"), "folds is 0; it must be from 2 to 20"),
        (("--folds", "1"), "folds is 1; it must be from 2 to 20"),
        (("--folds", "21"), "folds is 21; it must be from 2 to 20"),
        (("--seed", "-1"), "seed is -1; it must be from 0 to"),
    ],
)
def test_texts_of_folds_take_the_numbers_that_tuning_takes(folder, tmp_path, option, message):
    with pytest.raises(InputError, match=message):
        invoke("fold-texts", folder / "lists.jsonl", tmp_path / "texts", *option)
    assert not (tmp_path / "texts").exists()


@pytest.fixture(scope="module")
def corrected(tune, folder):
    """Save profile `corrected`, tuned on lists in which `mat` is written `matt`."""
    lists = list(made_lists(120))
    for one in lists:
        for candidate in one["candidates"]:
            candidate["text"] = " ".join(
                "matt" if word == "mat" else word for word in candidate["text"].split()
            )
    (folder / "misheard.jsonl").write_text("\n".join(map(json.dumps, lists)))
    return tune(
        "--corrections", "--save", "corrected", "--report", folder / "corrected", file="misheard.jsonl"
    )


@pytest.fixture(scope="module")
def corrections(corrected, folder):
    def run(command, *arguments, profile="corrected"):
        return invoke("corrections", command, profile, *arguments, "--registry", folder / "reg").stdout

    return run


def test_corrections_are_tuned_reported_and_made(corrected, folder):
    assert "corrections: " in corrected.stdout
    page = (folder / "corrected" / "report.html").read_text()
    assert "<td>matt → mat</td>" in page
    done = invoke(
        *("rerank", "small", folder / "misheard.jsonl", "--profile", "corrected", "--top", "1"),
        *("--registry", folder / "reg"),
    )
    assert "matt" not in " ".join(json.loads(line)["ranking"][0]["text"] for line in done.stdout.splitlines())


def test_corrections_are_shown_added_and_removed(corrections):
    before = corrections("show")
    assert before.startswith("heard\twritten\tlog_odds\tlists\n")
    assert "\nmatt\tmat\t" in before
    corrections("add", "in put", "input", "--log-odds", "1.5")
    corrections("add", "in put", "", "--log-odds", "-1")
    assert corrections("show") == before + "in put\tinput\t1.5\t0\nin put\t\t-1.0\t0\n"
    corrections("remove", "in put", "")
    assert corrections("show") == before + "in put\tinput\t1.5\t0\n"
    corrections("remove", "in put")
    assert corrections("show") == before


def test_a_table_replaces_corrections_with_equal_phrases(corrections, tmp_path):
    before = corrections("show")
    (tmp_path / "table.tsv").write_text(before.replace("\nmatt\tmat\t", "\nmatt\tmat\t9"))
    corrections("add", "--file", tmp_path / "table.tsv")
    assert corrections("show") == (tmp_path / "table.tsv").read_text()
    (tmp_path / "table.tsv").write_text(before)
    corrections("add", "--file", tmp_path / "table.tsv")
    assert corrections("show") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add"], "give either HEARD and WRITTEN, or --file"),
        (["add", "a"], "give either HEARD and WRITTEN, or --file"),
        (
            ["add", "a b c d e", "x"],
            r"corrections\[\d+\]\.heard has 5 words and 9 characters; it must have from 1 to 4",
        ),
        (["add", "a", "b", "--log-odds", "101"], "log_odds is 101.0; it must be from -100 to 100"),
        (["add", "a", "b", "--log-odds", "nan"], "log_odds is nan: input should be a finite number"),
        (["add", "a", "b", "--log-odds", "-inf"], "log_odds is -inf: input should be a finite number"),
        (["add", "a\udcff", "b"], "the text is not UTF-8"),
        (["add", "a", "b\udcff"], "the text is not UTF-8"),
        (["remove", "nosuch"], "profile 'corrected' has no correction of 'nosuch'"),
        (["remove", "matt", "x"], "has no correction of 'matt → x'"),
    ],
)
def test_impossible_changes_are_refused_and_change_nothing(corrections, arguments, message):
    before = corrections("show")
    with pytest.raises(InputError, match=message):
        corrections(*arguments)
    assert corrections("show") == before


def test_a_profile_without_a_weight_of_corrections_is_refused(tune, corrections):
    tune("--save", "plain")
    with pytest.raises(
        InputError, match="profile 'plain' has neither corrections nor a weight of 'correction'"
    ):
        corrections("add", "a", "b", profile="plain")


def test_a_bad_name_is_refused_before_anything_is_done(tune):
    with pytest.raises(InputError, match="save is"):
        tune("--save", "a/b", file="there is no such file")


def test_a_wrong_option_is_told_by_its_name(tune):
    with pytest.raises(InputError, match=r"length_exponents\[1\]"):
        tune("--length-exponents", "0,x")


def test_bad_lines_are_told_and_the_good_ones_tuned_on(tune, folder):
    lines = (folder / "lists.jsonl").read_text().splitlines()
    (folder / "bad.jsonl").write_text("\n".join([*lines, "{"]))
    done = tune("--json", file="bad.jsonl")
    assert "bad.jsonl:41" in done.stderr
    assert json.loads(done.stdout)["counts"]["lists"] == 40


def test_a_file_without_lists_is_refused(tune, folder):
    (folder / "empty.jsonl").write_text("")
    with pytest.raises((FormatError, InputError), match=r"empty\.jsonl"):
        tune("--format", "jsonl", file="empty.jsonl")


def test_phrases_of_a_file_are_tuned_and_saved(tune, folder):
    (folder / "names").write_text("the cat\nan owl\t2\n")
    reply = json.loads(
        tune("--phrases", folder / "names", "--features", "am,phrases", "--max-p-value", "1", "--json").stdout
    )
    assert reply["features"] == ["am", "phrases"]
    assert reply["profile"]["phrases"] == [
        {"text": "the cat", "weight": 1.0, "class": ""},
        {"text": "an owl", "weight": 2.0, "class": ""},
    ]
