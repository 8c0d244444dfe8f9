"""Cached prefix states: exact, bounded, evicted least recently used first."""

import numpy as np
import pytest

from models import prefix_cache
from models.arrays import to_numpy
from models.cache.model import CacheState
from models.calls import materialize, run_to_completion
from models.language_model import read_sequences
from models.prefix_cache import NextTokenCache, NextTokenEntry, PrefixCache, state_bytes
from models.scoring.sequences import prefill
from models.text_model import TextModel
from tests.support import families


def states_of(*texts, model):
    for text in texts:
        yield np.array(text), families.model(model).initial_state(1)


def test_the_longest_beginning_is_found():
    known = PrefixCache(1 << 20)
    for ids, state in states_of([1, 5], [1, 5, 9, 4], [1, 6, 7], model="lstm"):
        known.put(ids, state)
    assert known.longest_match(np.array([1, 5, 9, 4, 3]))[0] == 4
    assert known.longest_match(np.array([1, 5, 9]))[0] == 2
    assert known.longest_match(np.array([2, 5, 9])) == (0, None)
    assert (known.queries, known.hits) == (3, 2)


def test_other_ids_of_the_same_hash_are_not_found(monkeypatch):
    monkeypatch.setattr(prefix_cache, "_prefix_hashes", lambda ids: np.zeros(len(ids), np.uint64))
    known = PrefixCache(1 << 20)
    for ids, state in states_of([1, 5], model="lstm"):
        known.put(ids, state)
    assert known.longest_match(np.array([1, 6])) == (0, None)
    assert known.longest_match(np.array([1, 5]))[0] == 2


def test_least_recently_used_entry_is_evicted():
    state = families.model("lstm").initial_state(1)
    known = PrefixCache(3 * (state_bytes(state) + 600))
    for last in (1, 2, 3):
        known.put(np.array([last]), state)
    known.longest_match(np.array([1]))
    known.put(np.array([4]), state)
    assert [known.longest_match(np.array([last]))[0] for last in (1, 2, 3, 4)] == [1, 0, 1, 1]
    assert known.num_bytes <= 3 * (state_bytes(state) + 600)


def test_a_prefix_that_is_kept_again_takes_no_more_memory():
    state, known = families.model("lstm").initial_state(1), PrefixCache(1 << 20)
    for _ in range(3):
        known.put(np.array([1, 5]), state)
    assert known.num_bytes - state_bytes(state) in range(1, 1000)


def test_ids_that_change_later_change_no_prefix():
    known, ids = PrefixCache(1 << 20), np.array([1, 5])
    known.put(ids, families.model("lstm").initial_state(1))
    ids[1] = 6
    assert known.longest_match(np.array([1, 5]))[0] == 2
    assert known.longest_match(ids)[0] == 0


def test_a_first_token_of_the_vocabulary_counts_like_others():
    known = PrefixCache(1 << 20)
    for ids, state in states_of([5], [5, 0], [0], model="lstm"):
        known.put(ids, state)
    assert [known.longest_match(np.array(ids))[0] for ids in ([5, 7], [5, 0, 7], [0, 7])] == [1, 2, 1]


def test_the_size_of_a_cached_distribution_counts_its_state_and_its_row():
    model, sizes = families.model("lstm"), []
    state = model.initial_state(1)
    row = to_numpy(model.next_log_probs(state))
    for entry in (NextTokenEntry(2), NextTokenEntry(2, state), NextTokenEntry(2, state, row)):
        known = NextTokenCache(1 << 20)
        known.put("the cat", entry)
        sizes.append(known.num_bytes)
    assert np.diff(sizes).tolist() == [state_bytes(state), row.nbytes]
    assert min(sizes) > len("the cat")


def test_entry_larger_than_the_prefix_cache_is_not_kept():
    state = families.model("lstm").initial_state(1)
    known = PrefixCache(state_bytes(state) + 1000)
    known.put(np.array([1]), state)
    before = known.num_bytes
    known.put(np.arange(1000), state)
    assert (len(known), known.num_bytes) == (1, before)
    assert known.longest_match(np.array([1]))[0] == 1


def test_a_large_entry_makes_several_small_ones_go():
    state = families.model("lstm").initial_state(1)
    known = PrefixCache(4 * (state_bytes(state) + 600))
    for last in (1, 2, 3, 4):
        known.put(np.array([last]), state)
    known.put(np.arange(5, 205), state)  # of 8 bytes each
    assert known.num_bytes <= 4 * (state_bytes(state) + 600)
    assert [known.longest_match(np.array([last]))[0] for last in (3, 4)] == [0, 1]


@pytest.mark.parametrize("name", families.NAMES)
def test_the_size_of_a_state_counts_its_arrays(name):
    model = families.model(name)
    one, many = (state_bytes(model.advance(model.initial_state(b), np.full(b, 5))) for b in (1, 8))
    assert one >= 4
    if not isinstance(model.initial_state(1), CacheState):  # rows may share their history
        assert many == 8 * one


class Counted:
    """Model wrapper that counts read tokens."""

    def __init__(self, model):
        self.model, self.tokens = model, 0

    def __getattr__(self, name):
        return getattr(self.model, name)

    def advance(self, state, tokens):
        self.tokens += len(tokens)
        return self.model.advance(state, tokens)

    def read(self, state, tokens, lengths, want):
        self.tokens += int(lengths.sum())
        return read_sequences(self.model, state, tokens, lengths, want)


def loaded_with_prefixes(name):
    model = Counted(families.model(name))
    return TextModel("m@1", model, families.tokenizer(), prefix_cache=PrefixCache(1 << 24)), model


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("name", ["lstm", "mixture", "feed-forward", "cached mixture"])
def test_another_keystroke_reads_one_more_token_and_says_the_same(name, bos):
    loaded, model = loaded_with_prefixes(name)
    text, read = [5, 9, 12, 30, 7, 8], []
    for end in range(1, len(text) + 1):
        before = model.tokens
        state = materialize(run_to_completion(prefill(loaded, [np.array(text[:end])], bos=bos)))
        read.append(model.tokens - before)
        whole = families.model(name)
        expected = whole.initial_state(1) if bos else whole.empty_state(1)
        for token in text[:end]:
            expected = whole.advance(expected, np.array([token]))
        told, wanted = (to_numpy(whole.next_log_probs(s)) for s in (state, expected))
        np.testing.assert_allclose(told, wanted, atol=1e-5)
    assert read == [1] * len(text)


def test_a_word_that_is_typed_anew_reads_only_that_word():
    loaded, model = loaded_with_prefixes("lstm")
    for text in ([5, 9, 12], [5, 9, 13], [5, 9, 14]):
        run_to_completion(prefill(loaded, [np.array(text)], bos=True))
    assert model.tokens == 3 + 1 + 1


def test_of_many_tokens_none_is_read_twice():
    loaded, model = loaded_with_prefixes("lstm")
    text = [5, 9, 12, 30, 7, 8, 5, 9, 12]
    for last in (13, 14):
        told = materialize(run_to_completion(prefill(loaded, [np.array([*text, last])], bos=True)))
        expected = model.model.initial_state(1)
        for token in (*text, last):
            expected = model.model.advance(expected, np.array([token]))
        wanted = to_numpy(model.model.next_log_probs(expected))
        np.testing.assert_allclose(to_numpy(model.model.next_log_probs(told)), wanted, atol=1e-5)
    assert model.tokens == 10 + 1


def test_many_contexts_at_once_leave_no_trace():
    loaded, _ = loaded_with_prefixes("lstm")
    run_to_completion(prefill(loaded, [np.array([5, 9])] * 9, bos=True))
    assert len(loaded.prefix_cache) == 0
