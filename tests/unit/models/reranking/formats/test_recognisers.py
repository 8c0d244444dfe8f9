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
            assert candidate.confidences == wanted.confidences


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


@pytest.mark.parametrize(
    "name", ["vosk", "vosk (single)", "whisper", "azure", "azure (batch)", "google", "aws"]
)
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
    ("vosk", {"result": []}, "alternatives is missing or null, but must be a non-empty list"),
    ("vosk", {"text": 3}, "text is a number, but must be a string"),
    ("vosk", {"alternatives": [{"confidence": 1}]}, "alternatives[0].text is missing"),
    ("vosk", {"alternatives": [{"text": "a"}]}, "alternatives[0].confidence is missing"),
    (
        "vosk",
        {"alternatives": [{"text": "a", "confidence": "x"}]},
        "confidence is a string, but must be a number",
    ),
    ("whisper", {"text": "a"}, "segments is missing or null, but must be a non-empty list"),
    ("whisper", {"segments": []}, "segments is an empty list"),
    ("whisper", {"segments": [3]}, "segments[0] is a number, but must be an object"),
    ("whisper", {"segments": [{"words": []}]}, "segments[0].text is missing or null, but must be a string"),
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


def test_a_bad_segment_of_whisper_is_lost_alone_and_keeps_its_number():
    items = read(json.dumps({"segments": [{"text": " a"}, {"text": None}, {"text": " b"}]}), "whisper")
    assert [(one.name, one.candidates) for one in items if not isinstance(one, BadLine)] == [
        ("0", (Candidate("a"),)),
        ("2", (Candidate("b"),)),
    ]
    assert problems(items) == [(1, "segments[1].text is missing or null, but must be a string", True)]


def test_the_single_text_of_vosk_may_be_empty():
    assert read('{"text": ""}', "vosk") == [CandidateList("0", "", (Candidate(""),))]


SPOKEN = {
    "vosk": (
        "alternatives[0].result[{}].conf",
        lambda text, words: {"alternatives": [{"text": text, "confidence": 1, "result": words}]},
    ),
    "vosk (single)": ("result[{}].conf", lambda text, words: {"result": words, "text": text}),
    "whisper": (
        "segments[0].words[{}].probability",
        lambda text, words: {"segments": [{"text": text, "words": words}]},
    ),
    "azure": (
        "NBest[0].Words[{}].Confidence",
        lambda text, words: {"NBest": [{"Lexical": text, "Confidence": 1, "Words": words}]},
    ),
    "azure (batch)": (
        "recognizedPhrases[0].nBest[0].words[{}].confidence",
        lambda text, words: {
            "recognizedPhrases": [{"nBest": [{"lexical": text, "confidence": 1, "words": words}]}]
        },
    ),
    "google": (
        "results[0].alternatives[0].words[{}].confidence",
        lambda text, words: {"results": [{"alternatives": [{"transcript": text, "words": words}]}]},
    ),
    "google (operation)": (
        "response.results[0].alternatives[0].words[{}].confidence",
        lambda text, words: {
            "response": {"results": [{"alternatives": [{"transcript": text, "words": words}]}]}
        },
    ),
    "aws": (
        "results.segments[0].alternatives[0].items[{}].confidence",
        lambda text, words: {
            "results": {"segments": [{"alternatives": [{"transcript": text, "items": words}]}]}
        },
    ),
}
"""Field of a word's confidence, and a reply of one text with its words, by layout."""

of_each_layout = pytest.mark.parametrize("layout", SPOKEN)


def key_of(layout):
    """Return the key of a word's confidence."""
    return SPOKEN[layout][0].rpartition(".")[2]


def said(layout, text, words):
    """Read a reply with a text and its words, given in full or by their confidences."""
    key = key_of(layout)
    if isinstance(words, tuple):
        words = [{"type": "pronunciation", key: confidence} for confidence in words]
    return read(json.dumps(SPOKEN[layout][1](text, words)), layout.partition(" ")[0])


def kept(items):
    """Return the text and the confidences of the only candidate."""
    [one] = items
    [candidate] = one.candidates
    return candidate.text, candidate.confidences


@of_each_layout
@pytest.mark.parametrize(
    ("confidences", "numbers"),
    [
        ((0.5, 0.25), (0.5, 0.25)),
        ((0, 1), (0.0, 1.0)),
        (("0.5", "25e-2"), (0.5, 0.25)),
        (("0", "1.0"), (0.0, 1.0)),
        ((1e-9, "1e-9"), (1e-9, 1e-9)),
    ],
)
def test_confidences_of_words_are_kept_be_they_numbers_or_strings(layout, confidences, numbers):
    assert kept(said(layout, "a b", confidences)) == ("a b", numbers)


@of_each_layout
@pytest.mark.parametrize("text", [" a b", "a \t b\n", "a\u00a0b c"])
def test_words_with_confidences_are_between_ascii_white_space(layout, text):
    assert kept(said(layout, text, (0.5, 0.25)))[1] == (0.5, 0.25)


@of_each_layout
@pytest.mark.parametrize("confidences", [(0.5,), (0.5, 0.5, 0.5)])
def test_no_confidences_are_kept_if_there_are_fewer_or_more_than_words(layout, confidences):
    assert kept(said(layout, "a b", confidences)) == ("a b", ())


BESIDE_AWS = [layout for layout in SPOKEN if layout != "aws"]
"""Layouts whose words need no confidences; AWS has no other."""


@pytest.mark.parametrize("layout", BESIDE_AWS)
def test_no_confidences_are_kept_if_a_word_has_none(layout):
    assert kept(said(layout, "a b", [{key_of(layout): 0.5}, {"word": "b"}])) == ("a b", ())


@pytest.mark.parametrize("layout", BESIDE_AWS)
@pytest.mark.parametrize("words", [None, [], [{"word": "a"}, {"word": "b"}]])
def test_words_without_confidences_are_no_error(layout, words):
    assert kept(said(layout, "a b", words)) == ("a b", ())


@of_each_layout
@pytest.mark.parametrize(
    ("confidence", "problem"),
    [
        (1.5, "is 1.5, but must be from 0 to 1"),
        (-0.25, "is -0.25, but must be from 0 to 1"),
        ("2", "is 2, but must be from 0 to 1"),
        ("NaN", "is 'NaN'; it must be a finite number"),
        ("x", "is 'x'; it must be a finite number"),
        ("", "is ''; it must be a finite number"),
        (True, "is a boolean, but must be a number"),
        ([0.5], "is a list, but must be a number"),
        (10**400, "is too large for a floating-point number"),
    ],
)
def test_a_word_whose_confidence_is_no_probability_is_told_with_its_field(layout, confidence, problem):
    field = SPOKEN[layout][0].format(1)
    [(number, told, loses_list)] = problems(said(layout, "a b", (0.5, confidence)))
    assert (number, f"{field} {problem}" in told, loses_list) == (1, True, True)


@pytest.mark.parametrize("layout", BESIDE_AWS)
def test_a_word_with_null_as_confidence_has_none(layout):
    assert kept(said(layout, "a b", (0.5, None))) == ("a b", ())


def test_a_word_of_amazon_needs_a_confidence():
    [(_, told, _)] = problems(said("aws", "a b", (0.5, None)))
    assert "items[1].confidence is missing or null, but must be a number" in told


@of_each_layout
def test_a_confidence_that_is_not_json_loses_its_reply(layout):
    told = problems(said(layout, "a b", (0.5, math.nan)))
    assert told == [(1, "invalid JSON: NaN is not a JSON number", True)]


@of_each_layout
@pytest.mark.parametrize(
    ("words", "end", "problem"),
    [
        (3, "", "is a number, but must be a non-empty list"),
        ({"a": 1}, "", "is an object, but must be a non-empty list"),
        ([{"type": "punctuation"}, 3], "[1]", "is a number, but must be an object"),
    ],
)
def test_words_that_are_no_list_of_objects_are_told(layout, words, end, problem):
    field = SPOKEN[layout][0].partition("[{}]")[0]
    [(_, told, loses_list)] = problems(said(layout, "a b", words))
    assert (f"{field}{end} {problem}" in told, loses_list) == (True, True)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ({"text": 3}, "text is a number, but must be a string"),
        ({"result": [{"conf": 2}], "text": "a"}, "result[0].conf is 2, but must be from 0 to 1"),
    ],
)
def test_fields_of_the_single_text_of_vosk_are_told_without_a_dot_before_them(reply, problem):
    assert problems(read(json.dumps(reply), "vosk")) == [(1, problem, True)]


@pytest.mark.parametrize("confidence", ["0.0", "2", None])
def test_punctuation_of_aws_has_no_confidence(confidence):
    word, mark = {"type": "pronunciation"}, {"type": "punctuation", "confidence": confidence}
    items = [{**word, "confidence": "0.5"}, mark, {**word, "confidence": "0.25"}, {"type": "punctuation"}]
    [one] = said("aws", "A, b.", items)
    assert kept([one]) == ("A, b.", (0.5, 0.25))
    assert one.candidates[0].features == pytest.approx({"log_confidence": math.log(0.125)})


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
    body = (text + '{"result": []}\n' + text).encode()
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
        (b'{"result" : [{"conf": 1', "vosk"),
        (b'{"text": " a", "segments": [{"id": 0', "whisper"),
        (b'{"results": {"speaker_labels": {"segments": [', "aws"),
        (b'{"candidates": [{"text": "a", "confidences": [0.5]}], "segments": [', "jsonl"),
        (b'{"text": "say \\"results\\": [", "beams": [["a", 1]]}', "nemo-manifest"),
    ],
)
def test_similar_formats_are_told_apart(head, form):
    assert detect_format(head, "f").name == form


@pytest.mark.parametrize("form", sorted(FORMATS.keys() - set(WRITTEN_FORMAT_NAMES)))
def test_formats_that_are_only_read_are_not_written(form):
    with pytest.raises(InputError, match=f"output format is '{form}'; it must be one of jsonl, moses"):
        format_lists([], form)


def whisper(text, *words):
    """A file of openai-whisper with one segment."""
    parts = [{"word": word, "probability": probability} for word, probability in words]
    return json.dumps({"text": text, "segments": [{"text": text, "words": parts}], "language": "en"})


def test_parts_of_a_word_of_whisper_have_one_confidence():
    parts = ((" a", 0.5), (" well", 0.5), ("-known", 0.5), (" $3", 0.25), (".50", 1.0), (",", 0.5))
    (one,) = read(whisper(" a well-known $3.50,", *parts), "whisper")
    assert one.candidates[0].confidences == (0.5, 0.25, 0.125)


def test_a_long_file_of_whisper_is_recognised_by_its_text():
    text = " a" * 100_000
    assert detect_format(whisper(text).encode()[: 1 << 16], "a.json").name == "whisper"


def test_fields_of_confidences_that_a_format_lacks_are_reported():
    one = CandidateList(None, "", (Candidate("a", confidences=(0.5,)),))
    assert FORMATS["moses"].dropped_fields(one) == {"confidences"}
    assert FORMATS["jsonl"].dropped_fields(one) == set()
