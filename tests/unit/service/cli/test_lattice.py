"""`gramophone lattice`: console output, written files, exit codes."""

import gzip
import json

import pytest

from models.reranking.ranking import ProfileStore
from service.schemas.models import ProfileBody
from tests.reference.backoff import SMALL
from training.publish import run_import_arpa

pytestmark = pytest.mark.usefixtures("logs_as_before")

SLF = """VERSION=1.1
UTTERANCE=one
lmscale=2.0 wdpenalty=-0.5
N=3 L=4
J=0 S=0 E=1 W=a a=-2 l=-1
J=1 S=0 E=1 W=b a=-1 l=-1
J=2 S=1 E=2 W=b a=-1 l=-1
J=3 S=1 E=2 W=!NULL a=-2 l=-1
"""
KALDI = """one
0 1 1 1,2,3
0 1 2 1,1,3
1 2 2 1,1,4
2

two
0 1 7 1,2,3
1

three
0 1 2 1,2,3
1

"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lattices")
    (folder / "small.arpa").write_text(SMALL)
    run_import_arpa(folder / "small.arpa", name="m", registry=folder / "registry")
    return folder / "registry"


@pytest.fixture
def gramophone(typed, registry):
    """Run `gramophone lattice m …`: exit code, standard output, standard error."""
    return lambda *argv: typed("lattice", "m", *argv, "--registry", registry)


@pytest.fixture
def slf(tmp_path):
    path = tmp_path / "one.slf"
    path.write_text(SLF)
    return path


@pytest.fixture
def kaldi(tmp_path):
    """Options for a compressed Kaldi file and its word list."""
    path, words = tmp_path / "lat.gz", tmp_path / "words.txt"
    path.write_bytes(gzip.compress(KALDI.encode()))
    words.write_text("<eps> 0\na 1\nb 2\n")
    return path, "--format", "kaldi", "--words", words


def test_n_best_lists_are_printed_with_their_features(gramophone, slf):
    code, out, _ = gramophone(slf, "--format", "slf", "--nbest", 9)
    one = json.loads(out)
    assert (code, one["id"]) == (0, "one")
    assert sorted(candidate["text"] for candidate in one["candidates"]) == ["a", "a b", "b", "b b"]
    assert one["candidates"][0]["text"] == "a b"
    assert set(one["candidates"][0]["features"]) == {"am", "old_lm", "lm", "words", "unk"}


@pytest.mark.parametrize("name", ["000.slf", "000.slf.gz", "000"])
def test_a_lattice_without_a_name_has_its_files(gramophone, tmp_path, name):
    text = SLF.replace("UTTERANCE=one\n", "").encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    code, out, _ = gramophone(tmp_path / name, "--format", "slf", "--output-format", "text")
    assert (code, out) == (0, "000 a b\n")


def test_given_weights_count_instead_of_the_lattices(gramophone, slf):
    code, out, _ = gramophone(slf, "--format", "slf", "--weights", "am=10,lm=0.1,words=-12")
    assert (code, json.loads(out)["candidates"][0]["text"]) == (0, "b")


def test_phrases_are_proposed_for_words_of_lattices(gramophone, slf, tmp_path):
    slf.write_text(SLF.replace("W=b", "W=gramofone"))
    (tmp_path / "names").write_text("gramophone\n")
    options = ("--phrases", tmp_path / "names", "--output-format", "text")
    code, out, _ = gramophone(slf, *options)
    assert (code, "gramophone" in out) == (0, False)
    code, out, _ = gramophone(slf, *options, "--propose")
    assert (code, "gramophone" in out) == (0, True)


def test_bad_lattices_are_told_and_the_others_are_rescored(gramophone, kaldi):
    code, out, err = gramophone(*kaldi, "--output-format", "text")
    assert (code, out) == (0, "one a b\nthree b\n")
    assert "lat.gz:8: the word '7' is not a number in words.txt" in err


def test_no_lattice_at_all_is_an_error(gramophone, tmp_path):
    (tmp_path / "bad.slf").write_text("N=1\n")
    code, out, err = gramophone(tmp_path / "bad.slf", "--format", "slf")
    assert (code, out) == (2, "")
    assert "bad.slf:1: L= is missing" in err


def test_error_rates_are_told_where_there_are_references(gramophone, kaldi, tmp_path):
    (tmp_path / "text").write_text("one b b\nthree b\n")
    code, out, err = gramophone(*kaldi, "--references", tmp_path / "text", "--output-format", "jsonl")
    assert (code, [json.loads(line)["reference"] for line in out.splitlines()]) == (0, ["b b", "b"])
    assert err.endswith(
        "word error rate of 2 lattices with references: first pass 0.00 %, rescored 33.33 %, "
        "best possible 0.00 %\n"
    )


def test_the_closest_of_several_references_counts(gramophone, slf, tmp_path):
    (tmp_path / "first").write_text("b b\n")
    (tmp_path / "second").write_text("a b c\n")
    references = ["--references", tmp_path / "first", "--references", tmp_path / "second"]
    code, out, err = gramophone(slf, *references)
    assert (code, json.loads(out)["references"]) == (0, ["b b", "a b c"])
    assert "rescored 33.33 %, best possible 0.00 %" in err  # a b: one error of three words; b b is a path


def test_lattices_without_an_id_have_that_of_their_file(gramophone, tmp_path):
    folder = tmp_path / "lattices"
    folder.mkdir()
    (folder / "speech.wav").write_bytes(b"RIFF")
    text = SLF.replace("UTTERANCE=one\n", "")
    (folder / "utt2.lat.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "utt1.slf").write_text(text)
    assert gramophone(folder, "--output-format", "text")[1] == "utt1 a b\nutt2 a b\n"


def test_a_first_pass_profile_keeps_the_first_pass(gramophone, registry, slf):
    save(registry, {"rank": 1.0})
    first = gramophone(slf, "--weights", "am=1,lm=0,old_lm=2,words=-0.5", "--nbest", 9)
    assert gramophone(slf, "--profile", "saved", "--nbest", 9) == first


def test_features_without_a_weight_in_a_profile_do_not_count(gramophone, registry, slf):
    save(registry, {"am": 10.0, "words": -12.0})
    expected = gramophone(slf, "--weights", "am=10,words=-12,lm=0,old_lm=0,unk=0", "--nbest", 9)
    assert gramophone(slf, "--profile", "saved", "--nbest", 9) == expected


@pytest.mark.parametrize(
    ("saved", "problem"),
    [
        ({"weights": {"score": 1.0}}, "weights.score is not a feature of a path; the features are am, old_lm, lm"),
        ({"weights": {"lm": 1.0}, "length_exponent": 1.0}, "length_exponent is 1; for lattices it must be 0"),
    ],
)  # fmt: skip
def test_profiles_that_paths_cannot_have_are_refused(gramophone, registry, slf, saved, problem):
    save(registry, **saved)
    code, out, err = gramophone(slf, "--profile", "saved")
    assert (code, out, problem in err) == (2, "", True)


def save(registry, weights, length_exponent=0.0):
    """Store the profile `saved`."""
    body = ProfileBody(weights=weights, length_exponent=length_exponent)
    ProfileStore(registry).write(body.profile("saved"))


def test_lattices_are_written_with_the_new_scores(gramophone, slf, tmp_path):
    assert (
        gramophone(slf, "--format", "slf", "--output-format", "slf-lattice", "--output", tmp_path / "new")[0]
        == 0
    )
    options = ["--format", "slf", "--weights", "lm=0,old_lm=2", "--nbest", 9, "--output-format", "moses"]
    texts = [
        line.split(" ||| ")[1] for line in gramophone(tmp_path / "new" / "one.slf", *options)[1].splitlines()
    ]
    before = json.loads(gramophone(slf, "--format", "slf", "--nbest", 9)[1])["candidates"]
    assert texts == [candidate["text"] for candidate in before]


def test_lattices_go_through_a_pipe(gramophone, kaldi, monkeypatch, tmp_path):
    out = gramophone(*kaldi, "--output-format", "kaldi-lattice", "--output", tmp_path / "new.gz")[1]
    assert out == ""
    with (tmp_path / "new.gz").open("rb") as packed:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": packed}))
        _, out, _ = gramophone("-", *kaldi[1:], "--output-format", "text")
    assert out == "one a b\nthree b\n"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--weights", "lmscale=3"], "weights.lmscale is not a feature of a path"),
        (["--weights", "lm"], "weights takes NAME="),
        (["--output-format", "word"], "word"),
        (["--max-tokens-per-node", 0], "max_tokens_per_node is 0; it must be at least 1"),
        (["--output-format", "slf-lattice", "--references", "refs"], "--references applies to n-best lists"),
        (["--profile", "mine", "--weights", "lm=1"], "give either --weights or --profile"),
        (["--profile", "none"], "none"),
    ],
)
def test_bad_options_are_refused_by_name(gramophone, slf, options, problem):
    code, out, err = gramophone(slf, "--format", "slf", *options)
    assert (code, out) == (2, "")
    assert problem in err


def test_a_missing_file_is_an_error(gramophone, tmp_path):
    assert gramophone(tmp_path / "none", "--format", "slf")[0] == 2


def test_phrases_of_a_file_are_features_of_the_strings(gramophone, slf, tmp_path):
    (tmp_path / "names").write_text("a b\t2\nB\t\tletter\nc\n")
    code, out, _ = gramophone(slf, "--format", "slf", "--nbest", "9", "--phrases", tmp_path / "names")
    found = {c["text"]: c["features"] for c in json.loads(out)["candidates"]}
    assert code == 0
    of_phrases = {text: (f["phrases"], f["phrases:letter"]) for text, f in found.items()}
    assert of_phrases == {"a b": (2, 0), "b b": (0, 2), "b": (0, 1), "a": (0, 0)}
    assert next(iter(found)) in {"a b", "b b"}
    weighted = gramophone(
        slf, "--format", "slf", "--phrases", tmp_path / "names", "--weights", "phrases=-50"
    )[1]
    assert json.loads(weighted)["candidates"][0]["text"] != "a b"


@pytest.mark.parametrize(
    ("names", "weights", "message"),
    [
        ("a\t\tof these", "lm=1", "phrases[0].class is 'of these'"),
        ("x " * 17, "lm=1", "phrases[0].text is"),
        ("a", "phrases:letter=1", "weights.phrases:letter is not a feature of a path"),
    ],
)
def test_invalid_phrases_are_refused(gramophone, slf, tmp_path, names, weights, message):
    (tmp_path / "names").write_text(names)
    code, _, err = gramophone(slf, "--format", "slf", "--phrases", tmp_path / "names", "--weights", weights)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("lists", "0 ||| a ||| am= 1\n", "is not a lattice or its format is unknown (set --format)"),
        ("folder/speech.wav", "RIFF", ": is a folder"),
    ],
)
def test_files_that_are_no_lattices_are_refused(gramophone, tmp_path, name, content, problem):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    options = ["--format", "slf"] if path.parent.name == "folder" else []
    code, out, err = gramophone(path.parent if options else path, *options)
    assert (code, out, problem in err) == (2, "", True), err
