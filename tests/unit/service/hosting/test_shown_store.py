"""Shown completions by owner and session: bounds, expiry, copies."""

from models.completion.shown import ShownCompletions
from service.hosting.shown_store import ShownStore


def shown(*texts):
    one = ShownCompletions()
    one.add("", 0, texts)
    return one


def after(store, owner="key", session="s"):
    return store.find(owner, session).before("a", 0)


def test_what_is_kept_is_found_by_its_owner_and_session_only():
    store = ShownStore()
    store.keep("key", "s", shown("one"))
    assert after(store) == ("one",)
    assert after(store, owner="other") == after(store, session="t") == ()


def test_a_request_that_is_not_answered_changes_nothing():
    store = ShownStore()
    store.keep("key", "s", shown("one"))
    store.find("key", "s").add("a", 0, ["two"])
    assert after(store) == ("one",)


def test_what_was_shown_long_ago_is_offered_again():
    now = [0.0]
    store = ShownStore(clock=lambda: now[0])
    store.keep("key", "s", shown("one"))
    now[0] = 599
    assert after(store) == ("one",)
    now[0] = 601
    assert after(store) == ()


def test_the_sessions_used_longest_ago_are_forgotten_first():
    store = ShownStore(max_bytes=5000)
    for number in range(50):
        store.keep("key", f"s{number}", shown("one"))
        store.find("key", "s0")
    assert len(store) == 4
    assert [after(store, session=f"s{number}") for number in (0, 1, 49)] == [("one",), (), ("one",)]
    store.keep("key", "s48", shown("x" * 500))  # takes the place of two
    assert [after(store, session=f"s{number}") for number in (0, 47, 49)] == [(), (), ("one",)]
