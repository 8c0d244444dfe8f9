"""The check operation: refusals, priority, every family."""

from dataclasses import replace
from itertools import takewhile

import pytest

from models.calls import run_to_completion
from models.checking.error_model import GivenSpan
from models.errors import ContextLengthError, InputError
from models.scoring.model_weights import WeightedModel
from models.text_model import Limits
from service.operations.check import CheckRequest, check
from tests.support.families import NAMES, model, tokenizer
from tests.support.text_models import check as check_directly
from tests.unit.conftest import loaded


@pytest.mark.parametrize(
    ("long", "told"), [("the " * 70, "70 tokens"), ("x" * 65_537, "65537 characters with its context")]
)
def test_a_line_that_is_too_long_is_told_by_its_number_and_the_text_is_the_field(words, finish, long, told):
    limits = Limits(max_texts=1, max_tokens_per_sequence=65, max_new_tokens=1)
    request = CheckRequest(text=f"the cat\n{long}", max_suggestions=1)
    with pytest.raises(ContextLengthError, match=f"line 2 of text has {told}") as caught:
        finish(check([WeightedModel(words)], request, None, limits))
    assert caught.value.param == "text"


TEXT = "w1 w3 w9 w12\nw4 newt w6 w9 w10\nw7 w8"
LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=1)


def given(start, end, *texts):
    return GivenSpan(start, end, tuple((text, -1.0) for text in texts))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_is_told_what_is_told_without_it(name):
    """Words with digits have no neighbours, so the request provides candidates."""
    spans = (given(6, 8, "w4", "w5"), given(13, 20, "w5", "w4 w5"), given(24, 30, "w7 w8 w9"))
    one = replace(loaded(tokenizer()), model=model(name))
    candidates = [
        {
            "start": span.start,
            "end": span.end,
            "suggestions": [{"text": text, "logprob": logprob} for text, logprob in span.suggestions],
        }
        for span in spans
    ]
    request = CheckRequest(text=TEXT, threshold=0.0, max_suggestions=9, candidates=candidates)
    checked, _ = run_to_completion(check([WeightedModel(one)], request, None, LIMITS))
    issues = check_directly(model(name), tokenizer(), TEXT, threshold=0.0, max_suggestions=9, given=spans)
    told = [(issue.start, issue.end, issue.type == "real_word") for issue in checked.issues]
    assert told == [(issue.start, issue.end, issue.known) for issue in issues]
    assert {(6, 8), (13, 20), (24, 30)} <= {(issue.start, issue.end) for issue in issues}
    for one_issue, other in zip(checked.issues, issues, strict=True):
        assert one_issue.probability == pytest.approx(other.probability, rel=1e-3)


def steps_until_a_call(work):
    """Number of steps of an operation before its first call of the model."""
    return len(list(takewhile(lambda step: step is None, work)))


def test_words_of_a_long_line_are_found_in_steps(characters):
    limits = Limits(max_texts=1, max_tokens_per_sequence=100_000, max_new_tokens=1)
    one, two = (
        steps_until_a_call(check([WeightedModel(characters)], CheckRequest(text="ab " * size), None, limits))
        for size in (10_000, 20_000)
    )
    assert two >= 2 * one >= 6


def test_words_of_a_dictionary_are_read_in_steps(words):
    request = CheckRequest(text="w1", dictionary=["x" * 200] * 10_000)
    assert steps_until_a_call(check([WeightedModel(words)], request, None, LIMITS)) > 200


def test_a_reply_has_a_limited_number_of_issues_and_suggestions(words):
    limits = Limits(max_texts=99, max_tokens_per_sequence=1000, max_new_tokens=1, max_reply_entries=8)
    span = {"start": 0, "end": 4, "suggestions": [f"gnu{number}" for number in range(20)]}
    request = CheckRequest(text="newt w1", threshold=0.0, max_suggestions=20, candidates=[span])
    with pytest.raises(InputError, match=r"an entry for each error in text .*: \d+ entries") as refused:
        run_to_completion(check([WeightedModel(words)], request, None, limits))
    assert refused.value.param == "text"


def test_suggestions_in_a_text_without_spaces_are_tried_in_steps(words, finish):
    """Each is tokenised with the whole word in which its span is."""
    span = {"start": 0, "end": 4, "suggestions": [f"newt{number}" for number in range(64)]}
    one, two = (
        finish(check([WeightedModel(words)], CheckRequest(text="w" * size, candidates=[span]), None, LIMITS))[
            1
        ]
        for size in (100, 10_000)
    )
    assert two >= one + 60
