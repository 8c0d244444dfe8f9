"""The state store: ownership, lifetime and limits."""

import random
from dataclasses import replace

import numpy as np
import pytest

from models.errors import ModelNotFoundError, StateElsewhereError, StatesFullError, UnknownStateError
from models.phrases import PhraseAutomaton
from service.hosting.loaded_model import LoadedModel
from service.hosting.state_store import OVERHEAD_BYTES, StateStore, StoredState
from tests.support.fake_models import FeaturedState

ROW_BYTES = 40


class Vectors(FeaturedState):
    """State with a known size."""

    @property
    def nbytes(self):
        return self.vectors.nbytes


def made(**options):
    limits = {"max_states": 4, "max_bytes": 10**6, "ttl_s": 10, "process": "here"}
    return StateStore(**{**limits, **options})


def kept(loaded=None, width=ROW_BYTES // 4):
    return StoredState(
        loaded or LoadedModel("lm@1", None, None, checkpoint=None), Vectors(np.zeros((1, width), np.float32))
    )


def found(store, handle, owner="me"):
    return store.find(owner, [handle], param="states[]")[0]


def test_a_handle_leads_to_its_state_and_names_the_process():
    store, state = made(), kept()
    (handle,) = store.keep("me", [state])
    assert found(store, handle) is state
    assert handle.startswith("here.")


def test_equal_states_have_handles_that_tell_nothing_of_each_other():
    store, state = made(), kept()
    first, second = (handle.split(".") for handle in store.keep("me", [state, state]))
    assert first[:2] == second[:2]
    assert len(set(first[2]) ^ set(second[2])) > 0
    assert len(first[2]) == 16


@pytest.mark.parametrize("handle", ["", "x", "...", "here.x.y", "here..", "here"])
def test_invalid_handle_is_an_unknown_state(handle):
    with pytest.raises(UnknownStateError, match=r"states\[0\] is no stored state") as caught:
        found(made(), handle)
    assert caught.value.param == "states[0]"


def test_a_state_of_somebody_else_is_as_unknown_as_none():
    store = made()
    (handle,) = store.keep("me", [kept()])
    with pytest.raises(UnknownStateError, match="is no stored state"):
        found(store, handle, owner="you")
    assert store.free("you", [handle]) == 0
    assert found(store, handle)


def test_a_handle_of_another_process_names_it():
    (handle,) = made(process="there").keep("me", [kept()])
    with pytest.raises(StateElsewhereError, match="by the process there, and this is here"):
        found(made(), handle)
    with pytest.raises(StateElsewhereError):
        made().check_process(["x", handle], param="free[]")


def test_states_that_are_not_used_expire_and_used_ones_stay():
    now = [0.0]
    store = made(clock=lambda: now[0])
    used, unused = store.keep("me", [kept(), kept()])
    for now[0] in (6.0, 12.0):
        found(store, used)
    assert len(store) == 1
    with pytest.raises(UnknownStateError, match="not used for 10 s"):
        found(store, unused)
    now[0] = 30.0
    store.expire()
    assert (len(store), store.num_bytes) == (0, 0)


def test_one_state_too_many_is_refused_with_the_numbers_and_none_is_kept():
    store = made()
    store.keep("me", [kept()] * 3)
    with pytest.raises(StatesFullError, match="3 states are stored and 2 are to be added; the maximum is 4"):
        store.keep("me", [kept()] * 2)
    assert len(store) == 3
    with pytest.raises(StatesFullError):
        store.check_capacity("me", 2)
    store.check_capacity("me", 1)


def test_bytes_are_counted_and_given_back():
    size = ROW_BYTES + OVERHEAD_BYTES
    store = made(max_bytes=2 * size)
    handles = store.keep("me", [kept()] * 2)
    assert store.num_bytes == 2 * size
    with pytest.raises(StatesFullError, match=f"take {2 * size} bytes and the 1 to be added take {size};"):
        store.keep("me", [kept()])
    assert store.free("me", [*handles, handles[0], "here.x.y"]) == 2
    assert (len(store), store.num_bytes) == (0, 0)


def are_found(store, owner, handles):
    """Return whether each handle has a state; the states count as used."""
    return [h in store._owned.get(owner, ()) and bool(found(store, h, owner)) for h in handles]


def test_states_beyond_a_share_give_way_to_another_key_least_recently_used_first():
    store = made(max_states=8)
    lent = store.keep("hostile", [kept()] * 8)
    assert are_found(store, "hostile", lent[:2]) == [True] * 2
    mine = store.keep("me", [kept()] * 4)
    assert are_found(store, "hostile", lent) == [True] * 2 + [False] * 4 + [True] * 2
    assert are_found(store, "me", mine) == [True] * 4
    with pytest.raises(UnknownStateError, match="gave way to another key's"):
        found(store, lent[2], "hostile")
    for owner in ("me", "hostile"):
        share = "8, and the share of this key 4, of which 4 are taken: free unused states"
        with pytest.raises(StatesFullError, match=f"8 states are stored and 1 are to be added; .* {share}"):
            store.keep(owner, [kept()])
    assert (len(store), len(store.keep("third", [kept()] * 2))) == (8, 2)
    assert [sum(are_found(store, owner, some)) for owner, some in (("hostile", lent), ("me", mine))] == [3, 3]


def test_bytes_beyond_a_share_give_way_to_another_key():
    size = ROW_BYTES + OVERHEAD_BYTES
    store = made(max_states=99, max_bytes=4 * size)
    small = store.keep("small", [kept()])
    lent = store.keep("hostile", [kept()] * 3)
    mine = store.keep("me", [kept()])
    assert are_found(store, "hostile", lent) == [False, True, True]
    assert are_found(store, "small", small) == are_found(store, "me", mine) == [True]
    assert store.num_bytes == 4 * size


def test_freed_states_can_be_borrowed_again():
    store = made(max_states=8)
    mine = store.keep("me", [kept()] * 4)
    store.keep("hostile", [kept()] * 4)
    with pytest.raises(StatesFullError):
        store.check_capacity("hostile", 1)
    store.free("me", mine)
    assert len(store.keep("hostile", [kept()] * 4)) == 4
    assert len(store) == 8


def test_states_of_a_version_that_is_unloaded_are_forgotten_and_it_is_named():
    store, going, staying = (
        made(),
        LoadedModel("lm@1", None, None, checkpoint=None),
        LoadedModel("lm@2", None, None, checkpoint=None),
    )
    gone, other = store.keep("me", [kept(going), kept(staying)])
    store.free_version(going)
    with pytest.raises(UnknownStateError, match=r"states\[0\] was a state of lm@1, which has been unloaded"):
        found(store, gone)
    assert found(store, other).loaded is staying
    assert len(store) == 1


def test_the_same_version_loaded_again_has_handles_of_its_own():
    store, before, after = (
        made(),
        LoadedModel("lm@1", None, None, checkpoint=None),
        LoadedModel("lm@1", None, None, checkpoint=None),
    )
    (gone,) = store.keep("me", [kept(before)])
    store.free_version(before)
    (again,) = store.keep("me", [kept(after)])
    assert again.split(".")[1] != gone.split(".")[1]
    assert found(store, again).loaded is after


def test_states_of_an_unloaded_version_are_not_kept():
    store, loaded = made(), LoadedModel("lm@1", None, None, checkpoint=None)
    store.free_version(loaded)
    with pytest.raises(ModelNotFoundError, match="lm@1 was unloaded while the text was read"):
        store.keep("me", [kept(), kept(loaded)])
    assert len(store) == 0


def found_at_each_place(weights, ids):
    """Find the longest phrase at each place, from left to right; return the sum of the weights."""
    total, place = 0.0, 0
    while place < len(ids):
        here = [phrase for phrase in weights if tuple(ids[place : place + len(phrase)]) == phrase]
        longest = max(here, key=len, default=None)
        total += weights.get(longest, 0.0)
        place += len(longest or "x")
    return total


@pytest.mark.parametrize("seed", range(100))
def test_phrases_are_worth_the_same_part_by_part_as_in_the_whole(seed):
    draw = random.Random(seed)
    phrases = [tuple(draw.choices([3, 4, 5], k=draw.randint(1, 5))) for _ in range(draw.randint(1, 8))]
    weights = {phrase: draw.uniform(0.1, 5) for phrase in phrases}
    state = StoredState(
        LoadedModel("lm@1", None, None, checkpoint=None),
        None,
        phrases=PhraseAutomaton([*weights], [*weights.values()]),
    )
    ids = np.array(draw.choices([3, 4, 5], k=draw.randint(0, 30)), dtype=np.int64)
    total, now, begin = 0.0, state, 0
    for end in [*sorted(draw.choices(range(len(ids) + 1), k=4)), len(ids)]:
        node, value = now.read_phrases(ids[begin:end])
        now, total, begin = replace(now, node=node), total + value, end
        assert (node, pytest.approx(total)) == state.read_phrases(ids[:end])
        ended = total + state.phrases.taken_back(node)
        assert ended == pytest.approx(found_at_each_place(weights, ids[:end].tolist()))
        assert ended <= total + 1e-9  # credit is never negative


def test_phrases_shared_by_states_count_once_until_the_last_is_freed():
    store, phrases = made(), PhraseAutomaton([(3, 4)], [1.0])
    one, other = (
        StoredState(LoadedModel("lm@1", None, None, checkpoint=None), kept().state, phrases=phrases)
        for _ in range(2)
    )
    first, last = (store.keep("me", [state])[0] for state in (one, other))
    assert store.num_bytes == 2 * one.num_bytes + phrases.num_bytes > 2 * kept().num_bytes
    store.free("me", [first])
    assert store.num_bytes == other.num_bytes + phrases.num_bytes
    store.free("me", [last])
    assert store.num_bytes == 0
