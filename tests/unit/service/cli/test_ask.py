"""`gramophone check`, `complete` and `rerank` in the test process."""

import bz2
import gzip
import io
import json
import sys

import pytest
from typer.testing import CliRunner

from models.checking.error_model import Calibration, CalibrationPoint, CalibrationStore
from models.errors import FormatError, InputError, UnsupportedError
from models.files import decompressed
from models.reranking.ranking import ProfileStore
from service.cli.ask import read_words
from service.cli.main import app
from service.schemas.models import ProfileBody
from tests.support.recogniser_lists import SAMPLES
from tests.support.text_models import SENTENCES
from training.commands import run_train

pytestmark = pytest.mark.usefixtures("logs_as_before")
CHECK_TEXT = (
    "the cat sat on the mat\nshe thought of the old \U0001f600 hosue\nwe think off the cat in the house\n"
)


@pytest.fixture(scope="module")
def check_registry(tmp_path_factory):
    from training.commands import run_train

    folder = tmp_path_factory.mktemp("check")
    (folder / "corpus.txt").write_text("\n".join(SENTENCES))
    run_train(
        "ngram",
        name="small",
        registry=folder / "registry",
        corpus=[folder / "corpus.txt"],
        assignments=["ngram.order=3"],
    )
    return folder / "registry"


@pytest.fixture
def check(typed, monkeypatch, check_registry):
    """Run `gramophone check small …`: exit code, standard output, standard error."""

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return typed("check", "small", *arguments, "--registry", check_registry)

    return run


def test_people_are_told_where_what_is_wrong_and_what_was_meant(check):
    code, out, _ = check(CHECK_TEXT)
    assert code == 0
    assert "2:26  hosue  unknown word" in out
    assert "\u2192 house" in out
    assert "3:10  off  wrong word" in out
    assert "2 issues in 21 words" in out


def test_a_file_standard_input_and_an_argument_are_told_alike(check, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(CHECK_TEXT, encoding="utf-8")
    told = [check(CHECK_TEXT)[1], check(file)[1], check("-", stdin=CHECK_TEXT)[1], check(stdin=CHECK_TEXT)[1]]
    assert told == told[:1] * 4


def test_programs_get_the_reply_of_the_service(check):
    code, out, _ = check(CHECK_TEXT, "--json", "--threshold", "0.3", "--max-suggestions", "1")
    reply = json.loads(out)
    assert code == 0
    assert (reply["model"], reply["threshold"]) == ("small@1", 0.3)
    assert {CHECK_TEXT[i["start"] : i["end"]] for i in reply["issues"]} >= {"hosue", "off"}
    assert all(len(i["suggestions"]) == 1 for i in reply["issues"])


def test_words_of_a_dictionary_are_right(check, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("\nhosue\n\n", encoding="utf-8")
    assert "hosue" not in check(CHECK_TEXT, "--dictionary", file)[1]


def test_a_hunspell_dictionary_may_be_beside_a_list_of_words(check, tmp_path):
    words, (dictionary, affixes) = tmp_path / "words.txt", (tmp_path / "en.dic", tmp_path / "en.aff")
    words.write_text("xylofone", encoding="utf-8")
    affixes.write_text("SET UTF-8\nSFX S Y 1\nSFX S 0 s .\n", encoding="utf-8")
    dictionary.write_text("1\nhosue/S\n", encoding="utf-8")
    text, given = "the hosue xylofone hosues", ("--dictionary", dictionary, "--dictionary", words)
    known = [word["known"] for word in json.loads(check(text, "--json", *given)[1])["words"]]
    assert known == [True] * 4
    affixes.unlink()
    code, out, err = check(text, *given)
    assert (code, out) == (2, "")
    assert "en.aff: cannot be read" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["  "], "there is no text"),
        (["-"], "there is no text"),
        (["the cat", "--threshold", "2"], "threshold is 2.0"),
        (["the cat", "--max-edits", "3"], "max_edits is 3"),
        (["the cat", "--min-precision", "0.9"], "was not calibrated"),
        (["the cat", "--dictionary", "/nowhere"], "/nowhere: cannot be read"),
        (["letter.txt"], "letter.txt: cannot be read"),
        (["."], "Is a directory"),
        (
            ["the cat", "--threshold", "0.4", "--min-precision", "0.9"],
            "either --threshold or --min-precision",
        ),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_two(check, arguments, said):
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_dictionary_may_have_the_weights_that_completions_take(check, tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("hosue\t5\n", encoding="utf-8")
    assert "hosue" not in check(CHECK_TEXT, "--dictionary", file)[1]


def test_a_word_that_ends_a_sentence_is_no_file(check):
    assert "in 1 word;" in check("house.")[1]


def test_a_file_that_is_not_text_is_refused(check, tmp_path):
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfd\x00")
    code, _, err = check(file)
    assert (code, "is not UTF-8: byte 0 is 0xff" in err) == (2, True)


def test_a_calibrated_model_is_asked_for_a_precision(check, check_registry):
    points = [CalibrationPoint(threshold=0.4, precision=0.9, recall=0.5)]
    known = {"kinds": ["real_word"], "words_per_error": 20.0, "corpus_sha256": "", "created": ""}
    CalibrationStore(check_registry).write(Calibration(model="small@1", points=points, **known))
    code, out, _ = check(CHECK_TEXT, "--min-precision", "0.8")
    assert code == 0
    assert "measured precision at threshold 0.4: 90%" in out


COMPLETE_TEXT = "\n".join(
    f"the {noun} sat on the {place}" for noun in ("cat", "cow", "owl") for place in ("mat", "bed") * 9
)


@pytest.fixture(scope="module")
def complete_registry(tmp_path_factory):
    """Registry with a small n-gram model of words."""
    from training.commands import run_train

    folder = tmp_path_factory.mktemp("complete")
    corpus = folder / "corpus.txt"
    corpus.write_text(COMPLETE_TEXT)
    run_train(
        "ngram",
        name="small",
        registry=folder / "registry",
        corpus=[corpus],
        assignments=["ngram.order=2", "tokenizer.kind=word"],
    )
    return folder / "registry"


@pytest.fixture
def complete(typed, complete_registry):
    """Run `gramophone complete small …`: exit code, standard output, standard error."""
    return lambda *argv: typed("complete", "small", *argv, "--registry", complete_registry)


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


MOSES = """\
0 ||| mat the on ||| lm= -1 ||| -3
0 ||| the cat sat ||| lm= -2 ||| -4
bad
1 ||| the owl ||| lm= -3 ||| -5
"""


@pytest.fixture(scope="module")
def rerank_registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rerank")
    (folder / "corpus").write_text("\n".join(f"the {n} sat on the mat" for n in ("cat", "dog", "owl") * 12))
    run_train(
        "ngram", name="small", registry=folder, corpus=[folder / "corpus"], assignments=["ngram.order=2"]
    )
    return folder


@pytest.fixture
def rerank(rerank_registry, tmp_path):
    (tmp_path / "lists").write_text(MOSES)
    (tmp_path / "references").write_text("the cat sat\nthe owl\n")

    def run(*options, model="small", **more):
        arguments = ["rerank", model, tmp_path / "lists", "--registry", rerank_registry, *options]
        return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False, **more)

    return run


def test_a_format_is_told_by_its_lines_and_bad_ones_are_told(rerank, tmp_path):
    done = rerank()
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["id"], [c["index"] for c in first["ranking"]], second["id"]) == ("0", [1, 0], "1")
    assert first["ranking"][0]["features"]["old_lm"] == -2
    assert done.stderr.startswith(f"gramophone: {tmp_path}/lists:3: no |||")


def test_the_new_order_is_written_in_a_format(rerank):
    done = rerank("--weights", "old_lm=-2", "--output-format", "moses", "--top", "1")
    first, second = done.stdout.splitlines()
    assert first.startswith("0 ||| the cat sat ||| ")
    assert "old_score= -4.0" in first
    assert (first.endswith(" ||| 4.0"), second.endswith(" ||| 6.0")) == (True, True)


@pytest.mark.parametrize("name", SAMPLES)
def test_lists_of_recognisers_and_translators_are_reranked(rerank, tmp_path, name):
    text, lists = SAMPLES[name]
    (tmp_path / "lists").write_text(text)
    (tmp_path / "references").write_text("the cat\n" * len(lists))
    beam_size = ["--beam-size", 2] if name == "ctranslate2" else []
    done = rerank("--references", tmp_path / "references", *beam_size)
    ranked = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["id"] for one in ranked] == [one.name for one in lists]
    assert f"word error rate of {len(lists)} lists" in done.stderr
    for one, given in zip(ranked, lists, strict=True):
        assert {c["text"] for c in one["ranking"]} == {c.text for c in given.candidates}


def test_a_folder_is_written_for_srilm(rerank, tmp_path):
    rerank("--output-format", "nbestlist1.0", "--output", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["0", "1"]


def test_error_rates_before_and_after_are_told(rerank, tmp_path):
    done = rerank("--references", tmp_path / "references")
    assert done.stderr.splitlines()[-1] == (
        "word error rate of 2 lists with references: first pass 60.00 %, re-ranked 0.00 %, best possible 0.00 %"
    )


def test_a_dash_stands_for_the_models_of_a_profile(rerank_registry, tmp_path):
    profiles = ProfileStore(rerank_registry)
    profiles.write(ProfileBody(weights={"rank": -1.0}).profile("bare"))
    scored = ProfileBody(weights={"lm": 1.0}, models=[{"address": "small@1"}])
    profiles.write(scored.profile("scored"))
    (tmp_path / "lists").write_text(MOSES)

    def texts(profile):
        command = ["rerank", "-", tmp_path / "lists", "--registry", rerank_registry, "--profile", profile]
        done = CliRunner().invoke(app, [str(a) for a in command], catch_exceptions=False)
        return [c["text"] for c in json.loads(done.stdout.splitlines()[0])["ranking"]]

    assert texts("bare") == ["the cat sat", "mat the on"]
    assert texts("scored") == ["the cat sat", "mat the on"]


def test_a_dash_requires_a_profile(rerank):
    with pytest.raises(InputError, match="model is missing"):
        rerank(model="-")


def test_unnormalised_scores_need_a_model_trained_for_them(rerank):
    assert rerank("--score-mode", "normalised").stdout == rerank().stdout
    with pytest.raises(UnsupportedError, match="small@1 was not trained for unnormalised scores"):
        rerank("--score-mode", "unnormalised")


def test_a_list_that_cannot_be_ranked_fails_alone(rerank, tmp_path):
    some = [
        {"id": "u", "candidates": [{"text": "the"}]},
        {"candidates": [{"text": "a", "features": {"am": 1}}]},
    ]
    (tmp_path / "lists").write_text("\n".join(map(json.dumps, some)))
    done = rerank("--weights", "am=1")
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr.startswith(f"gramophone: {tmp_path}/lists: list 1 (u): ")


def test_that_no_list_can_be_ranked_is_an_error(rerank):
    with pytest.raises(InputError, match="no list can be re-ranked"):
        rerank("--weights", "nothing=1")


def test_an_output_needs_its_format(rerank, tmp_path):
    with pytest.raises(InputError, match="--output needs --output-format"):
        rerank("--output", tmp_path / "out")


def test_phrases_of_a_file_have_weights_and_classes(rerank, tmp_path):
    (tmp_path / "lists").write_text(
        json.dumps({"candidates": [{"text": "the cat"}, {"text": "the Jaan Tamm"}]})
    )
    (tmp_path / "names").write_text("jaan tamm\t\tperson\n\ntallinn\t5\n")
    done = rerank("--phrases", tmp_path / "names", "--weights", "phrases:person=1,phrases=1")
    first, second = json.loads(done.stdout)["ranking"]
    assert (first["index"], first["features"]["phrases:person"], second["total"]) == (1, 1.0, 0.0)
    assert "phrases" not in first["features"]


def test_a_bad_line_of_phrases_is_refused(rerank, tmp_path):
    (tmp_path / "names").write_text("a " * 17)
    with pytest.raises(
        InputError, match=r"phrases\[0\].text is .*, with 17 words; a phrase has from 1 to 16"
    ):
        rerank("--phrases", tmp_path / "names")
    (tmp_path / "names").write_text("tallinn\tmuch")
    with pytest.raises(FormatError, match="entry 1: the weight is 'much', it must be a number"):
        rerank("--phrases", tmp_path / "names")


def test_lines_sampled_from_a_model_are_a_training_text_like_its_own(typed, check_registry, tmp_path):
    texts = []
    for name in ("one.txt", "two.txt.gz", "other.txt"):
        seed = "4" if name == "other.txt" else "3"
        out = tmp_path / name
        code, _, err = typed(
            "generate", "small", "--lines", "150", "--out", out, "--seed", seed, "--registry", check_registry
        )
        assert code == 0, err
        with out.open("rb") as raw, decompressed(raw) as file:
            texts.append(file.read().decode())
    assert texts[0] == texts[1]
    runs = [set(zip(lines, lines[1:], lines[2:], strict=False)) for lines in map(str.splitlines, texts[::2])]
    assert len(runs[0] & runs[1]) < 20  # no batch of one seed is a batch of another
    lines = texts[0].splitlines()
    assert len(lines) == 150
    assert all(line == line.strip() != "" for line in lines)
    known = {word for sentence in SENTENCES for word in sentence.split()}
    assert {word for line in lines for word in line.split()} <= known
    assert len(set(lines) & set(SENTENCES)) > 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lines", "3"], "--lines and --out are given together"),
        (
            ["--lines", "3", "--out", "x.txt", "--strategy", "beam"],
            "requires the strategy sample, given beam",
        ),
        (["--lines", "3", "--out", "x.txt", "--bad-word", "\\"], ""),
    ],
)
def test_lines_are_refused_without_a_file_or_sampling(
    typed, check_registry, tmp_path, monkeypatch, options, said
):
    monkeypatch.chdir(tmp_path)
    code, _, err = typed("generate", "small", *options, "--registry", check_registry)
    assert (code == 0) == (said == "")
    assert said in err
    assert bool(list(tmp_path.iterdir())) == (said == "")


def test_a_model_of_empty_lines_ends_with_an_error_and_leaves_no_file(typed, check_registry, tmp_path):
    options = ["--lines", "3", "--out", tmp_path / "x.txt"]
    letters = {word[0] for sentence in SENTENCES for word in sentence.split()}
    stops = [option for letter in sorted(letters) for option in ("--stop", letter)]
    code, _, err = typed("generate", "small", *options, *stops, "--registry", check_registry)
    assert code == 2
    assert "small@1 generates empty lines only" in err
    assert not list(tmp_path.iterdir())


def test_lines_are_those_of_the_service_also_as_jsonl_and_in_a_file(rerank, tmp_path):
    lines = rerank("--weights", "old_lm=-2").stdout
    rerank("--weights", "old_lm=-2", "--output-format", "jsonl", "--output", tmp_path / "out.jsonl")
    assert rerank("--weights", "old_lm=-2", "--output-format", "jsonl").stdout == lines
    assert (tmp_path / "out.jsonl").read_text() == lines
    (tmp_path / "lists").write_text(lines)
    again = [json.loads(line) for line in rerank("--weights", "lm=0,old_lm=1").stdout.splitlines()]
    assert [one["ranking"][0]["text"] for one in again] == ["mat the on", "the owl"]


@pytest.mark.parametrize(
    ("metric", "signature", "told"),
    [
        (
            "cer",
            "nrefs:1|units:characters|normaliser:none",
            "character error rate of 2 lists with references: first",
        ),
        ("wer", "nrefs:1|units:words|normaliser:lower", "re-ranked 0.00 %, best possible 0.00 %"),
        ("chrf", "", "chrF of 2 lists with references: first pass 44.59, re-ranked 100.00"),
        ("bleu", "", "BLEU of 2 lists with references: first pass"),
    ],
)
def test_figures_are_those_of_the_profiles_metric(rerank, rerank_registry, tmp_path, metric, signature, told):
    (tmp_path / "references").write_text(
        "THE cat sat\nthe owl\n" if metric == "wer" else "the cat sat\nthe owl\n"
    )
    body = ProfileBody(weights={"old_lm": -1.0}, metric=metric, signature=signature)
    ProfileStore(rerank_registry).write(body.profile(metric))
    assert told in rerank("--profile", metric, "--references", tmp_path / "references").stderr


@pytest.mark.parametrize("packed", [bz2.compress, gzip.compress, bytes])
def test_files_of_text_may_be_packed(tmp_path, packed):
    (tmp_path / "words").write_bytes(packed(b"b\n\nu\n"))
    assert read_words(tmp_path / "words") == ["b", "u"]


def test_a_file_of_text_in_utf_16_is_named_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "words").write_text("a", encoding="utf-16")
    with pytest.raises(FormatError, match=r"UTF-16.*iconv -f utf-16"):
        read_words(tmp_path / "words")
