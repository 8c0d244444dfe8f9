"""Costs of operations bound their work, from the request alone."""

from types import SimpleNamespace

import pytest

from service.operations.next_token import NextToken, NextTokenRequest
from service.operations.states import AdvanceStates


def call(num_bytes, model=None):
    limits = SimpleNamespace(check_count=lambda *_, **__: None)
    return SimpleNamespace(
        limits=limits, num_bytes=num_bytes, num_tokens=num_bytes // 4, resolve=lambda _: model
    )


@pytest.mark.parametrize("vocab_size", [4_000, 50_000, 128_000])
@pytest.mark.parametrize("count", [1, 8, 64])
def test_default_rankings_of_next_tokens_are_interactive_with_any_vocabulary(vocab_size, count):
    model = SimpleNamespace(vocab_size=vocab_size, model=SimpleNamespace(is_lookup=True))
    operation = NextToken(call(20 * count, model), NextTokenRequest(context=["a b"] * count))
    assert not operation.cost().is_bulk
    assert not operation.runs_inline(operation.cost())  # entropies need the whole rows


def states(count, num_bytes):
    operation = AdvanceStates.__new__(AdvanceStates)
    operation.call, operation.stored = call(num_bytes), [None] * count
    return operation.cost()


@pytest.mark.parametrize(
    ("count", "num_bytes", "is_bulk"),
    [(100, 100 * 60, False), (512, 512 * 128, False), (513, 513 * 60, True), (100, 100 * 400, True)],
)
def test_states_count_all_tokens_of_the_body_and_are_bulk_with_many_or_long_texts(count, num_bytes, is_bulk):
    cost = states(count, num_bytes)
    assert (cost.read, cost.is_bulk) == (num_bytes // 4, is_bulk)
