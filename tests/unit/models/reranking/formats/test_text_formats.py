"""N-best lists of Moses, SRILM and Kaldi."""

import io
import math

import pytest

from models.errors import FormatError, InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes, read_lists
from models.reranking.formats.srilm import BYTELOG
from models.reranking.formats.writer import write_lists
from tests.support.written_lists import format_lists


def read_moses(text):
    return list(read_bytes(text.encode(), "moses"))


def features(line):
    ((candidate,),) = (one.candidates for one in read_moses(line))
    return candidate.features


def test_lists_are_closed_when_the_id_changes():
    lists = read_moses("0 ||| a b ||| d= 1 ||| -2\n0 ||| a c ||| d= 0 ||| -3\n1 ||| x ||| d= 4 ||| -1\n")
    assert [one.name for one in lists] == ["0", "1"]
    assert lists[0].candidates == (
        Candidate("a b", {"d": 1.0, "score": -2.0}),
        Candidate("a c", {"d": 0.0, "score": -3.0}),
    )


def test_the_manuals_example_has_a_feature_for_every_value():
    """Labels end with colons, as in old Moses versions."""
    line = "0 ||| we must discuss . ||| d: 0 -5.56438 lm: -36.0974 -13.3428 w: -7 ||| -9.2298"
    want = {"d_0": 0, "d_1": -5.56438, "lm_0": -36.0974, "lm_1": -13.3428, "w": -7, "score": -9.2298}
    assert features(line) == want


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("0|||a|||d= 1|||-2", {"d": 1.0, "score": -2.0}),
        ("0||| a ||| d= 1", {"d": 1.0}),
        ("0 ||| a", {}),
        ("0 ||| a ||| ", {}),
        ("0 ||| a ||| ||| -2", {"score": -2.0}),
        ("0 ||| a ||| -2", {"score": -2.0}),
        ("0 ||| a ||| -1 -2 ||| -3 ||| 0=0 1-2=1", {"feature_0": -1.0, "feature_1": -2.0, "score": -3.0}),
        ("0 ||| a ||| F0=-1.5 p=2 ||| -1.5", {"F0": -1.5, "p": 2.0, "score": -1.5}),
        ("0 ||| a ||| score= 3 ||| -2", {"score": 3.0, "total": -2.0}),
        ("0 ||| a ||| system:x= 1", {"system:x": 1.0}),
    ],
)
def test_it_is_read_leniently(line, want):
    assert features(line) == want


@pytest.mark.parametrize("extra", ["0-0 1-1", "WordScores= -0.1 -0.2", "0-0 ||| WordScores= -0.1"])
def test_alignments_and_word_scores_of_marian_are_ignored(extra):
    line = f"7 ||| es kam falsch . ||| {extra} ||| F0= -2.3 Score= -2.8 ||| -2.4"
    assert features(line) == {"F0": -2.3, "Score": -2.8, "score": -2.4}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("no bars", "no |||"),
        (" ||| a", "the id is ''"),
        ("0 1 ||| a", "the id is '0 1'"),
        ("0 ||| a ||| d= x", "d is 'x'"),
        ("0 ||| a ||| d= nan", "d is 'nan'"),
        ("0 ||| a ||| d= 1e999", "d is '1e999'"),
        ("0 ||| a ||| d= 1 ||| inf", "the total is 'inf'"),
        ("0 ||| a ||| d= lm= 1", "'d' has no value"),
        ("0 ||| a ||| d= 1 d= 2", "'d' occurs twice"),
        ("0 ||| a ||| d= 1 2 d_0= 3", "same name"),
    ],
)
def test_bad_lines_are_told_and_others_served(line, problem):
    bad, good = read_moses(f"{line}\n1 ||| b\n")
    assert isinstance(bad, BadLine)
    assert (bad.number, problem in bad.problem) == (1, True)
    assert good.candidates == (Candidate("b"),)


def test_values_of_one_feature_stand_under_one_label():
    """MERT interprets a label with an underscore as a sparse feature."""
    one = CandidateList("0", "", (Candidate("a  b", {"d_0": 1.0, "d_1": 2.0, "x_0": 3.0, "score": 4.0}),))
    assert list(format_lists([one], "moses")) == ["0 ||| a b ||| d= 1.0 2.0 x_0= 3.0 ||| 4.0\n"]


@pytest.mark.parametrize(
    ("name", "text", "feature"),
    [("0", "a ||| b", "d"), ("a b", "a", "d"), ("", "a", "d"), ("0", "a", "d e"), ("0", "a", "")],
)
def test_list_that_moses_could_not_read_back_is_refused(name, text, feature):
    one = CandidateList(name, "", (Candidate(text, {feature: 1.0}),))
    with pytest.raises(InputError):
        list(format_lists([one], "moses"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_not_written(value):
    with pytest.raises(InputError, match="must be finite"):
        list(format_lists([CandidateList("0", "", (Candidate("a", {"d": value}),))], "moses"))


def test_neighbours_of_the_same_name_would_become_one():
    with pytest.raises(InputError, match="the id of the list before it"):
        list(format_lists([CandidateList("0", "", (Candidate("a"),))] * 2, "moses"))


def test_a_list_without_a_name_has_its_place():
    one = CandidateList(None, "", (Candidate("a"),))
    assert [line[0] for line in format_lists([one, one], "moses")] == ["0", "1"]


SCORED = "( st: {} et: {} g: {} a: {} )"


def read_srilm(text, source="dir/utt-7.gz"):
    return list(read_lists(io.BytesIO(text.encode()), format_name="srilm", source_name=source))


def candidates(text):
    (one,) = read_srilm(text)
    return one.candidates


def test_logarithms_to_base_10_become_natural():
    (one,) = candidates("-200.5 -10 3 <s> the cat -pau- sat </s>\n")
    assert one.text == "the cat sat"
    assert one.features == {
        "am": pytest.approx(-200.5 * math.log(10)),
        "old_lm": pytest.approx(-10 * math.log(10)),
        "nwords": 3.0,
    }


def test_a_bytelog_is_1024_logarithms_to_base_1_0001():
    assert pytest.approx(math.log(1.0001) * 1024, rel=1e-8) == BYTELOG


@pytest.mark.parametrize("header", ["NBestList1.0\n", ""])
def test_composite_scores_are_bytelogs(header):
    """SRILM recognises this format by its parentheses, even without the header."""
    assert candidates(f"{header}(-1000) the cat\n") == (Candidate("the cat", {"score": -1000 * BYTELOG}),)


def test_the_scores_of_words_are_added_up():
    words = f"the {SCORED.format(0.1, 0.3, -52, -318)} cat {SCORED.format(0.31, 0.9, -8, -82)}"
    (one,) = candidates(f"NBestList2.0\n(-460) {words}\n")
    assert one.text == "the cat"
    assert one.features == {
        "score": -460 * BYTELOG,
        "am": pytest.approx(-400 * BYTELOG),
        "old_lm": pytest.approx(-60 * BYTELOG),
    }


def test_phones_and_states_are_no_words():
    phone, state = SCORED.format(0.1, 0.2, 0, -5), SCORED.format(0.4, 0.5, 0, -7)
    words = (
        f"the {SCORED.format(0.1, 0.3, -2, -3)} dh {phone} ax-3 {state} cat {SCORED.format(0.6, 0.9, -4, -1)}"
    )
    (one,) = candidates(f"NBestList2.0\n(-10) {words}\n")
    assert one.text == "the cat"
    assert one.features["am"] == pytest.approx(-4 * BYTELOG)


def test_a_list_is_called_as_its_file():
    assert read_srilm("1 2 3 a\n")[0].name == "utt-7"


@pytest.mark.parametrize(
    ("text", "number", "problem"),
    [
        ("-1 -2\n", 1, "number of words"),
        ("-1 x 3 a\n", 1, "the language model score is 'x'"),
        ("-inf -2 3 a\n", 1, "the acoustic score is '-inf'"),
        ("NBestList1.0\n-1 -2 3 a\n", 2, "score in parentheses"),
        ("NBestList1.0\n(nan) a\n", 2, "the score is 'nan'"),
        ("NBestList2.0\n(-1) a b\n", 2, "followed by"),
        (
            f"NBestList2.0\n(-1) a {SCORED.format(0, 1, 2, 3).replace('g:', 'h:')}\n",
            2,
            "'a' is not followed by",
        ),
        (f"NBestList2.0\n(-1) a {SCORED.format('x', 1, 2, 3)}\n", 2, "a time is 'x'"),
        ("NBestList3.0\n(-1) a\n", 2, "NBestList3"),
    ],
)
def test_bad_lines_are_told(text, number, problem):
    (bad,) = read_srilm(text)
    assert isinstance(bad, BadLine)
    assert (bad.number, problem in bad.problem) == (number, True)


ONE = CandidateList("u", "", (Candidate("the  cat", {"score": -1.0, "am": -math.log(10), "x": 9.0}),))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("srilm", "-1.0 0.0 2 the cat\n"),
        ("nbestlist1.0", "NBestList1.0\n(-10) the cat\n"),
        (
            "nbestlist2.0",
            "NBestList2.0\n(-10) the ( st: 0.00 et: 0.99 g: 0 a: -22 ) cat ( st: 1.00 et: 1.99 g: 0 a: 0 )\n",
        ),
    ],
)
def test_missing_scores_are_written_as_0(name, want):
    assert "".join(format_lists([ONE], name)) == want


@pytest.mark.parametrize(
    ("name", "text"), [("srilm", "a -pau- b"), ("srilm", "<s> a"), ("nbestlist2.0", "covid-1")]
)
def test_words_that_would_be_dropped_are_refused(name, text):
    with pytest.raises(InputError):
        list(format_lists([CandidateList("u", "", (Candidate(text),))], name))


def test_a_file_holds_one_list():
    with pytest.raises(InputError, match="give a folder"):
        list(format_lists([ONE, ONE], "srilm"))


WORDS = "u-1-1 the cat\nu-1-2 the cap\nv-1\n"


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words_text").write_text(WORDS)
    return tmp_path / "words_text"


def read_kaldi(path, **options):
    items = list(read_lists(path, **options))
    return (
        [item for item in items if not isinstance(item, BadLine)],
        [str(item).removeprefix(f"{path.parent}/") for item in items if isinstance(item, BadLine)],
    )


def test_a_key_is_an_utterance_and_a_place(words):
    (first, second), bad = read_kaldi(words, format_name="kaldi")
    assert (first.name, [c.text for c in first.candidates]) == ("u-1", ["the cat", "the cap"])
    assert (second.name, second.candidates) == ("v", (Candidate(""),))
    assert not bad


def test_sorted_archives_have_10_before_2(tmp_path):
    (tmp_path / "text").write_text("u-1 a\nu-10 c\nu-2 b\n")
    ((one,), _) = read_kaldi(tmp_path / "text", format_name="kaldi")
    assert [c.text for c in one.candidates] == ["a", "b", "c"]


def test_costs_are_negated(words, tmp_path):
    (tmp_path / "acwt").write_text("u-1-1 10.5\nu-1-2 0\nv-1 -3\n")
    (first, second), _ = read_kaldi(words, scores={"am": tmp_path / "acwt"})
    assert [c.features["am"] for c in (*first.candidates, *second.candidates)] == [-10.5, 0.0, 3.0]


def test_costs_in_another_order_are_found(words, tmp_path):
    (tmp_path / "acwt").write_text("v-1 3\nu-1-2 2\nu-1-1 1\n")
    (first, second), bad = read_kaldi(words, scores={"am": tmp_path / "acwt"})
    assert [c.features["am"] for c in (*first.candidates, *second.candidates)] == [-1.0, -2.0, -3.0]
    assert not bad


def test_costs_of_words_are_added_up(words, tmp_path):
    (tmp_path / "lmwt.nn").write_text("u-1-1 2.5 1.5 0.25\nu-1-2  [ 1 2 ]\nv-1 1\n")
    (first, _), _ = read_kaldi(tmp_path)
    assert [c.features for c in first.candidates] == [{"nn": -4.25}, {"nn": -3.0}]


def test_a_folder_has_archives_by_their_names(words, tmp_path):
    for name in ("acwt", "lmwt.lmonly", "score.x", "lmwt.withlm", "ali"):
        (tmp_path / name).write_text("u-1-1 1\nu-1-2 2\nv-1 3\n")
    (first, _), _ = read_kaldi(tmp_path)
    assert first.candidates[0].features == {"am": -1.0, "old_lm": -1.0, "x": -1.0}


def test_a_candidate_without_a_score_is_left_out(words, tmp_path):
    (tmp_path / "acwt").write_text("u-1-1 1\nu-1-2 x\nv-1 nan\n")
    (first,), bad = read_kaldi(tmp_path / "words_text", scores={"am": tmp_path / "acwt"})
    assert [c.text for c in first.candidates] == ["the cat"]
    assert bad == [
        "acwt:2: a cost is 'x'; it must be a finite number",
        "acwt:3: a cost is 'nan'; it must be a finite number",
        f"words_text:2: u-1-2 has no score in {tmp_path}/acwt",
        f"words_text:3: v-1 has no score in {tmp_path}/acwt",
    ]


def test_a_line_without_a_key_is_told(tmp_path):
    (tmp_path / "text").write_text("the cat\nu-1 a\n")
    _, (bad,) = read_kaldi(tmp_path / "text", format_name="kaldi")
    assert bad.startswith("text:1: line starts with 'the'")


def test_a_folder_without_words_is_refused(tmp_path):
    with pytest.raises(FormatError, match="words_text or text"):
        list(read_lists(tmp_path, format_name="kaldi"))


def test_every_feature_has_an_archive(tmp_path):
    some = [CandidateList("u", "", (Candidate("a  b", {"am": -1.5, "old_lm": 2.0, "mine": 0.0}),))]
    write_lists(some, tmp_path / "out", "kaldi")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "words_text": "u-1 a b\n",
        "acwt": "u-1 1.5\n",
        "lmwt.lmonly": "u-1 -2.0\n",
        "score.mine": "u-1 0.0\n",
    }


@pytest.mark.parametrize("features", [{}, {"a/b": 1.0, "am": 1.0}])
def test_list_that_archives_cannot_represent_leaves_no_files(tmp_path, features):
    some = [CandidateList("u", "", (Candidate("a", features or {"am": 1.0}), Candidate("b", features)))]
    with pytest.raises(InputError):
        write_lists(some, tmp_path / "out", "kaldi")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_feature_that_the_first_candidate_lacks_is_not_lost_silently(tmp_path):
    some = [
        CandidateList("u", "", (Candidate("a", {"am": 1.0}),)),
        CandidateList("v", "", (Candidate("b", {"am": 1.0, "lm": 2.0}),)),
    ]
    with pytest.raises(InputError, match="v-1 has 'lm', but the first candidate of the first list does not"):
        write_lists(some, tmp_path / "out", "kaldi")
    assert list((tmp_path / "out").iterdir()) == []
