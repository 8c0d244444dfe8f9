"""Search over pieces by compiled code: readings that keys share, and the same words as the search in Python."""

import gc
import weakref

import numpy as np
import pytest

from models.calls import materialize, view
from models.completion import pieces as module
from models.completion.frontier import rank_continuations
from models.completion.pieces import PieceSearch, PieceTables
from models.completion.search import CompletionSettings, Reading
from models.completion.token_trie import Lexicon, TokenTrie
from models.prefix_cache import NextTokenCache, NextTokenEntry, Readings
from tests.support.text_models import (
    begun_search,
    drive,
    learnt_pieces,
    piece_model,
    spelled_pieces,
    state_after,
)

KINDS = ["unigram", "bpe", "char"]
CONTEXT = "the"
TYPED = [b" ", b" c", b" ca", b" cat", b" ca", b" c", b" co", b" d", b" do", b" do", b" "]


def first_reading(kind):
    state = state_after(kind, CONTEXT)
    [row] = piece_model(kind).next_log_probs(state)
    return Reading(view(state), 0, row)


def trie_with_words(kind, words):
    trie = TokenTrie(learnt_pieces(kind))
    trie.lexicon = None if words is None else Lexicon(words)
    return trie


def completions(search):
    found = search.result()
    return [(one.text, one.is_complete) for one in found.completions], [
        *(one.mass for one in found.completions),
        found.live_mass,
        found.unexplored_mass,
    ]


def assert_same(search, expected):
    texts, masses = completions(search)
    expected_texts, expected_masses = completions(expected)
    assert texts == expected_texts
    assert masses == pytest.approx(expected_masses, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("words", [None, ["cat", "cats", "car", "dog", "down", "the"]])
@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_a_context_find_what_each_finds_alone_and_read_less(kind, words):
    """Letters typed, deleted and typed again."""
    tokens, model, first = trie_with_words(kind, words), piece_model(kind), first_reading(kind)
    settings = CompletionSettings(max_steps=96, settled=0.02, rows_per_step=8)
    num_shared = num_alone = 0
    for spelled in TYPED:
        shared = PieceSearch(tokens, first, spelled, settings)
        num_shared += sum(drive_some(shared, model))
        alone = PieceSearch(tokens, first_reading(kind), spelled, settings)
        num_alone += sum(drive_some(alone, model))
        assert_same(shared, alone)
    assert num_shared < num_alone


def drive_some(search, model):
    """Run a search to its end, whose steps may ask for nothing, as all was read before."""
    steps = []
    while (asked := search.next_step()) is not None:
        before, tokens = asked
        steps.append(len(tokens))
        state = model.advance(materialize(before), tokens) if len(tokens) else before
        search.update(view(state), model.next_log_probs(state) if len(tokens) else [])
    return steps


@pytest.mark.parametrize("kind", KINDS)
def test_searches_of_a_context_may_take_turns(kind):
    tokens, model, first = spelled_pieces(kind), piece_model(kind), first_reading(kind)
    settings = CompletionSettings(rows_per_step=4, max_steps=40)
    searches = [PieceSearch(tokens, first, spelled, settings) for spelled in TYPED]
    running = list(searches)
    while running:
        asked = [(search, search.next_step()) for search in running]
        running = [search for search, step in asked if step is not None]
        for search, step in asked:
            if step is not None:
                state = model.advance(materialize(step[0]), step[1]) if len(step[1]) else step[0]
                search.update(view(state), model.next_log_probs(state) if len(step[1]) else [])
    for search, spelled in zip(searches, TYPED, strict=True):
        alone = PieceSearch(tokens, first_reading(kind), spelled, settings)
        drive_some(alone, model)
        assert_same(search, alone)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spelled", [b" ", b" c", b" th"])
def test_compiled_code_explores_as_much_as_the_search_in_python(kind, spelled):
    """Equally probable sequences may be read in another order."""
    tokens, model, state = spelled_pieces(kind), piece_model(kind), state_after(kind, CONTEXT)
    ours, other = (
        begun_search(tokens, model, state, spelled, CompletionSettings(), plain=plain)
        for plain in (False, True)
    )
    drive(ours, model)
    drive(other, model)
    assert ours.result().unexplored_mass <= other.result().unexplored_mass + 0.005
    assert ours.result().live_mass == pytest.approx(other.result().live_mass, rel=0.01)
    for best in other.result().completions[:3]:
        assert ours.words[best.text.encode()] == pytest.approx(best.mass, rel=0.03)


@pytest.mark.parametrize("places", [64, 200])
def test_many_open_sequences_lose_the_least_probable(monkeypatch, places):
    """A search whose arrays begin small and lose sequences expands the same ones."""
    tokens, model, state = spelled_pieces("char"), piece_model("char"), state_after("char", CONTEXT)
    settings = CompletionSettings(max_steps=40, settled=0.0, limit=5, open_vocabulary=True)
    expected = begun_search(tokens, model, state, b" ", settings)
    drive(expected, model)
    monkeypatch.setattr(module, "_MAX_PLACES", places)
    monkeypatch.setattr(module, "_NUM_PLACES", 8)
    monkeypatch.setattr(module, "_NUM_WORDS", 4)
    search = begun_search(tokens, model, state, b" ", settings)
    drive(search, model)
    assert_same(search, expected)
    assert len(search._arrays.tokens) < len(expected._arrays.tokens)


def test_continuations_are_the_most_probable_in_ascending_order():
    """Undecided ones are kept besides; equal ones stand in the order of the search in Python, the first last."""
    rng = np.random.default_rng(2)
    log_probs = np.log(rng.dirichlet(np.full(600, 0.3))).astype(np.float32)
    log_probs[[3, 5, 7]] = log_probs.max()
    inside = np.arange(500, dtype=np.int32)
    undecided = np.zeros(500, np.bool_)
    undecided[np.argmin(log_probs[:500])] = True
    ending, crossing = np.arange(500, 560, dtype=np.int32), np.arange(560, 600, dtype=np.int32)
    groups = (np.arange(40) % 3).astype(np.int32)
    continuations = rank_continuations(log_probs, inside, undecided, ending, crossing, groups, 3, 100)
    assert len(continuations.tokens) >= 101
    assert continuations.tokens[-3:].tolist() == [7, 5, 3]
    assert continuations.shares == pytest.approx(np.exp(log_probs[continuations.tokens]), rel=1e-5)
    assert (np.diff(continuations.shares) >= 0).all()
    assert np.isin(np.argsort(log_probs[:500])[-100:], continuations.tokens).all()
    assert continuations.is_undecided.sum() == 1
    probs = np.exp(log_probs.astype(float))
    assert continuations.totals == pytest.approx(
        [probs[500:560].sum(), probs[560:].sum(), probs[:500].sum()], rel=1e-5
    )
    of_groups = [probs[560:][groups == group].sum() for group in range(3)]
    assert continuations.groups.tolist() == np.argsort(of_groups)[::-1].tolist()
    assert continuations.group_shares == pytest.approx(sorted(of_groups, reverse=True), rel=1e-5)


def test_impossible_tokens_have_no_share():
    row = np.full(4, -np.inf, np.float32)
    row[2] = 0
    nothing = np.zeros(0, np.int32)
    inside = np.arange(4, dtype=np.int32)
    continuations = rank_continuations(row, inside, np.zeros(4, np.bool_), nothing, nothing, nothing, 0, 2)
    assert continuations.shares[-1] == 1
    assert continuations.shares[:-1].sum() == 0


def test_tables_of_a_token_trie_are_made_once():
    tokens = trie_with_words("unigram", ["cat"])
    assert PieceTables.of(tokens) is PieceTables.of(tokens)


def test_a_token_trie_is_freed_with_its_tables():
    """The collector of cycles does not look at models: a cycle would keep each version for ever."""
    tokens = trie_with_words("unigram", ["cat"])
    search = PieceSearch(tokens, first_reading("unigram"), b" c", CompletionSettings())
    drive(search, piece_model("unigram"))
    gc.collect()
    gc.disable()
    try:
        trie, tables = weakref.ref(tokens), weakref.ref(PieceTables.of(tokens))
        del tokens, search
        assert (trie(), tables()) == (None, None)
    finally:
        gc.enable()


def test_readings_past_their_share_of_the_cache_are_dropped():
    cache = NextTokenCache(80_000)
    readings = Readings({1: None})
    readings.num_bytes = 9_000
    cache.put("a", NextTokenEntry(1, longer=readings))
    assert cache.find("a").longer is readings
    assert cache.num_bytes > 9_000
    readings.num_bytes = 11_000
    cache.put("a", NextTokenEntry(1, longer=readings))
    assert cache.find("a").longer == {}
    assert cache.num_bytes < 9_000
