"""Completions are as probable as all texts that go on so."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.token_trie import TokenTrie
from models.tokenizers import WordTokenizer
from tests.completion_pieces import drive
from tests.fakes import FakeModel, fake_vocabulary
from tests.slow_completion import Branching, Pieces, masses

PIECES = [
    *(
        piece.encode()
        for piece in ["a", "b", "ab", "ba", " a", " b", " ab", " ", "s,", ", ", "b ", "b a", "."]
    ),
    *(
        piece.encode()
        for piece in ["'", "'s", "-", "a-", "a'b, b", " b a", "é", "A", "aB", " Ab", "-.", "\u2019"]
    ),
    b"\xc3",
    b"\xa9",
    b"\xe2",
    b"a",  # the byte that a piece spells too
]
SPELLED = ["", " ", "a", " a", "ab", " ab", "b", " b", "é", "a'", " a-b", "a-"]
EVERYTHING = {"floor": 0.0, "settled": 0.0, "max_steps": 10**6, "limit": 10**6}

vocabularies = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6)


def searched(model, tokens, spelled, **options):
    search = CompletionSearch(tokens, spelled.encode(), CompletionSettings(**options))
    steps = drive(search, model, model.initial_state(1))
    assert max(steps, default=0) <= options.get("rows_per_step", 16)
    return search


def made(pieces, seed):
    tokenizer = Pieces(pieces)
    return Branching(len(tokenizer.token_bytes), seed), TokenTrie(tokenizer)


@settings(max_examples=100, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9), st.booleans())
@example(pieces=[b"a", b" ", b" "], spelled=" ab", seed=1, ignore_case=False)  # once rounding left a trace
def test_words_are_as_probable_as_all_texts_that_go_on_so(pieces, spelled, seed, ignore_case):
    model, tokens = made(pieces, seed)
    found = searched(model, tokens, spelled, ignore_case=ignore_case, **EVERYTHING).result()
    [truth] = masses(model, tokens.token_bytes, spelled.encode(), ignore_case=ignore_case)
    assert {word.text: word.mass for word in found.completions} == pytest.approx(truth, rel=1e-5, abs=1e-9)
    assert found.live_mass == pytest.approx(sum(truth.values()), rel=1e-5, abs=1e-9)
    assert found.unexplored_mass == pytest.approx(0, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9), st.integers(2, 3))
def test_phrases_are_as_probable_as_all_texts_that_go_on_so(pieces, spelled, seed, max_words):
    model, tokens = made([*pieces, b" a"], seed)
    found = searched(model, tokens, spelled, max_words=max_words, **EVERYTHING).result()
    truth = masses(model, tokens.token_bytes, spelled.encode(), max_words=max_words)
    for length, phrases in enumerate(truth, start=1):
        told = {c.text: c.mass for c in found.completions if c.num_words == length}
        assert told == pytest.approx(phrases, rel=1e-5, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    vocabularies,
    st.sampled_from(SPELLED),
    st.integers(0, 9),
    st.sampled_from([{"max_steps": 3}, {"floor": 0.01}, {"limit": 2, "settled": 0.3}, {"max_word_bytes": 3}]),
)
def test_a_cut_search_tells_lower_bounds_and_what_it_left_out(pieces, spelled, seed, options):
    model, tokens = made([*pieces, b"a", b" b"], seed)
    search = searched(model, tokens, spelled, **{**EVERYTHING, **options})
    [truth] = masses(model, tokens.token_bytes, spelled.encode())
    found = search.result()
    shares = [mass / found.live_mass for mass in search.words.values()]
    assert sum(shares) + found.unexplored_mass == pytest.approx(1 if found.live_mass else 0, abs=1e-9)
    assert found.live_mass >= sum(truth.values()) * (1 - 1e-5)
    assert 0 <= found.unexplored_mass <= 1
    for word, mass in search.words.items():
        assert mass <= truth[word] * (1 + 1e-5)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.sampled_from(SPELLED), st.integers(0, 9))
def test_steps_of_one_row_find_what_steps_of_many_do(pieces, spelled, seed):
    model, tokens = made(pieces, seed)
    alone = searched(model, tokens, spelled, rows_per_step=1, **EVERYTHING).words
    together = searched(model, tokens, spelled, rows_per_step=16, **EVERYTHING).words
    assert alone == pytest.approx(together, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(vocabularies, st.integers(0, 9))
def test_a_letter_more_conditions_on_it(pieces, seed):
    """Words after "a" are those after nothing that begin so, no less and no more probable."""
    model, tokens = made([*pieces, b"a", b"b"], seed)
    before = searched(model, tokens, "", **EVERYTHING).words
    after = searched(model, tokens, "a", **EVERYTHING).words
    assert after == pytest.approx({word: p for word, p in before.items() if word.startswith("a")}, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["", "t", "ca", "sp"]), st.integers(0, 9), st.booleans())
def test_words_that_are_tokens_have_the_row_renormalised(prefix, seed, ignore_case):
    tokenizer = WordTokenizer(fake_vocabulary(extra=("Cat", "carp", "tHem")))
    model = FakeModel(tokenizer.vocabulary, seed=seed)
    state = model.initial_state(1)
    search = CompletionSearch(
        TokenTrie(tokenizer), f" {prefix}".encode(), CompletionSettings(ignore_case=ignore_case, limit=100)
    )
    search.update(state, model.next_log_probs(state))
    assert search.next_step() is None
    row = np.exp(model.next_log_probs(state)[0].astype(float))
    case = str.lower if ignore_case else str
    words = tokenizer.vocabulary.ids.items()
    expected = {word: row[i] for word, i in words if case(word).startswith(prefix)}
    found = search.result()
    assert {c.text: c.mass for c in found.completions} == pytest.approx(expected, rel=1e-6)
    assert found.unexplored_mass == 0
