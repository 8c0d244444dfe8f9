"""Checkpoints published by an earlier version answer every endpoint as that version did.

N-gram models and networks in int8 give the same bytes; networks in float32 give numbers within 1e-5. Times, memory
and request ids are omitted. Phrases are searched for in another order, so only the best ones are compared, and their
probabilities within 1 %; n-gram models of words break ties in another way; words of pieces and characters are summed
in another order, so they have the tolerance of float32. Typing errors are now looked up in the lexicon of pieces and
characters, so their corrections differ. `record.py` explains how the replies were recorded.
"""

import contextlib
import functools
import json
from functools import partial
from pathlib import Path

import pytest

from tests.compatibility.questions import WORD_NGRAMS, exact, in_float32, service_topics, topics_of
from tests.compatibility.replies import (
    REPLIES,
    Handles,
    Service,
    ask,
    close,
    is_best,
    path_of,
    read,
    same,
    same_phrases,
    same_words,
)

TREE = Path(__file__).parents[2]
CHECKPOINTS = {"int8": exact(), "float32": in_float32()}
CASES = [
    *(
        (precision, checkpoint.name, topic, questions)
        for precision, checkpoints in CHECKPOINTS.items()
        for checkpoint in checkpoints
        for topic, questions in topics_of(checkpoint, precision).items()
    ),
    *(("int8", "service", topic, questions) for topic, questions in service_topics().items()),
]


SEARCHED = ("-char", "-bpe", "-unigram", "ngram-folded")
"""Ends of names of models whose words are searched for in pieces or characters."""


def is_of_words(question):
    """True for predictions of words instead of tokens."""
    return isinstance(question.body, dict) and question.body.get("unit") == "word"


@pytest.fixture(scope="module")
def service_of(tmp_path_factory):
    """Return the service of a precision, started on first use; compiled kernels are reused."""
    with contextlib.ExitStack() as opened:

        @functools.cache
        def start(precision):
            folder, checkpoints = tmp_path_factory.mktemp(precision), CHECKPOINTS[precision]
            return opened.enter_context(contextlib.closing(Service(TREE, folder, checkpoints, precision)))

        yield start


@pytest.mark.parametrize(
    ("precision", "name", "topic", "questions"),
    CASES,
    ids=[f"{name}-{precision}-{topic}" for precision, name, topic, _ in CASES],
)
def test_replies_are_as_recorded(service_of, precision, name, topic, questions):
    recorded = read(path_of(REPLIES / precision, name))[topic]
    client, handles = service_of(precision).client, Handles()
    for question, expected in zip(questions, recorded, strict=True):
        given = ask(client, question, handles)
        has_phrases = isinstance(question.body, dict) and question.body.get("max_words", 1) > 1
        is_searched = question.path == "/v1/autocomplete" or is_of_words(question)
        is_summed_apart = name in WORD_NGRAMS and question.path == "/v1/autocomplete"
        agree = close if precision == "float32" else partial(same, within=1e-6 if is_summed_apart else 0.0)
        if precision == "int8" and is_searched and name.endswith(SEARCHED):
            agree = same_words
        if is_searched and name.endswith(SEARCHED) and question.body.get("fuzzy"):
            told = given.get("json") or json.loads(given["text"])
            assert told["completions"]
            continue
        if has_phrases and name in WORD_NGRAMS:
            # of words that tie at a search's limit, others may be kept: both replies must be right
            body = question.body | {"limit": 100, "rank": "probability"}
            every = {"json": client.post(question.path, json=body).raise_for_status().json()}
            assert is_best(expected, every, question.body["limit"]), (name, expected, every)
            assert is_best(given, every, question.body["limit"]), (name, given, every)
            continue
        assert (same_phrases if has_phrases else agree)(expected, given), (
            f"{name} in {precision}: {question.method} {question.path} {question.body}\n"
            f"was {expected}\nis  {given}"
        )
