"""Tokens drawn by the weights of blocks, beside the definition and beside whole distributions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.decoding.batch import SequenceBatch, row_seed
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import compile_rules
from models.decoding.sampling import UNDETERMINED, choose_next_tokens, sample_by_blocks
from models.language_model import BLOCK_TOKENS, BlockSampler, BlockSums, supports
from models.vocabulary import BOS, EOS
from tests import slow_decoding

SIZE, ROWS = 150, 3
PADDED = -(-SIZE // BLOCK_TOKENS) * BLOCK_TOKENS
NO_PROMPT = np.zeros(0, np.int64)
tables = arrays(np.float32, (ROWS, SIZE), elements=st.integers(-60, 60).map(lambda n: n / 4))
plain = st.builds(
    DecodingParameters,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 1.7, 100.0]),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 2),
)


class TableState:
    """Rows of a table of logits."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def select(self, rows):
        return TableState(self.rows[rows])


class TableModel:
    """A model that weighs blocks of a table of logits [R, V]."""

    def __init__(self, table):
        self.table = np.full((len(table), PADDED), -np.inf, np.float32)
        self.table[:, :SIZE] = table
        self.table[:, BOS] = -np.inf
        self.full_rows = 0

    def block_sums(self, state, temperatures):
        logits = self.table[state.rows]
        highest = logits.max(axis=1)
        sums = np.exp((logits - highest[:, None]) / temperatures[:, None])
        sums = np.maximum(sums, np.float32(1.2e-38)).reshape(len(state), -1, BLOCK_TOKENS).sum(axis=2)
        log_sums = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        return BlockSums(log_sums, highest, sums, logits[:, :BLOCK_TOKENS].copy(), logits)

    def logits(self, weighed, rows, blocks):
        return weighed.features.reshape(-1, PADDED // BLOCK_TOKENS, BLOCK_TOKENS)[rows, blocks]

    def next_log_probs(self, state):
        self.full_rows += len(state)
        logits = self.table[state.rows, :SIZE].astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        return (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))).astype(np.float32)


def state_of(count=ROWS):
    return TableState(np.arange(count))


def batch_of(*parameters, seed=0):
    seeds = [row_seed(seed, 0, row) for row in range(len(parameters))]
    return SequenceBatch.of([compile_rules(each, NO_PROMPT) for each in parameters], seeds)


@given(tables, plain, st.integers(0, 1000))
def test_the_token_is_the_one_in_whose_share_the_number_falls(table, parameters, seed):
    model, batch = TableModel(table), batch_of(*[parameters] * ROWS, seed=seed)
    assert supports(model, BlockSampler)
    chosen = choose_next_tokens(model, state_of(), batch, in_full=np.zeros(ROWS, bool)).chosen
    log_probs = model.next_log_probs(state_of())
    for row, (token, number) in enumerate(
        zip(chosen.tokens.tolist(), batch.uniform_numbers().tolist(), strict=True)
    ):
        shares = slow_decoding.distribution(slow_decoding.scores(log_probs[row], parameters), parameters)
        ends = np.cumsum(shares)
        begin = ends[token - 1] if token else 0.0
        assert ends[token] > begin
        assert begin - 1e-5 <= number <= ends[token] + 1e-5
        assert chosen.log_probs[row] == pytest.approx(log_probs[row, token], abs=1e-4)


def test_where_nearly_all_weight_is_impossible_the_whole_distribution_decides():
    """`</s>` may not come, and beside it nothing has a weight that single precision tells apart."""
    table = np.full((ROWS, SIZE), -200, np.float32)
    table[:, EOS], table[:, 140] = 50, -100
    model, batch = TableModel(table), batch_of(*[DecodingParameters(max_tokens=9, ignore_eos=True)] * ROWS)
    assert sample_by_blocks(model, state_of(), batch).tokens.tolist() == [UNDETERMINED] * ROWS
    told = choose_next_tokens(model, state_of(), batch, in_full=np.zeros(ROWS, bool))
    assert told.chosen.tokens.tolist() == [140] * ROWS
    assert model.full_rows == ROWS


@pytest.mark.parametrize(
    ("options", "is_plain"),
    [
        ({}, True),
        ({"temperature": 0.7, "ignore_eos": True, "min_tokens": 3}, True),
        ({"temperature": 0.01}, False),
        ({"strategy": "greedy"}, False),
        ({"top_k": 5}, False),
        ({"top_p": 0.9}, False),
        ({"min_p": 0.1}, False),
        ({"typical_p": 0.9}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"logit_bias": ((4, 1.0),)}, False),
    ],
)
def test_only_rows_without_further_rules_are_drawn_by_weight(options, is_plain):
    model = TableModel(np.zeros((ROWS, SIZE), np.float32))
    batch = batch_of(*[DecodingParameters(max_tokens=9, **options)] * ROWS)
    choose_next_tokens(model, state_of(), batch, in_full=np.zeros(ROWS, bool))
    assert model.full_rows == (0 if is_plain else ROWS)


@given(tables, st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), st.integers(0, 99))
def test_a_row_is_given_the_same_whoever_is_beside_it(table, wanted, seed):
    """Whether the others are drawn by weight or not."""
    parameters = [DecodingParameters(max_tokens=9, top_k=top_k) for top_k in (None, 3, None)]
    model, batch, in_full = TableModel(table), batch_of(*parameters, seed=seed), np.array(wanted)
    told = choose_next_tokens(model, state_of(), batch, in_full=in_full)
    for row in range(ROWS):
        rows = np.array([row])
        alone = choose_next_tokens(model, state_of().select(rows), batch.select(rows), in_full=in_full[rows])
        assert alone.chosen.tokens[0] == told.chosen.tokens[row]
        assert alone.chosen.log_probs[0] == pytest.approx(told.chosen.log_probs[row])
        assert not wanted[row] or row in told.full_rows
    assert len(told.log_probs) == len(told.full_rows)
