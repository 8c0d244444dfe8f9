"""Sampling from distributions and from blocks of weights, against the definitions."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from models.decoding import rules as decoding_rows
from models.decoding.batch import SequenceBatch, row_seed, uniform_numbers
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import buffers_for, compile_rules
from models.decoding.sampling import UNDETERMINED, choose_next_tokens, choose_tokens, sample_by_blocks
from models.decoding.top_k import top_tokens
from models.language_model import BLOCK_TOKENS, BOS, EOS, UNK, BlockSampler, BlockSums, supports
from tests.reference import decoding

NO_PROMPT = np.zeros(0, np.int64)


def chosen(log_probs, numbers, **options):
    """Token drawn from one distribution for each number."""
    parameters = DecodingParameters(max_tokens=1, **options)
    rows = np.tile(np.asarray(log_probs, np.float32), (len(numbers), 1))
    batch = SequenceBatch.of([compile_rules(parameters, NO_PROMPT)] * len(numbers))
    return choose_tokens(rows, batch.rows(), np.asarray(numbers)).tokens


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.7},
        {"top_k": 100},
        {"typical_p": 0.6},
        {"top_p": 0.9},
        {"min_p": 0.02},
        {"temperature": 0.9, "top_k": 400, "typical_p": 0.9, "top_p": 0.9, "min_p": 0.005},
    ],
)
def test_draws_follow_the_distribution(options):
    """χ² of 40 000 draws over 600 tokens, with small bins merged, is below its 99.99 % quantile."""
    rng, count = np.random.default_rng(7), 40_000
    row = (rng.normal(size=600) * 2 - 4).astype(np.float32)
    parameters = DecodingParameters(max_tokens=1, **options)
    p = decoding.distribution(decoding.scores(row, parameters), parameters)
    seen = np.zeros(600)
    for part in np.split(rng.random(count), 40):
        seen += np.bincount(chosen(row, part, **options), minlength=600)
    assert not seen[p == 0].any()
    full = p * count >= 10
    expected = np.append(p[full], p[~full].sum()) * count
    observed = np.append(seen[full], seen[~full].sum())
    degrees = len(expected) - 1
    chi2 = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    assert chi2 < degrees + 3.72 * np.sqrt(2 * degrees) + 9  # normal approximation, plus a margin for skew


def test_a_token_without_probability_is_never_drawn():
    row = [-np.inf] * 3 + [-np.inf, 0.0, -np.inf, 0.0, -np.inf]
    assert set(chosen(row, [0.0, 0.5, 1 - 2**-53]).tolist()) == {4, 6}


def test_the_last_number_below_one_draws_the_last_possible_token():
    """Also if that token is several blocks before the end of the row."""
    row = np.full(5000, -np.inf)
    row[[3, 2040]] = 0.0
    assert chosen(row, [0.0, 1 - 2**-53]).tolist() == [3, 2040]


def test_control_tokens_but_the_end_are_never_chosen():
    row = np.log([0.4, 0.4, 0.1, 0.1])
    assert set(chosen(row, np.linspace(0, 0.999, 50)).tolist()) == {EOS, 3}
    assert chosen(row, [0.5], strategy="greedy")[0] == EOS


def test_row_without_possible_tokens_ends_the_text():
    row = [0.0] + [-np.inf] * 4
    assert UNK == BOS - 1 == 0
    for options in ({}, {"strategy": "greedy"}, {"top_p": 0.5}, {"ignore_eos": True}):
        assert chosen(row, [0.5], **options)[0] == EOS


def test_the_most_probable_of_equals_has_the_smallest_id():
    assert chosen([-9.0, -9.0, -2.0, -1.0, -1.0], [0.0], strategy="greedy")[0] == 3


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-30, 1e-3])
def test_a_temperature_next_to_nothing_leaves_the_most_probable(temperature):
    row = np.log([0.1, 0.1, 0.1, 0.4, 0.3])
    assert set(chosen(row, np.linspace(0, 0.999, 20), temperature=temperature).tolist()) == {3}


@pytest.mark.parametrize(("p", "expected"), [(0.01, 1), (0.5, 1), (0.51, 2), (0.8, 2), (0.9, 3), (0.99, 4)])
def test_top_p_keeps_the_fewest_tokens_that_reach_p(p, expected):
    row = np.append([-np.inf] * 3, np.log([0.5, 0.3, 0.15, 0.05]))
    assert len(set(chosen(row, np.linspace(0, 0.999, 200), top_p=p).tolist())) == expected


@pytest.mark.parametrize("share", [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.9])
def test_min_p_keeps_tokens_with_exactly_that_share_of_the_maximum(share):
    """Shares in single precision may be a little less."""
    numbers = np.linspace(0, 0.999, 200)
    for highest in (0.3, 0.5, 0.51):
        row = np.append([-np.inf] * 3, np.log([highest, highest * share, highest * share * 0.99]))
        assert set(chosen(row, numbers, min_p=share).tolist()) == {3, 4}


def test_top_p_counts_after_the_temperature():
    row = np.append([-np.inf] * 3, np.log([0.5, 0.3, 0.15, 0.05]))
    numbers = np.linspace(0, 0.999, 200)
    assert len(set(chosen(row, numbers, top_p=0.5, temperature=10.0).tolist())) == 2
    assert len(set(chosen(row, numbers, top_p=0.5, temperature=0.5).tolist())) == 1


def test_typical_leaves_out_what_is_too_probable():
    """The entropy is closest to the surprisal of the common token with ten rare ones, of the rare ones with 70."""
    row = np.append([-np.inf] * 3, np.log([0.6] + [0.04] * 10))
    kept = set(chosen(row, np.linspace(0, 0.999, 500), typical_p=0.3).tolist())
    assert kept == {3}
    flat = np.append([-np.inf] * 3, np.log([0.3] + [0.01] * 70))
    assert 3 not in chosen(flat, np.linspace(0, 0.999, 500), typical_p=0.5)


def test_the_models_own_log_probability_is_told():
    """`</s>` has its own log-probability if no token was possible."""
    rows = np.array([[-1, -2, -3, -4, -0.5], [-1, -2, -3, -np.inf, -np.inf]], np.float32)
    parameters = DecodingParameters(max_tokens=1, temperature=0, logit_bias=((4, 5.0),), ignore_eos=True)
    told = choose_tokens(
        rows, SequenceBatch.of([compile_rules(parameters, NO_PROMPT)] * 2).rows(), np.zeros(2)
    )
    assert (told.tokens.tolist(), told.log_probs.tolist()) == ([4, EOS], [-0.5, -3.0])


@pytest.mark.parametrize("options", [{}, {"strategy": "greedy"}, {"top_p": 0.5}])
def test_a_model_that_gives_no_numbers_ends_the_text(options):
    """NaN rows return `</s>` with a NaN log-probability; a search for a token would never end."""
    parameters = DecodingParameters(max_tokens=1, **options)
    rows = np.full((1, 1024), np.nan, np.float32)
    told = choose_tokens(
        rows, SequenceBatch.of([compile_rules(parameters, NO_PROMPT)]).rows(), np.array([0.5])
    )
    assert told.tokens[0] == EOS
    assert np.isnan(told.log_probs[0])


@pytest.mark.parametrize("options", [{}, {"strategy": "greedy"}, {"top_p": 0.5}])
def test_a_repetition_penalty_next_to_nothing_makes_no_score_infinite(options):
    parameters = DecodingParameters(
        max_tokens=1, repetition_penalty=1e-300, logit_bias=((3, 50.0),), **options
    )
    rules = compile_rules(parameters, np.array([3]))
    told = choose_tokens(
        np.full((1, 600), -6.0, np.float32), SequenceBatch.of([rules]).rows(), np.array([0.5])
    )
    assert told.tokens.tolist() == [3]


def test_a_top_k_past_all_numbers_leaves_all_tokens():
    row, numbers = np.log(np.full(9, 1 / 9)), np.linspace(0, 0.999, 50)
    assert chosen(row, numbers, top_k=10**400).tolist() == chosen(row, numbers).tolist()


def test_room_for_vocabularies_that_have_gone_is_given_back(monkeypatch):
    monkeypatch.setattr(decoding_rows, "_MAX_WIDTHS", 2)
    monkeypatch.setattr(decoding_rows, "_thread_buffers", threading.local())
    rooms = [buffers_for(width) for width in (5, 6, 7)]
    assert list(vars(decoding_rows._thread_buffers)) == ["6", "7"]
    assert buffers_for(7) is rooms[2]


def numbers_of(seeds, count):
    """First random numbers of each row [count, R]."""
    seeds = np.array(seeds, np.uint64)
    return np.stack([uniform_numbers(seeds, np.full(len(seeds), place)) for place in range(count)])


def test_draws_are_each_rows_own():
    """A row's numbers depend only on its seed and position, not on other rows of the batch."""
    seeds = [row_seed(5, *stream) for stream in ((0, 0), (0, 1), (1, 0))]
    numbers = numbers_of(seeds, 150)
    assert len(np.unique(numbers)) == numbers.size
    apart = uniform_numbers(np.array(seeds[::-1], np.uint64), np.array([7, 3, 9]))
    assert apart.tolist() == [numbers[7, 2], numbers[3, 1], numbers[9, 0]]


def test_draws_are_as_random_as_they_should_be():
    """Mean, variance and correlations with the previous number, next row and next seed, within 5 sigma."""
    numbers = numbers_of([row_seed(seed, 0, sample) for seed in range(20) for sample in range(20)], 500) - 0.5
    size = numbers.size
    assert abs(numbers.mean()) < 5 * (1 / 12 / size) ** 0.5
    assert abs((numbers**2).mean() - 1 / 12) < 5 * (1 / 180 / size) ** 0.5
    for one, other in (
        (numbers[1:], numbers[:-1]),
        (numbers[:, 1:], numbers[:, :-1]),
        (numbers[:, 20:], numbers[:, :-20]),
    ):
        assert abs((one * other).mean()) < 5 / 12 / one.size**0.5


def test_another_number_anywhere_gives_another_seed():
    streams = [
        (seed, prompt, sample) for seed in (0, 1, 2**64 - 1) for prompt in range(9) for sample in range(9)
    ]
    assert len({row_seed(*stream) for stream in streams}) == len(streams)


def test_top_tokens_are_sorted_and_equals_stand_by_id():
    row = np.array([-3.0, -1.0, -2.0, -1.0, -2.0], dtype=np.float32)
    assert top_tokens(row, 4).ids.tolist() == [1, 3, 2, 4]
    assert top_tokens(row, 5).log_probs.tolist() == [-1.0, -1.0, -2.0, -2.0, -3.0]


SIZE, ROWS = 150, 3
PADDED = -(-SIZE // BLOCK_TOKENS) * BLOCK_TOKENS
tables = arrays(np.float32, (ROWS, SIZE), elements=st.integers(-60, 60).map(lambda n: n / 4))
plain = st.builds(
    DecodingParameters,
    max_tokens=st.just(9),
    temperature=st.sampled_from([0.05, 0.3, 1.0, 1.7, 100.0]),
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 2),
)


class TableState:
    """State with rows of a table of logits."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def select(self, rows):
        return TableState(self.rows[rows])


class TableModel:
    """Model that computes block weights from a table of logits [R, V]."""

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
        zip(chosen.tokens.tolist(), uniform_numbers(batch.seeds, batch.lengths).tolist(), strict=True)
    ):
        shares = decoding.distribution(decoding.scores(log_probs[row], parameters), parameters)
        ends = np.cumsum(shares)
        begin = ends[token - 1] if token else 0.0
        assert ends[token] > begin
        assert begin - 1e-5 <= number <= ends[token] + 1e-5
        assert chosen.log_probs[row] == pytest.approx(log_probs[row, token], abs=1e-4)


def test_underflow_of_the_allowed_weights_falls_back_to_the_whole_distribution():
    """`</s>` is banned, and the other weights underflow in single precision."""
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
    """Other rows may be sampled by blocks or from complete distributions."""
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
