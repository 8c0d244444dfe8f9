"""What checking refuses, and whom it waits for, without HTTP."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from models.checking.error_model import CheckSettings
from models.errors import ContextLengthError
from service.use_cases import check as use_cases_check
from service.use_cases.check import CheckCommand, check, checker_of
from service.use_cases.inputs import Limits


@pytest.mark.parametrize(
    ("long", "told"), [("the " * 70, "70 tokens"), ("x" * 65_537, "65537 characters with its context")]
)
def test_a_line_that_is_too_long_is_told_by_its_number_and_the_text_is_the_field(words, finish, long, told):
    limits = Limits(max_texts=1, max_tokens_per_sequence=65, max_new_tokens=1)
    command = CheckCommand(f"the cat\n{long}", 0.5, 1, CheckSettings())
    with pytest.raises(ContextLengthError, match=f"line 2 of text has {told}") as caught:
        finish(check(words, command, limits))
    assert caught.value.parameter == "text"


def test_who_has_a_checker_does_not_wait_for_another_to_be_built(words):
    built = checker_of(words)
    with ThreadPoolExecutor(1) as pool, use_cases_check._lock:
        assert pool.submit(checker_of, words).result(timeout=5) is built
