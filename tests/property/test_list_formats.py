"""Formats of n-best lists: round trips of every list that they can represent, and arbitrary bytes."""

import contextlib
import io
import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import FormatError, InputError
from models.files import collapse_spaces, count_words
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.formats.format import BadLine, SourceLines
from models.reranking.formats.reader import FORMAT_NAMES, FORMATS, read_bytes, read_lists
from models.reranking.formats.srilm import BYTELOG
from models.reranking.formats.writer import write_lists
from tests.support.written_lists import format_lists

# all of Unicode except the byte-order mark, with frequent characters that are special in some format
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\ufeff")
any_text = st.text(
    st.one_of(st.sampled_from('ab |=:\t\n\r"\\{}[],()-0\u3000\x85\u2028'), characters), max_size=12
)
texts = any_text.map(collapse_spaces)
words = any_text.map(lambda text: collapse_spaces(text).replace(" ", "")).filter(bool)
numbers = st.floats(-1e12, 1e12)
probabilities = st.floats(0, 1)
names = st.one_of(
    words, st.sampled_from(["lm", "score", "total", "d_0", "d_1", "d_2", "d", "feature_0", "am"])
)


def candidates(text=texts, **features):
    """Candidates with exactly these features, or with arbitrary ones."""
    scores = st.fixed_dictionaries(features) if features else st.dictionaries(names, numbers, max_size=4)
    return st.builds(Candidate, text, scores)


def lists(candidate, name=words, **more):
    return st.builds(
        lambda name, few, **rest: CandidateList(name, "", tuple(few), **rest),
        name,
        st.lists(candidate, min_size=1, max_size=4),
        **more,
    )


def several(one, key=lambda one: one.name):
    return st.lists(one, max_size=4, unique_by=key)


def reread(written, name, **options):
    body = "".join(format_lists(written, name)).encode()
    return list(read_lists(io.BytesIO(body), format_name=name, source_name="body", **options))


def with_confidences(candidate):
    """The candidate with any confidence for each word."""
    count = count_words(candidate.text)
    each = st.lists(probabilities, min_size=count, max_size=count)
    return each.map(lambda some: replace(candidate, confidences=tuple(some)))


references = st.lists(any_text, max_size=3).map(tuple)
given_any = candidates(any_text)
full = st.builds(
    CandidateList,
    st.none() | any_text,
    any_text,
    st.lists(given_any | given_any.flatmap(with_confidences), min_size=1, max_size=4).map(tuple),
    references,
    st.none() | any_text,
)


@given(st.lists(full, max_size=4))
def test_jsonl_carries_all(some):
    assert reread(some, "jsonl") == some


def moses_can_say(one):
    said = [one.name, *(c.text for c in one.candidates), *(n for c in one.candidates for n in c.features)]
    return not any("|||" in text or text.startswith("WordScores") for text in said)


@given(several(lists(candidates()).filter(moses_can_say)))
def test_moses_carries_ids_texts_and_features(some):
    assert reread(some, "moses") == some


def srilm_can_say(one):
    return not any({"<s>", "</s>", "-pau-"} & set(candidate.text.split()) for candidate in one.candidates)


@given(lists(candidates(am=numbers, old_lm=numbers, nwords=numbers), st.just("body")).filter(srilm_can_say))
def test_srilm_carries_three_scores(one):
    (again,) = reread([one], "srilm")
    assert [c.text for c in again.candidates] == [c.text for c in one.candidates]
    for read, given_ in zip(again.candidates, one.candidates, strict=True):
        assert all(
            math.isclose(read.features[n], v, rel_tol=1e-14, abs_tol=1e-300)
            for n, v in given_.features.items()
        )


bytelogs = st.integers(-(10**9), 10**9).map(lambda count: BYTELOG * count)
plain_words = st.lists(st.text("abc'é-", min_size=1), min_size=1, max_size=3).map(" ".join)


@given(
    lists(candidates(score=bytelogs), st.just("body")).filter(srilm_can_say),
    lists(candidates(plain_words, score=bytelogs, am=bytelogs, old_lm=bytelogs), st.just("body")),
)
def test_decipher_carries_whole_bytelogs(first, second):
    assert reread([first], "nbestlist1.0") == [first]
    assert reread([second], "nbestlist2.0") == [second]


@settings(max_examples=25, deadline=None)  # file access is slow
@given(several(lists(candidates(am=numbers, old_lm=numbers, other=numbers))))
def test_kaldi_carries_ids_texts_and_features(some):
    with tempfile.TemporaryDirectory() as folder:
        write_lists(some, Path(folder) / "nbest", "kaldi")
        assert list(read_lists(Path(folder) / "nbest")) == some


@given(several(lists(candidates(score=numbers), name=any_text, references=references.map(lambda r: r[:1]))))
def test_mlm_scoring_carries_ids_scores_and_a_reference(some):
    some = [replace(one, references=tuple(map(collapse_spaces, one.references))) for one in some]
    assert reread(some, "mlm-scoring") == some


padded = lists(candidates(), st.none() | any_text, references=texts.map(lambda text: (text,)) | st.just(()))


def hyporadise_can_say(one):
    own = {"id", "input", "output", "am_score"}
    distinct = len({c.text for c in one.candidates}) == len(one.candidates)
    return distinct and not any(own & c.features.keys() for c in one.candidates)


@given(st.lists(padded.filter(hyporadise_can_say), max_size=4))
def test_hyporadise_carries_ids_features_and_a_reference(some):
    assert reread(some, "hyporadise") == some


@given(st.integers(1, 4), st.data())
def test_nemo_carries_beams_of_one_size(size, data):
    beams = st.lists(candidates(score=numbers), min_size=size, max_size=size).map(tuple)
    some = data.draw(st.lists(st.builds(CandidateList, st.none(), st.just(""), beams), max_size=4))
    assert reread(some, "nemo", beam_size=size) == some


SPOKEN = {
    "vosk": ("conf", lambda text, words: {"result": words, "text": text}),
    "whisper": ("probability", lambda text, words: {"segments": [{"text": text, "words": words}]}),
    "azure": (
        "Confidence",
        lambda text, words: {"NBest": [{"Lexical": text, "Confidence": 1, "Words": words}]},
    ),
    "google": (
        "confidence",
        lambda text, words: {"results": [{"alternatives": [{"transcript": text, "words": words}]}]},
    ),
}
"""Key of a word's confidence, and a reply of one text with its words, by format."""


@given(st.sampled_from(sorted(SPOKEN)), any_text, st.lists(probabilities, max_size=4))
def test_recognisers_confidences_are_kept_if_there_is_one_for_each_word(name, text, confidences):
    key, reply = SPOKEN[name]
    body = json.dumps(reply(text, [{key: confidence} for confidence in confidences])).encode()
    [one] = read_bytes(body, name)
    kept = tuple(confidences) if len(confidences) == count_words(text) else ()
    assert [candidate.confidences for candidate in one.candidates] == [kept]


def beam_size(name):
    return {"beam_size": 2} if FORMATS[name].needs_beam_size else {}


REPLIES = [
    b'{"alternatives": [{"text": "a", "confidence": 1}]}',
    b'{"results": [{"alternatives": [{"transcript": "a"}]}]}',
    b'{"NBest": [{"Lexical": "a", "Confidence": 0.5}]}',
    b'{"result": [{"word": "a", "conf": 1}], "text": "a"}',
    b'{"segments": [{"text": " a", "words": [{"word": " a", "probability": 0.5}]}]}',
    b'{"sentence_id": 1, "translation": "a", "score": 1}',
    b'{"beams": [["a", -1]]}\n',
]
pieces = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"\n", b"|||", b"{", b"}", b"[", b"]", b'"', b'{"candidates": [{"text": "a"}]}\n', b"u-1 a\n"]
    ),
    st.sampled_from(
        [b"NBestList2.0\n", b"(1) a ( st: 0 et: 1 g: 1 a: 1 )\n", b'"input": ["a"]', b'"hyp_1": {}', b"nan"]
    ),
    st.sampled_from(
        [b"0 ||| a ||| b= 1 ||| 2\n", b"a\t1\n", b"1 2 3 a\n", b"1e999", b",", b'"u": ', b"\\u", b"\xff"]
    ),
    st.sampled_from([b"H-1\t-1\ta\n", b"D-1\t-1\tb\n", b"T-1\tc\n", b"-1.5 ||| a\n", *REPLIES]),
)
garbage = st.lists(pieces, max_size=12).map(b"".join)


@pytest.mark.parametrize("name", FORMAT_NAMES)
@given(garbage)
def test_any_bytes_give_lists_or_bad_lines(name, body):
    for item in FORMATS[name].read(SourceLines("body", [body], FORMATS[name], **beam_size(name))):
        if isinstance(item, BadLine):
            assert 1 <= item.number <= body.count(b"\n") + 1
            assert str(item).startswith(f"body:{item.number}: ")
        else:
            assert item.candidates
            values = [v for c in item.candidates for v in (*c.features.values(), *c.confidences)]
            assert all(map(math.isfinite, values))
            "".join(c.text for c in item.candidates).encode()


@given(
    st.lists(
        st.tuples(st.sampled_from(REPLIES[:1]), st.sampled_from([b"", b" ", b"\n", b"x\n", b"]"])), min_size=1
    )
)
def test_damage_between_replies_loses_no_reply(parts):
    body = b"".join(reply + between for reply, between in parts)
    items = read_bytes(body, "vosk")
    assert sum(not isinstance(item, BadLine) for item in items) == len(parts)


@given(garbage)
def test_any_file_gives_lists_or_a_format_error(body):
    stream = io.BytesIO(body)
    with contextlib.suppress(FormatError, InputError):
        list(read_lists(stream))
    assert not stream.closed


@given(several(lists(candidates()).filter(moses_can_say)), st.data())
def test_a_bad_line_is_lost_alone(some, data):
    lines = "".join(format_lists(some, "moses")).encode().split(b"\n")
    place = data.draw(st.integers(0, len(lines) - 1))
    lines.insert(place, b"no bars \xff")
    items = list(read_bytes(b"\n".join(lines), "moses"))
    assert [item for item in items if not isinstance(item, BadLine)] == some
    (bad,) = (item for item in items if isinstance(item, BadLine))
    assert (bad.number, "UTF-8" in bad.problem) == (place + 1, True)
