"""N-best lists in JSON: JSON lines, documents, NeMo beams."""

import io
import json

import pytest

from models.errors import InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats import json_stream
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes, read_lists
from tests.support.counted_calls import calls_in
from tests.support.written_lists import format_lists


def read(text, name):
    return list(read_bytes(text if isinstance(text, bytes) else text.encode(), name))


def test_a_line_is_a_list_with_other_keys_left_out():
    line = '{"id": 3, "source": "x", "candidates": [{"text": "a", "features": {"am": -1}, "x": 0}], "reference": "b"}'
    assert read(line, "jsonl") == [CandidateList("3", "", (Candidate("a", {"am": -1.0}),), ("b",))]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "invalid JSON"),
        ("[]", "the JSON value is an empty list, but must be an object"),
        ("{}", "candidates is missing or null"),
        ('{"candidates": []}', "candidates is an empty list"),
        ('{"candidates": [1]}', "candidates[0] is a number, but must be an object"),
        ('{"candidates": [{}]}', "candidates[0].text is missing"),
        ('{"candidates": [{"text": "\\ud800"}]}', "half a surrogate pair"),
        ('{"candidates": [{"text": "a", "features": {"am": NaN}}]}', "NaN is not a JSON number"),
        ('{"candidates": [{"text": "a", "features": {"am": true}}]}', "features.am is a boolean"),
        ('{"candidates": [{"text": "a", "features": {"am": 1e999}}]}', "features.am is too large"),
        (
            f'{{"candidates": [{{"text": "a", "features": {{"am": 1{"0" * 400}}}}}]}}',
            "features.am is too large",
        ),
        (f'{{"candidates": {"1" * 5000}}}', "invalid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"candidates": [{"text": "a"}], "id": 1.5}', "id is a number, but must be a string"),
        ('{"candidates": [{"text": "a"}], "references": "b"}', "references is a string"),
    ],
)
def test_a_bad_list_is_lost_alone(line, problem):
    good = '{"candidates": [{"text": "a"}]}'
    bad, one = read(f"{line}\n{good}\n", "jsonl")
    assert (bad.number, bad.loses_list, problem in bad.problem) == (1, True, True)
    assert one.candidates == (Candidate("a"),)


SURE = CandidateList(
    "u", "", (Candidate("a b", {"am": -1.0}, (0.5, 1.0)), Candidate("b", {}, (0.0,)), Candidate("c"))
)


def test_confidences_are_written_and_read():
    text = "".join(format_lists([SURE], "jsonl"))
    assert json.loads(text)["candidates"] == [
        {"text": "a b", "features": {"am": -1.0}, "confidences": [0.5, 1.0]},
        {"text": "b", "confidences": [0.0]},
        {"text": "c"},
    ]
    assert read(text, "jsonl") == [SURE]


def test_confidences_of_a_reply_are_read():
    reply = {"ranking": [{"index": 1, "text": "a b", "confidences": [1, 0.5], "total": -1}]}
    [one] = read(json.dumps(reply), "jsonl")
    assert one.candidates == (Candidate("a b", {}, (1.0, 0.5)),)


@pytest.mark.parametrize("none", ["null", "[]"])
def test_a_candidate_may_have_no_confidences(none):
    [one] = read(f'{{"candidates": [{{"text": "a b", "confidences": {none}}}]}}', "jsonl")
    assert one.candidates == (Candidate("a b"),)


@pytest.mark.parametrize(
    ("confidences", "problem"),
    [
        ("3", " is a number, but must be a non-empty list"),
        ('"0.5 1"', " is a string, but must be a non-empty list"),
        ('{"a": 0.5, "b": 1}', " is an object, but must be a non-empty list"),
        ('[1, "0.5"]', "[1] is a string, but must be a number"),
        ("[1, null]", "[1] is missing or null, but must be a number"),
        ("[1, true]", "[1] is a boolean, but must be a number"),
        ("[1, [0.5]]", "[1] is a list, but must be a number"),
        ("[1, 1e999]", "[1] is too large for a floating-point number"),
    ],
)
def test_a_confidence_that_is_no_number_is_told_with_its_field(confidences, problem):
    line = f'{{"candidates": [{{"text": "a b", "confidences": {confidences}}}, {{"text": "c"}}]}}'
    bad, one = read(line, "jsonl")
    assert (bad.problem, bad.loses_list) == (f"candidates[0].confidences{problem}", False)
    assert one.candidates == (Candidate("c"),)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_confidence_that_is_not_json_loses_its_list(number):
    [bad] = read(f'{{"candidates": [{{"text": "a", "confidences": [{number}]}}]}}', "jsonl")
    assert (bad.problem, bad.loses_list) == (f"invalid JSON: {number} is not a JSON number", True)


MLM = {
    "utt1": {
        "ref": "BERT",
        "hyp_2": {"score": -8.5, "text": " ELMo"},
        "hyp_1": {"score": -7, "text": "ERNIE"},
    },
    "utt0": {"hyp_10": {"score": -1, "text": "b"}, "hyp_9": {"score": -2, "text": "a"}},
}


@pytest.mark.parametrize("indent", [None, 0, 2])
def test_mlm_scorings_hypotheses_come_by_their_numbers(indent):
    """For any layout of the document."""
    first, second = read(json.dumps(MLM, indent=indent), "mlm-scoring")
    assert first == CandidateList(
        "utt1", "", (Candidate("ERNIE", {"score": -7.0}), Candidate("ELMo", {"score": -8.5})), ("BERT",)
    )
    assert [c.text for c in second.candidates] == ["a", "b"]


def test_a_bad_hypothesis_is_lost_alone():
    document = {"u": {"hyp_1": {"text": "a"}, "hyp_2": {"score": 1, "text": "b"}}, "v": {"ref": "a"}, "w": 3}
    items = read(json.dumps(document, indent=1), "mlm-scoring")
    assert [item.candidates for item in items if not isinstance(item, BadLine)] == [
        (Candidate("b", {"score": 1.0}),)
    ]
    bad = [(item.number, item.problem, item.loses_list) for item in items if isinstance(item, BadLine)]
    assert bad[:2] == [
        (2, "u.hyp_1.score is missing or null, but must be a number", False),
        (11, "v has no hyp_1", True),
    ]
    assert len(bad) == 3


def test_hyporadises_copies_are_dropped_with_their_scores():
    document = [
        {
            "id": "i",
            "input": ["a", "b", "a", "c"],
            "output": "r",
            "am_score": [-1, -2, -3, -4],
            "input1": "a.",
        }
    ]
    (one,) = read(json.dumps(document), "hyporadise")
    assert one == CandidateList(
        "i",
        "",
        (Candidate("a", {"am": -1.0}), Candidate("b", {"am": -2.0}), Candidate("c", {"am": -4.0})),
        ("r",),
    )


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ({"input": [], "output": ""}, "input is an empty list"),
        ({"input": "a"}, "input is a string"),
        ({"input": [1]}, "input[0] is a number"),
        ({"input": ["a"], "score": [1, 2]}, "score has 2 scores, but input has 1 hypotheses"),
        ({"input": ["a"], "am_score": [1], "am": [2]}, "two lists of scores for am"),
        (["a"], "not an object"),
        (7, "not an object"),
    ],
)
def test_a_bad_member_of_a_document_is_lost_alone(member, problem):
    document = json.dumps([{"input": ["x"]}, member, {"input": ["y"]}], indent=1)
    items = read(document, "hyporadise")
    assert [item.candidates[0].text for item in items if not isinstance(item, BadLine)] == ["x", "y"]
    (bad,) = (item for item in items if isinstance(item, BadLine))
    assert (problem in bad.problem, bad.loses_list) == (True, True)


def test_a_member_that_is_no_json_is_lost_alone():
    items = read('[\n{"input": ["x"]},\n{"input": ["x" "y"]},\n{"input": ["z"]}\n]\n', "hyporadise")
    assert [isinstance(item, BadLine) for item in items] == [False, True, False]
    assert items[1].number == 3


def test_a_member_with_a_line_that_is_no_text_is_lost_alone():
    items = read(b'[{"input":\n["x\xff"]},\n{"input": ["z"]}]', "hyporadise")
    (bad,) = (item for item in items if isinstance(item, BadLine))
    assert (bad.number, bad.loses_list, bad.problem[:21]) == (2, True, "the text is not UTF-8")
    assert items[-1].candidates == (Candidate("z"),)


def test_on_one_line_too_a_member_that_is_no_text_is_lost_alone():
    items = read(b'[{"input": ["x\xff"]}, {"input": ["z"]}]', "hyporadise")
    assert [item.loses_list for item in items if isinstance(item, BadLine)] == [False, True]
    assert items[-1].candidates == (Candidate("z"),)


@pytest.mark.parametrize("cut", ['[{"input": ["x"]}', '[{"input": ["x"]}, {"inp', '[{"input": ["x"]}] []'])
def test_a_document_in_disorder_is_told_and_its_lists_served(cut):
    first, *bad = read(cut, "hyporadise")
    assert first.candidates == (Candidate("x"),)
    assert bad
    assert all(isinstance(item, BadLine) for item in bad)


def test_a_list_past_the_limit_is_told(monkeypatch):
    monkeypatch.setattr(json_stream, "MAX_LIST_BYTES", 50)
    items = read(json.dumps([{"input": ["x" * 60]}, {"input": ["y"]}]), "hyporadise")
    assert "longer than 50 bytes" in items[0].problem
    assert items[1].candidates == (Candidate("y"),)


def test_documents_that_are_written_are_json():
    some = [
        CandidateList("u", "", (Candidate("a"), Candidate("b", {"score": 2.0}))),
        CandidateList(None, "", (Candidate("c"),), ("r",)),
    ]
    assert json.loads("".join(format_lists(some, "mlm-scoring"))) == {
        "u": {"hyp_1": {"score": 0.0, "text": "a"}, "hyp_2": {"score": 2.0, "text": "b"}},
        "1": {"hyp_1": {"score": 0.0, "text": "c"}, "ref": "r"},
    }
    assert json.loads("".join(format_lists(some, "hyporadise"))) == [
        {"id": "u", "input": ["a", "b"], "score": [None, 2.0]},
        {"input": ["c"], "output": "r"},
    ]
    assert json.loads("".join(format_lists([], "mlm-scoring"))) == {}
    assert json.loads("".join(format_lists([], "hyporadise"))) == []


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("mlm-scoring", [CandidateList("u", "", (Candidate("a"),))] * 2),
        ("hyporadise", [CandidateList("u", "", (Candidate("a", {"output": 1.0}),))]),
        ("hyporadise", [CandidateList("u", "", (Candidate("a", {"am_score": 1.0}),))]),
        ("jsonl", [CandidateList("u", "", (Candidate("a", {"am": float("nan")}),))]),
        ("jsonl", [CandidateList("u", "", (Candidate("a", {}, (float("nan"),)),))]),
    ],
)
def test_list_that_a_json_format_cannot_represent_is_refused(name, some):
    with pytest.raises(InputError):
        list(format_lists(some, name))


def read_nemo(text, beam_size=2):
    return list(read_lists(io.BytesIO(text.encode()), format_name="nemo", beam_size=beam_size))


def test_lists_have_as_many_lines_as_the_beam_is_wide():
    first, second = read_nemo("a b\t-1.5\na c\t-2\n\t-3\nd\t-4\n")
    assert first == CandidateList(
        None, "", (Candidate("a b", {"score": -1.5}), Candidate("a c", {"score": -2.0}))
    )
    assert [c.text for c in second.candidates] == ["", "d"]


def test_a_bad_line_keeps_its_place_in_the_count():
    bad, first, second = read_nemo("a\tnan\nb\t2\nc\t3\nd\t4\n")
    assert (bad.number, bad.loses_list) == (1, False)
    assert [[c.text for c in one.candidates] for one in (first, second)] == [["b"], ["c", "d"]]


def test_a_list_of_bad_lines_is_lost():
    first, second, good = read_nemo("a\nb\nc\t3\nd\t4\n")
    assert [(bad.number, bad.loses_list) for bad in (first, second)] == [(1, False), (2, True)]
    assert len(good.candidates) == 2


def test_a_list_that_is_cut_is_told_and_served():
    _, bad, last = read_nemo("a\t1\nb\t2\nc\t3\n")
    assert isinstance(bad, BadLine)
    assert "1 of 2" in bad.problem
    assert [c.text for c in last.candidates] == ["c"]


@pytest.mark.parametrize("beam_size", [None, 0, 10**9])
def test_the_beams_size_is_needed(beam_size):
    with pytest.raises(InputError, match=f"beam_size is {beam_size}"):
        read_nemo("a\t1\n", beam_size)


def test_lists_of_several_sizes_are_not_written():
    some = [CandidateList(None, "", (Candidate("a"),) * size) for size in (2, 1)]
    with pytest.raises(InputError, match=r"lists\[1\] has 1 candidates, the lists before it have 2"):
        list(format_lists(some, "nemo"))


def test_the_work_for_columns_of_scores_is_in_proportion_to_them():
    counts = []
    for size in (500, 2000):
        member = {"input": ["a"]} | {f"f{number}": [number] for number in range(size)}
        counts.append(calls_in(lambda text: read(text, "hyporadise"), json.dumps([member])))
    assert counts[1] < 5 * counts[0]
