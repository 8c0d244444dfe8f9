"""A bad candidate of any format is left out, and told before its list, over HTTP in it; files that are no lists."""

import io
import json
from functools import partial

import pytest

from models.errors import FormatError
from models.reranking.features import is_reserved
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import FORMATS, detect_format, read_lists
from service.local.ask import UNLIMITED
from service.operations.rerank_request import RerankItem, rerank_items


def jsonl(*lists):
    return "".join(json.dumps(one) + "\n" for one in lists)


def speech(text, score, good, bad):
    """A reply with a good, a bad and a good alternative, then one with a good one."""
    return [[{text: "a", score: good}, bad, {text: "c", score: good}], [{text: "d", score: good}]]


def items(word="0.5"):
    return [{"type": "pronunciation", "confidence": word}]


GOOD, BAD = {"text": "a", "features": {"am": -1}}, {"text": "b", "features": {"am": "-inf"}}
AZURE = speech("Lexical", "Confidence", 0.5, {"Lexical": "b", "Confidence": 2})
AWS = speech("transcript", "items", items(), {"transcript": "b", "items": items("2")})
VOSK = speech("text", "confidence", 2, {"text": "b"})
GOOGLE = speech("transcript", "confidence", 0.5, {"transcript": 5})
UNSURE = {
    "vosk": speech("text", "confidence", 2, {"text": "b", "confidence": 2, "result": [{"conf": 2}]}),
    "azure": speech(
        "Lexical", "Confidence", 0.5, {"Lexical": "b", "Confidence": 1, "Words": [{"Confidence": "x"}]}
    ),
    "google": speech("transcript", "confidence", 0.5, {"transcript": "b", "words": [{"confidence": -1}]}),
}
"""Replies in which the confidence of a word is bad."""
FILES = {
    "jsonl": jsonl({"candidates": [GOOD, BAD, GOOD | {"text": "c"}]}, {"candidates": [GOOD | {"text": "d"}]}),
    "jsonl words": jsonl(
        {"candidates": [GOOD, {"text": "b", "confidences": ["x"]}, GOOD | {"text": "c"}]},
        {"candidates": [GOOD | {"text": "d"}]},
    ),
    "moses": "0 ||| a ||| am= -1 ||| -1\n0 ||| b ||| am= -inf ||| -inf\n0 ||| c ||| am= -2 ||| -2\n1 ||| d\n",
    "moses first": "0 ||| b ||| am= x\n0 ||| a ||| am= 1\n0 ||| c ||| am= 2\n1 ||| d\n",
    "moses last": "0 ||| a ||| am= 1\n0 ||| c ||| am= 2\n0 ||| b ||| am= x\n1 ||| d\n",
    "kaldi": "u-1 a\nu-2\xff b\nu-3 c\nv-1 d\n",
    "fairseq": "H-0\t-1\ta\nH-0\t-inf\tb\nH-0\t-2\tc\nH-1\t-1\td\n",
    "mlm-scoring": json.dumps(
        {
            "u": {"hyp_1": {"text": "a", "score": 1}, "hyp_2": {"text": "b"}, "hyp_3": {"text": "c", "score": 1}},
            "v": {"hyp_1": {"text": "d", "score": 1}},
        }
    ),
    "hyporadise": json.dumps(
        [{"input": ["a", "b", "c"], "score": [1, "x", None]}, {"input": ["d"], "score": [1]}]
    ),
    "sockeye": jsonl(
        {"sentence_id": 1, "translations": ["a", "b", "c"], "scores": [[0.5], ["x"], [1]]},
        {"sentence_id": 2, "translation": "d", "score": 1},
    ),
    "nemo-manifest": jsonl({"beams": [["a", -1], ["b"], ["c", -2]]}, {"beams": [["d", -1]]}),
    "vosk": jsonl(*({"alternatives": one} for one in VOSK)),
    "vosk words": jsonl(*({"alternatives": one} for one in UNSURE["vosk"])),
    "azure": jsonl(*({"NBest": one} for one in AZURE)),
    "azure words": jsonl(*({"NBest": one} for one in UNSURE["azure"])),
    "google": json.dumps({"results": [{"alternatives": one} for one in GOOGLE]}),
    "google words": json.dumps({"results": [{"alternatives": one} for one in UNSURE["google"]]}),
    "aws": jsonl(*({"results": {"segments": [{"alternatives": one}]}} for one in AWS)),
}  # fmt: skip


def encoded(text):
    return text.encode("latin-1")


@pytest.mark.parametrize("name", FILES)
def test_the_other_candidates_stay_and_the_bad_one_is_told_before_its_list(name):
    found = list(read_lists(io.BytesIO(encoded(FILES[name])), format_name=name.split()[0]))
    bad, first, second = found
    assert [c.text for c in first.candidates] == ["a", "c"]
    assert [c.text for c in second.candidates] == ["d"]
    assert (isinstance(bad, BadLine), bad.loses_list) == (True, False)


@pytest.mark.parametrize("name", [name for name in FILES if name.split()[0] != "jsonl"])
def test_over_http_each_list_is_one_item_and_has_the_error_of_its_bad_candidate(name):
    asked = rerank_items(
        encoded(FILES[name]), name.split()[0], UNLIMITED, reserved=partial(is_reserved, models=())
    )
    first, second = asked
    assert (type(first), type(second)) == (RerankItem, RerankItem)
    assert (len(first.given.problems), second.given.problems) == (1, ())
    assert first.given.problems[0].startswith("body:")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("moses", "0 ||| a\n1 ||| b ||| am= x\n1 ||| c ||| am= y\n2 ||| d\n"),
        ("fairseq", "H-0\t-1\ta\nT-1\tc\nH-1\tx\tb\nH-1\ty\tc\nH-2\t-1\td\n"),
        ("hyporadise", '[{"input": ["a"]}, {"input": [1, 2]}, {"input": ["d"]}]'),
        ("google", '{"results": [{"alternatives": [{}]}, {"alternatives": [2, 3]}, {"alternatives": [{}]}]}'),
    ],
)
def test_a_list_of_bad_candidates_only_is_one_error(name, text):
    found = list(rerank_items(text.encode(), name, UNLIMITED, reserved=lambda _: False))
    assert [isinstance(one, RerankItem) for one in found] == [True, False, True]


def test_an_omitted_transcript_is_an_empty_text():
    reply = {
        "results": [{"alternatives": [{"transcript": "a"}, {"confidence": 0.2}]}, {"alternatives": [{}]}]
    }
    found = list(read_lists(io.BytesIO(json.dumps(reply).encode())))
    assert [[c.text for c in one.candidates] for one in found] == [["a", ""], [""]]


@pytest.mark.parametrize("folder", ["one", "several"])
def test_a_folder_has_the_lists_that_are_readable(tmp_path, folder):
    (tmp_path / "a").write_text("-1 -2 1 a\n-x 1 1 b\n")
    (tmp_path / "b").write_text("-x 1 1 b\n-y 1 1 b\n")
    found = list(read_lists(tmp_path / "b" if folder == "one" else tmp_path, format_name="srilm"))
    lost = [one.loses_list for one in found if isinstance(one, BadLine)]
    assert lost == ([False, True] if folder == "one" else [False, False, True])


@pytest.mark.parametrize(
    ("hypothesis", "text"),
    [
        ("rain |0-0| falls |1-2| on roofs |3-4|", "rain falls on roofs"),
        ("rain falls |0-2| on |3-3| roofs |10-14|", "rain falls on roofs"),
        ("rain |0-0,wa=0-0 ,total=-2.5| falls |1-1,wa= ,total=-1|", "rain falls"),
        ("|0-0|", ""),
        ("a |0-1| b", "a |0-1| b"),
        ("a|0-1|", "a|0-1|"),
    ],
)
def test_marks_of_source_positions_are_no_words(hypothesis, text):
    (one,) = read_lists(io.BytesIO(f"0 ||| {hypothesis} ||| am= -1 ||| -1\n".encode()))
    assert (one.candidates[0].text, one.candidates[0].features) == (text, {"am": -1, "score": -1})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("call-7 1 0.00 0.31 rain 0.98\ncall-7 1 0.31 0.40 falls 0.87\n", "words with times"),
        ("call-7 A 0.00 0.31 rain\ncall-7 A 0.31 0.40 falls\ncall-8 A 0.1 0.2 on\n", "words with times"),
        (
            "call-1 1 spk-1 0.5 2.31 <o,f0> rain falls\ncall-1 1 spk-1 3.1 4.40 <o,f0> on\n",
            "words with times",
        ),
        ("utt-1 -12.5 -4.25 rain falls\nutt-2 -13.5 -4.5 train falls\n", "scores"),
        ("utt-1 1523.4\nutt-2 1525.1\n", "scores"),
        ("utt-1 [ 1523.4 ]\nutt-7 [ 1525.1 ]\n", "scores"),
        ("1272-128104-0000 mister quilter is\n1272-128104-0001 nor is mister\n", "transcripts"),
        ("rec-7 rain falls\nrec-8 rain falls again\n", "transcripts"),
        ("rec-1 rain falls\nrec-2 on roofs\nrec-3 again\n", "transcripts"),
        ("spk-1 rain falls\nspk-b rain\n", "transcripts"),
    ],
)
def test_lines_with_a_word_and_a_number_are_not_always_lists_of_kaldi(text, problem):
    with pytest.raises(FormatError, match=f"seems to have {problem}.*--format kaldi"):
        detect_format(text.encode(), "file")
    assert list(read_lists(io.BytesIO(text.encode()), format_name="kaldi"))


@pytest.mark.parametrize(
    "text",
    [
        "utt-1 rain falls\nutt-10 train falls\nutt-2 rain fall\nv-1 on\n",
        "utt-1 1 2 3 4 5\nutt-2 1 2 3 4 6\nutt-3 1 2 2 3 4\n",
        "utt-1\nutt-2 a\n",
        "utt-1\nutt-2 uh\nutt-3 um\n",
        "utt-1 " + "a " * 50_000 + "\nutt-2 a b\n",
        "a-b-1 one\n",
        "u-1 a\nu-2 b\n",
    ],
)
def test_lists_of_kaldi_are_told_by_their_first_lines(text):
    assert detect_format(text.encode(), "file").name == "kaldi"


def test_every_format_of_one_stream_is_tried():
    """SRILM has one list per file; NeMo and CTranslate2 tell lists apart by their number of lines only.

    A list of Whisper has one candidate.
    """
    tried = {name.split()[0] for name in FILES}
    assert {*FORMATS} - tried == {"srilm", "nbestlist1.0", "nbestlist2.0", "nemo", "ctranslate2", "whisper"}
