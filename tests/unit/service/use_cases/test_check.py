"""The check use case: refusals, priority, every family."""

import contextlib
from itertools import pairwise

import pytest

from models.checking.error_model import GivenSpan
from models.errors import ContextLengthError
from service.engine.calls import run_single
from service.engine.job import run_to_completion
from service.use_cases.check import CheckRequest, check
from service.use_cases.inputs import Limits
from service.use_cases.model_weights import WeightedModel
from tests.support.families import NAMES, model, tokenizer
from tests.support.text_models import check as check_directly
from tests.unit.service.conftest import loaded


@pytest.mark.parametrize(
    ("long", "told"), [("the " * 70, "70 tokens"), ("x" * 65_537, "65537 characters with its context")]
)
def test_a_line_that_is_too_long_is_told_by_its_number_and_the_text_is_the_field(words, finish, long, told):
    limits = Limits(max_texts=1, max_tokens_per_sequence=65, max_new_tokens=1)
    request = CheckRequest(text=f"the cat\n{long}", max_suggestions=1)
    with pytest.raises(ContextLengthError, match=f"line 2 of text has {told}") as caught:
        finish(check([WeightedModel(words)], request, None, limits))
    assert caught.value.parameter == "text"


TEXT = "w1 w3 w9 w12\nw4 newt w6 w9 w10\nw7 w8"
LIMITS = Limits(max_texts=100, max_tokens_per_sequence=1000, max_new_tokens=1)


def given(start, end, *texts):
    return GivenSpan(start, end, tuple((text, -1.0) for text in texts))


@pytest.mark.parametrize("name", NAMES)
def test_the_engine_is_told_what_is_told_without_it(name):
    """Words with digits have no neighbours, so the request provides candidates."""
    spans = (given(6, 8, "w4", "w5"), given(13, 20, "w5", "w4 w5"), given(24, 30, "w7 w8 w9"))
    one = loaded(tokenizer())
    one.checkpoint.model = model(name)
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


class CountedDictionary:
    """Dictionary without words that counts what is looked up."""

    def __init__(self):
        self.num_lookups = 0

    def __len__(self):
        return 0

    def __contains__(self, word):
        self.num_lookups += 1
        return False

    def nearby(self, *_):
        return ()


def test_words_are_looked_up_in_steps_between_other_requests(words):
    letters = "abcdefghijklmnopqrstuvwxyz"
    text = " ".join(f"{a}{b}xq" for a in letters for b in letters)
    limits = Limits(max_texts=1, max_tokens_per_sequence=1000, max_new_tokens=1)
    dictionary, lookups, call = CountedDictionary(), [0], None
    work = check([WeightedModel(words)], CheckRequest(text=text), None, limits, (dictionary,))
    with contextlib.suppress(StopIteration):
        while True:
            call = work.send(None if call is None else run_single(call))
            lookups.append(dictionary.num_lookups)
    lookups.append(dictionary.num_lookups)
    assert lookups[-1] > len(letters) ** 2
    assert max(after - before for before, after in pairwise(lookups)) < 200
