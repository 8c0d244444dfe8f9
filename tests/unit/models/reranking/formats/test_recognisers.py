"""Lists of recognisers and translators: layouts as documented, and errors with their line and field."""

import io
import json
import math

import pytest

from models.errors import InputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import FORMATS, WRITTEN_FORMAT_NAMES, detect_format, read_lists
from tests.support.recogniser_lists import SAMPLES
from tests.support.written_lists import format_lists


def beam_size(form):
    return 2 if FORMATS[form].needs_beam_size else None


def read(text, form):
    body = text if isinstance(text, bytes) else text.encode()
    return list(read_lists(io.BytesIO(body), format_name=form, beam_size=beam_size(form)))


def problems(items):
    return [(item.number, item.problem, item.loses_list) for item in items if isinstance(item, BadLine)]


def texts(items):
    return [[c.text for c in item.candidates] for item in items if not isinstance(item, BadLine)]


def assert_same(items, expected):
    assert [(one.name, one.references, [c.text for c in one.candidates]) for one in items] == [
        (one.name, one.references, [c.text for c in one.candidates]) for one in expected
    ]
    for one, other in zip(items, expected, strict=True):
        for candidate, wanted in zip(one.candidates, other.candidates, strict=True):
            assert candidate.features == pytest.approx(dict(wanted.features))


@pytest.mark.parametrize("name", SAMPLES)
def test_documented_layouts_are_detected_and_read(name):
    text, lists = SAMPLES[name]
    form = name.partition(" ")[0]
    assert detect_format(text.encode(), "file").name == form
    assert_same(list(read_lists(io.BytesIO(text.encode()), beam_size=beam_size(form))), lists)


@pytest.mark.parametrize(
    "form", [form for form in FORMATS.values() if form.example], ids=lambda form: form.name
)
def test_examples_are_lists(form):
    assert detect_format(form.example.encode(), "file") is form
    [one] = read(form.example, form.name)
    assert isinstance(one, CandidateList)


def test_formats_that_are_only_read_have_samples():
    assert {name.partition(" ")[0] for name in SAMPLES} == FORMATS.keys() - set(WRITTEN_FORMAT_NAMES)


@pytest.mark.parametrize("name", ["vosk", "azure", "azure (batch)", "google", "aws"])
@pytest.mark.parametrize("layout", ["one line each", "no line breaks", "indented", "array", "CRLF"])
def test_replies_follow_one_another_in_any_layout(name, layout):
    text, lists = SAMPLES[name]
    form = name.partition(" ")[0]
    decoder, replies, end = json.JSONDecoder(), [], 0
    while end < len(text.rstrip()):
        start = len(text) - len(text[end:].lstrip())
        value, end = decoder.raw_decode(text, start)
        replies.append(value)
    replies *= 2
    whole = {
        "one line each": "".join(json.dumps(reply) + "\n" for reply in replies),
        "no line breaks": "".join(map(json.dumps, replies)),
        "indented": "\n\n".join(json.dumps(reply, indent=0) for reply in replies),
        "array": json.dumps(replies, indent=2),
        "CRLF": (text * 2).replace("\n", "\r\n"),
    }[layout]
    assert detect_format(whole.encode(), "file").name == form
    found = read(whole, form)
    assert texts(found) == texts(lists * 2)
    assert [one.name for one in found] == [str(i) for i in range(2 * len(lists))]


SPEECH = [
    ("vosk", {"text": "a"}, "alternatives is missing or null, but must be a non-empty list"),
    ("vosk", {"alternatives": [{"confidence": 1}]}, "alternatives[0].text is missing"),
    ("vosk", {"alternatives": [{"text": "a"}]}, "alternatives[0].confidence is missing"),
    (
        "vosk",
        {"alternatives": [{"text": "a", "confidence": "x"}]},
        "confidence is a string, but must be a number",
    ),
    ("azure", {"RecognitionStatus": "NoMatch"}, "NBest is missing"),
    (
        "azure",
        {"NBest": [{"Lexical": "a", "Confidence": 1.5}]},
        "NBest[0].Confidence is 1.5, but must be from 0 to 1",
    ),
    (
        "azure",
        {"NBest": [{"Lexical": "a", "Confidence": "x"}]},
        "NBest[0].Confidence is 'x'; it must be a finite number",
    ),
    ("azure", {"recognizedPhrases": []}, "recognizedPhrases is an empty list"),
    ("azure", {"recognizedPhrases": [3]}, "recognizedPhrases[0] is a number, but must be an object"),
    ("azure", {"recognizedPhrases": [{"nBest": [{}]}]}, "recognizedPhrases[0].nBest[0].lexical is missing"),
    ("google", {}, "results is missing"),
    (
        "google",
        {"results": [{"alternatives": [{"transcript": None}]}]},
        "results[0].alternatives[0].transcript is missing",
    ),
    ("google", {"response": {}}, "response.results is missing"),
    ("google", {"response": 1}, "response is a number, but must be an object"),
    ("aws", {"results": {}}, "results.segments is missing"),
    (
        "aws",
        {"results": {"segments": [{"alternatives": [{"transcript": "a"}]}]}},
        "alternatives[0].items is missing",
    ),
    (
        "aws",
        {
            "results": {
                "segments": [{"alternatives": [{"transcript": "a", "items": [{"type": "pronunciation"}]}]}]
            }
        },
        "results.segments[0].alternatives[0].items[0].confidence is missing",
    ),
]


@pytest.mark.parametrize(("form", "reply", "problem"), SPEECH)
def test_a_bad_reply_is_one_error_and_keeps_its_number(form, reply, problem):
    text, lists = SAMPLES[form]
    whole = text + json.dumps(reply) + "\n" + text
    items = read(whole, form)
    [(number, told, loses_list)] = problems(items)
    assert (number, problem in told, loses_list) == (text.count("\n") + 1, True, True)
    numbers = [int(one.name) for one in items if not isinstance(one, BadLine)]
    assert numbers == [*range(len(lists)), *range(len(lists) + 1, 2 * len(lists) + 1)]


def test_a_bad_segment_is_lost_alone():
    segments = [
        {"alternatives": [{"transcript": "a"}]},
        {"alternatives": 3},
        {"alternatives": [{"transcript": "b"}]},
    ]
    items = read(json.dumps({"results": segments}), "google")
    assert texts(items) == [["a"], ["b"]]
    assert problems(items) == [(1, "results[1].alternatives is a number, but must be a non-empty list", True)]


GOOD = '{"alternatives": [{"text": "a", "confidence": 1}]}\n'


@pytest.mark.parametrize(
    ("between", "problem"),
    [
        ("not JSON\n", "a member of the document is not an object, or its key is invalid"),
        ('{"alternatives": 1 2}\n', "invalid JSON"),
        ("[1]\n", "a member of the document is not an object"),
        ("]\n", "the document ends incorrectly"),
        ("}\n", "the document ends incorrectly"),
        ('{"alternatives": [{"text": "\\ud800", "confidence": 1}]}\n', "half a surrogate pair"),
    ],
)
def test_damage_between_replies_is_told_once_and_the_rest_is_read(between, problem):
    items = read(GOOD + between + GOOD, "vosk")
    assert texts(items) == [["a"], ["a"]]
    [(number, told, _)] = problems(items)
    assert problem in told
    assert number in {2, 3}


@pytest.mark.parametrize("end", ['{"alternatives": [', '{"alternatives": [{"text": "a', "not JSON"])
def test_a_file_that_ends_in_a_reply_is_told(end):
    items = read(GOOD + end, "vosk")
    assert texts(items) == [["a"]]
    assert [(number, told) for number, told, _ in problems(items)] == [(2, "the document ends in an object")]


def test_an_array_that_does_not_end_is_told():
    items = read(f"[{GOOD}", "vosk")
    assert texts(items) == [["a"]]
    assert len(problems(items)) == 1


LINES = [
    ("nemo-manifest", "{}", "beams is missing or null, but must be a non-empty list"),
    ("nemo-manifest", '{"beams": [["a"]]}', "beams[0] has 1 members, but must have a text and a score"),
    ("nemo-manifest", '{"beams": [["a", null]]}', "beams[0][1] is missing or null, but must be a number"),
    ("nemo-manifest", '{"beams": [[-1.5, "a"]]}', "beams[0][0] is a number, but must be a string"),
    ("nemo-manifest", '{"beams": [["a", 1]], "text": 3}', "text is a number, but must be a string"),
    ("nemo-manifest", '{"beams": [["a", 1]], "audio_filepath": 3}', "audio_filepath is a number"),
    ("nemo-manifest", "{", "invalid JSON"),
    ("sockeye", '{"sentence_id": 1}', "translations[0] is missing or null, but must be a string"),
    ("sockeye", '{"translations": [], "scores": []}', "translations is an empty list"),
    ("sockeye", '{"translations": ["a"]}', "scores is missing or null"),
    ("sockeye", '{"translations": ["a"], "scores": [1, 2]}', "scores has 2 members, but translations has 1"),
    ("sockeye", '{"translations": ["a"], "scores": [[]]}', "scores[0] is an empty list"),
    ("sockeye", '{"translations": ["a"], "scores": ["b"]}', "scores[0] is a string, but must be a number"),
    ("sockeye", '{"translation": "a", "score": 1, "sentence_id": 1.5}', "sentence_id is a number"),
]


@pytest.mark.parametrize(("form", "line", "problem"), LINES)
def test_a_bad_line_loses_its_list_alone(form, line, problem):
    text, lists = SAMPLES[form]
    items = read(line + "\n" + text, form)
    [(number, told, loses_list)] = problems(items)
    assert (number, problem in told, loses_list) == (1, True, True)
    assert texts(items) == texts(lists)


@pytest.mark.parametrize(
    ("form", "line", "problem"),
    [
        ("fairseq", "D-1\tx\tGood night.", "the score of D-1 is 'x'; it must be a finite number"),
        ("fairseq", "D-1\t-inf\tGood night.", "the score of D-1 is '-inf'"),
        ("fairseq", "H-1\t-1.0", "H-1 has no tab between score and hypothesis"),
        ("ctranslate2", "Good night.", "no ||| in the line; a line is 'score ||| hypothesis'"),
        ("ctranslate2", "x ||| Good night.", "the score is 'x'; it must be a finite number"),
    ],
)
def test_a_bad_line_loses_a_candidate(form, line, problem):
    good = {"fairseq": "D-1\t-1\tGood day.", "ctranslate2": "-1 ||| Good day."}[form]
    [(number, told, loses_list)] = problems(items := read(f"{good}\n{line}\n", form))
    assert (number, problem in told, loses_list) == (2, True, False)
    assert texts(items) == [["Good day."]]


def test_fairseqs_hypotheses_are_read_if_no_line_is_detokenised():
    text = "".join(line + "\n" for line in SAMPLES["fairseq"][0].split("\n") if line.startswith("H"))
    first, second = read(text, "fairseq")
    assert [c.text for c in first.candidates] == ["good mor@@ ning .", "good day ."]
    assert second.candidates[0] == Candidate("yes", {"score": -2 * math.log(2)})


def test_a_sentence_past_the_limit_is_told(monkeypatch):
    monkeypatch.setattr("models.reranking.formats.format.MAX_LIST_CANDIDATES", 1)
    items = read("H-3\t-1\ta\nH-3\t-2\tb\n", "fairseq")
    assert texts(items) == [["a"]]
    assert problems(items) == [(2, "list '3' has more than 1 candidates", False)]


def test_references_of_fairseq_are_those_with_the_sentences_numbers(tmp_path):
    (tmp_path / "refs").write_text("Yes.\nGood morning!\n")
    items = read_lists(io.BytesIO(SAMPLES["fairseq"][0].encode()), references=[tmp_path / "refs"])
    assert [one.references for one in items] == [("Good morning!",), ("Yes.",)]


def test_references_of_replies_are_in_order_and_a_lost_reply_has_one(tmp_path):
    (tmp_path / "refs").write_text("the cat\nsilence\nlost\nthe cat\nsilence\n")
    text = SAMPLES["vosk"][0]
    body = (text + '{"text": "x"}\n' + text).encode()
    items = read_lists(io.BytesIO(body), references=[tmp_path / "refs"])
    assert [one.references for one in items if not isinstance(one, BadLine)] == [
        ("the cat",),
        ("silence",),
        ("the cat",),
        ("silence",),
    ]


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b"-0.5 ||| a b", "ctranslate2"),
        (b"0 ||| a b", "moses"),
        (b"12 ||| a ||| lm= -1 ||| -2", "moses"),
        (b"utt ||| a b", "moses"),
        (b"S-0\ta b\nH-0\t-1.5\tc", "fairseq"),
        (b"H-1 a b", "kaldi"),
        (b'[{"RecognitionStatus": "NoMatch"}]', "azure"),
        (b'{"text": "say \\"results\\": [", "beams": [["a", 1]]}', "nemo-manifest"),
    ],
)
def test_similar_formats_are_told_apart(head, form):
    assert detect_format(head, "f").name == form


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - set(WRITTEN_FORMAT_NAMES)))
def test_formats_that_are_only_read_are_not_written(form):
    with pytest.raises(InputError, match=f"output format is '{form}'; it must be one of jsonl, moses"):
        format_lists([], form)
