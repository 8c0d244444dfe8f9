"""Kaldi's archives: costs, keys, folders."""

import pytest

from models.errors import FormatError, InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_lists
from models.reranking.formats.writer import write_lists

WORDS = "u-1-1 the cat\nu-1-2 the cap\nv-1\n"


@pytest.fixture
def words(tmp_path):
    (tmp_path / "words_text").write_text(WORDS)
    return tmp_path / "words_text"


def read(path, **options):
    items = list(read_lists(path, **options))
    return (
        [item for item in items if not isinstance(item, BadLine)],
        [str(item).removeprefix(f"{path.parent}/") for item in items if isinstance(item, BadLine)],
    )


def test_a_key_is_an_utterance_and_a_place(words):
    (first, second), bad = read(words, format_name="kaldi")
    assert (first.name, [c.text for c in first.candidates]) == ("u-1", ["the cat", "the cap"])
    assert (second.name, second.candidates) == ("v", (Candidate(""),))
    assert not bad


def test_sorted_archives_have_10_before_2(tmp_path):
    (tmp_path / "text").write_text("u-1 a\nu-10 c\nu-2 b\n")
    ((one,), _) = read(tmp_path / "text", format_name="kaldi")
    assert [c.text for c in one.candidates] == ["a", "b", "c"]


def test_costs_are_negated(words, tmp_path):
    (tmp_path / "acwt").write_text("u-1-1 10.5\nu-1-2 0\nv-1 -3\n")
    (first, second), _ = read(words, scores={"am": tmp_path / "acwt"})
    assert [c.features["am"] for c in (*first.candidates, *second.candidates)] == [-10.5, 0.0, 3.0]


def test_costs_in_another_order_are_found(words, tmp_path):
    (tmp_path / "acwt").write_text("v-1 3\nu-1-2 2\nu-1-1 1\n")
    (first, second), bad = read(words, scores={"am": tmp_path / "acwt"})
    assert [c.features["am"] for c in (*first.candidates, *second.candidates)] == [-1.0, -2.0, -3.0]
    assert not bad


def test_costs_of_words_are_added_up(words, tmp_path):
    (tmp_path / "lmwt.nn").write_text("u-1-1 2.5 1.5 0.25\nu-1-2  [ 1 2 ]\nv-1 1\n")
    (first, _), _ = read(tmp_path)
    assert [c.features for c in first.candidates] == [{"nn": -4.25}, {"nn": -3.0}]


def test_a_folder_has_archives_by_their_names(words, tmp_path):
    for name in ("acwt", "lmwt.lmonly", "score.x", "lmwt.withlm", "ali"):
        (tmp_path / name).write_text("u-1-1 1\nu-1-2 2\nv-1 3\n")
    (first, _), _ = read(tmp_path)
    assert first.candidates[0].features == {"am": -1.0, "old_lm": -1.0, "x": -1.0}


def test_a_candidate_without_a_score_is_left_out(words, tmp_path):
    (tmp_path / "acwt").write_text("u-1-1 1\nu-1-2 x\nv-1 nan\n")
    (first,), bad = read(tmp_path / "words_text", scores={"am": tmp_path / "acwt"})
    assert [c.text for c in first.candidates] == ["the cat"]
    assert bad == [
        "acwt:2: a cost is 'x'; it must be a finite number",
        "acwt:3: a cost is 'nan'; it must be a finite number",
        f"words_text:2: u-1-2 has no score in {tmp_path}/acwt",
        f"words_text:3: v-1 has no score in {tmp_path}/acwt",
    ]


def test_a_line_without_a_key_is_told(tmp_path):
    (tmp_path / "text").write_text("the cat\nu-1 a\n")
    _, (bad,) = read(tmp_path / "text", format_name="kaldi")
    assert bad.startswith("text:1: begins with 'the'")


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
def test_what_archives_cannot_say_leaves_nothing_behind(tmp_path, features):
    some = [CandidateList("u", "", (Candidate("a", features or {"am": 1.0}), Candidate("b", features)))]
    with pytest.raises(InvalidInputError):
        write_lists(some, tmp_path / "out", "kaldi")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_feature_that_the_first_candidate_lacks_is_not_lost_silently(tmp_path):
    some = [
        CandidateList("u", "", (Candidate("a", {"am": 1.0}),)),
        CandidateList("v", "", (Candidate("b", {"am": 1.0, "lm": 2.0}),)),
    ]
    with pytest.raises(InvalidInputError, match="v-1 has 'lm', but the first candidate of all has not"):
        write_lists(some, tmp_path / "out", "kaldi")
    assert list((tmp_path / "out").iterdir()) == []
