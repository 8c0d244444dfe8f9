"""Parts of autocomplete: letter case, cached model results, users' words and sessions."""

import asyncio

import numpy as np
import pytest

from models.errors import SupersededError
from models.words import match_beginning
from service.engine.prefix_cache import NextTokenCache, NextTokenEntry
from service.routes.request import AutocompleteSessions


@pytest.mark.parametrize(
    ("typed", "word", "told"),
    [
        ("hel", "hello", "hello"),
        ("Hel", "hello", "Hello"),
        ("HEL", "hello", "HELLO"),
        ("H", "hello", "Hello"),
        ("hEl", "hello", "hEllo"),
        ("par", "Paris", "Paris"),
        ("PAR", "Paris", "Paris"),
        ("Pa", "Paris", "Paris"),
        ("", "hello", "hello"),
        ("I'", "i'm", "I'm"),
        ("STRASS", "straße", "straße"),
        ("שלו", "שלום", "שלום"),
    ],
)
def test_a_word_is_told_in_the_case_in_which_it_was_begun(typed, word, told):
    assert match_beginning(typed, word) == told


@pytest.mark.parametrize(
    ("typed", "told"), [("Hle", "Hello"), ("HLE", "HELLO"), ("hle", "hello"), ("hLe", "hello")]
)
def test_of_a_mistyped_beginning_the_first_capital_counts(typed, told):
    assert match_beginning(typed, "hello", corrected=True) == told


def look(size=100):
    return NextTokenEntry(3, None, np.zeros((1, size), np.float32))


def test_looks_are_found_by_the_very_text():
    looks = NextTokenCache(10_000)
    looks.put("the cat", found := look())
    assert looks.find("the cat") is found
    assert looks.find("the cat ") is None


def test_looks_are_bounded_and_the_least_recently_used_go_first():
    looks = NextTokenCache(3000)
    for text in "abc":
        looks.put(text, look())
        looks.find("a")
    looks.put("d", look())
    assert [text for text in "abcd" if looks.find(text)] == ["a", "c", "d"]
    assert 0 < looks.num_bytes <= 3000


def test_a_look_larger_than_all_may_be_is_not_kept():
    looks = NextTokenCache(1000)
    looks.put("a", look(1000))
    looks.put("b" * 1000, look(1))
    assert (len(looks), looks.num_bytes) == (0, 0)


def test_a_look_that_is_kept_again_counts_once():
    looks = NextTokenCache(3000)
    for _ in range(9):
        looks.put("a", look())
    assert (len(looks), looks.num_bytes < 1000) == (1, True)


def in_a_loop(*bodies):
    """Results of successive (session, duration) requests, and the number of open sessions."""

    async def request(sessions, session, seconds):
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(seconds, lambda: answer.done() or answer.set_result("done"))
        try:
            with sessions.newest("key", session, answer):
                return await answer
        except SupersededError:
            return "superseded"

    async def main():
        sessions = AutocompleteSessions()
        tasks = []
        for session, seconds in bodies:
            tasks.append(asyncio.create_task(request(sessions, session, seconds)))
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks), len(sessions._newest)

    return asyncio.run(main())


def test_the_newest_request_of_a_session_alone_is_answered():
    outcomes, left = in_a_loop(("a", 0.05), ("b", 0.01), ("a", 0.05), ("a", 0.0))
    assert outcomes == ["superseded", "done", "superseded", "done"]
    assert left == 0


def test_a_request_that_is_cancelled_by_others_is_not_called_superseded():
    async def main():
        sessions = AutocompleteSessions()
        answer = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(answer.cancel)
        with sessions.newest("key", "a", answer):
            await answer

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())
