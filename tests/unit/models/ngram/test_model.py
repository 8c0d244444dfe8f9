"""The n-gram model through the language-model interface, in bulk, and from several threads."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from models.errors import InputError
from models.language_model import BOS, EOS, SequenceReader, Vocabulary, prefill_sequences, score_sequences
from models.ngram.build import quantise_automaton
from models.ngram.model import NGramModel, score_lines
from models.tokenizers import WordTokenizer
from training.corpus import EncodedCorpus
from training.ngram.estimate import estimate
from training.progress import Progress


def test_it_can_score_sequences(model):
    assert isinstance(model, SequenceReader)


def test_it_names_itself(model):
    assert (model.family, model.order, model.normalised) == ("ngram", 3, True)


def test_parameters_are_probabilities_and_backoffs(model):
    """28 n-grams, and 21 contexts: the empty one, 10 words, 10 bigrams."""
    assert model.num_parameters == 28 + 21


def test_advancing_leaves_the_state_as_it_was(model):
    state = model.initial_state(2)
    model.advance(state, np.array([3, 5]))
    assert state.ids.tolist() == model.initial_state(2).ids.tolist()


def test_rows_can_be_selected_again_and_again(model):
    state = model.advance(model.initial_state(3), np.array([3, 4, 5]))
    assert state.select(np.array([2, 0, 0])).ids.tolist() == state.ids[[2, 0, 0]].tolist()


def test_states_concatenate_in_order(model):
    first, second = model.initial_state(1), model.empty_state(2)
    joined = first.concatenate([second, first])
    assert len(joined) == 4
    assert joined.ids.tolist() == [*first.ids, *second.ids, *first.ids]


def test_concatenating_nothing_changes_nothing(model):
    assert model.initial_state(2).concatenate([]).ids.tolist() == model.initial_state(2).ids.tolist()


def test_no_rows_are_no_trouble(model):
    state = model.initial_state(0)
    assert model.next_log_probs(state).shape == (0, 10)
    assert len(model.advance(state, np.zeros(0, np.int64))) == 0
    assert score_sequences(model, state, np.zeros((0, 4), np.int64), np.zeros(0, np.int64)).shape == (0, 4)


def test_different_pasts_with_one_future_are_one_state(model):
    """Neither text ends in a known bigram."""
    start = model.initial_state(2)
    after = model.advance(model.advance(start, np.array([8, 6])), np.array([3, 3]))
    assert after.ids[0] == after.ids[1]


def test_a_start_mark_is_never_predicted_but_can_be_consumed(model):
    row = model.next_log_probs(model.empty_state(1))[0]
    assert row[BOS] == -np.inf
    restarted = model.advance(model.empty_state(1), np.array([BOS]))
    assert restarted.ids.tolist() == model.initial_state(1).ids.tolist()


def test_an_end_mark_leads_to_the_empty_context(model):
    assert model.advance(model.initial_state(1), np.array([EOS])).ids.tolist() == [0]


def test_order_one_has_one_state(corpus, vocabulary):
    unigram = estimate(corpus, vocabulary, order=1, progress=Progress()).model
    assert unigram.automaton.num_states == 1
    assert unigram.initial_state(1).ids.tolist() == [0]


def test_scores_say_how_long_an_ngram_was_found_and_what_backing_off_cost(model):
    """In "i love mice", "<s> i love" is a known trigram; "love mice" is not a known bigram."""
    detail = model.score_detailed(model.initial_state(1), np.array([[3, 4, 8]]), np.array([3]))
    assert detail.orders.tolist() == [[2, 3, 1]]
    unigram = model.next_log_probs(model.empty_state(1))[0, 8]
    assert detail.log_backoffs[0, :2].tolist() == [0, 0]
    assert detail.log_probs[0, 2] == pytest.approx(unigram + detail.log_backoffs[0, 2], abs=1e-6)


@pytest.mark.parametrize("k", [0, 11])
def test_more_tokens_than_there_are_cannot_be_ranked(model, k):
    with pytest.raises(InputError, match=f"k is {k}, it can be 1 to 10"):
        model.top_k(model.initial_state(1), k)


def test_ragged_scores_are_those_of_each_row(model):
    random = np.random.default_rng(1)
    lengths = random.integers(0, 9, size=5000)
    tokens, offsets = random.integers(0, 10, size=lengths.sum()), np.append(0, np.cumsum(lengths))
    state = model.initial_state(len(lengths))
    alone = model.score_ragged(state, tokens, offsets)
    padded = score_sequences(
        model, model.initial_state(1), tokens[None, offsets[7] : offsets[8]], lengths[7:8]
    )
    assert np.array_equal(padded[0], alone[offsets[7] : offsets[8]])


@pytest.mark.parametrize("offsets", [[0, 3], [1, 2, 3], [0, 4, 3], [0, 1, 2]])
def test_offsets_that_do_not_fit_are_refused(model, offsets):
    with pytest.raises(InputError, match="offsets"):
        model.score_ragged(model.initial_state(2), np.array([3, 4, 5]), np.array(offsets))


def test_padding_of_a_row_is_ignored(model):
    tokens = np.array([[3, 4, 5], [3, 10**9, -7]])
    scores = score_sequences(model, model.initial_state(2), tokens, np.array([3, 1]))
    assert scores[1, 0] == scores[0, 0]
    assert scores[1, 1:].tolist() == [0, 0]


@pytest.mark.parametrize("word", [-1, 10, 2**40])
def test_an_unknown_id_is_refused_by_name(model, word):
    message = f"token 1 of the batch is {word}, but token ids are 0 to 9"
    with pytest.raises(InputError, match=message):
        model.advance(model.initial_state(2), np.array([3, word]))
    with pytest.raises(InputError, match=message):
        score_sequences(model, model.initial_state(1), np.array([[3, word]]), np.array([2]))


def test_shapes_that_do_not_fit_are_refused(model):
    state = model.initial_state(2)
    with pytest.raises(InputError, match=r"the state has 2 rows"):
        model.advance(state, np.array([3]))
    with pytest.raises(InputError, match=r"they must be \[2, T\] and \[2\]"):
        score_sequences(model, state, np.array([[3]]), np.array([1]))
    with pytest.raises(InputError, match="lengths go up to 5, tokens have 1 columns"):
        score_sequences(model, state, np.array([[3], [3]]), np.array([1, 5]))


def test_a_vocabulary_of_another_size_is_refused(model):
    with pytest.raises(InputError, match="has 10 unigrams, the vocabulary 4 tokens"):
        NGramModel(model.automaton, Vocabulary(["a"]))


def test_more_rows_than_walk_at_once_are_scored_alike(vocabulary):
    """Rows of all lengths, so some finish before others."""
    rng = np.random.default_rng(3)
    text = EncodedCorpus.from_sentences([rng.integers(3, 10, size=12) for _ in range(30)])
    random_model = estimate(text, vocabulary, order=4, progress=Progress()).model
    tokens, lengths = rng.integers(0, 10, size=(50, 20)), rng.integers(0, 21, size=50)
    together = score_sequences(random_model, random_model.initial_state(50), tokens, lengths)
    start = random_model.initial_state(1)
    alone = [score_sequences(random_model, start, tokens[[i]], lengths[[i]])[0] for i in range(50)]
    assert np.array_equal(together, alone)


def test_an_ngram_server_needs_no_torch():
    code = "import sys, models.ngram.model; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LINES = ["i love cats", "", "mice", "no such words"] * 700


@pytest.fixture
def tokenizer(vocabulary):
    return WordTokenizer(vocabulary)


def alone(model, tokenizer, line):
    ids = np.array([[*tokenizer.encode(line), EOS]])
    return score_sequences(model, model.initial_state(1), ids, np.array([ids.shape[1]]))[0]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_lines_score_as_each_alone(model, tokenizer, threads):
    scores = score_lines(model, tokenizer, LINES, threads=threads)
    expected = [alone(model, tokenizer, line) for line in LINES[:4]] * 700
    assert np.array_equal(scores.log_probs, np.concatenate(expected))
    assert np.diff(scores.offsets).tolist() == [len(row) for row in expected]
    assert scores.sums == pytest.approx([row.sum() for row in expected], abs=1e-5)


def test_no_line_is_no_trouble(model, tokenizer):
    assert len(score_lines(model, tokenizer, [], threads=4).log_probs) == 0


@pytest.mark.parametrize("offsets", [[0, 50_000_000, 2], [0, 1, 5], [1, 2], [0, 2, 1, 2], []])
def test_offsets_that_lead_astray_are_refused(model, offsets):
    with pytest.raises(InputError, match="offsets"):
        model.score_ragged(model.initial_state(max(len(offsets) - 1, 0)), np.array([3, 4]), np.array(offsets))


@pytest.mark.parametrize("word", [-1, 10, 2**32 + 3])
def test_an_unknown_id_is_refused(model, word):
    with pytest.raises(InputError, match=f"is {word}, but token ids are 0 to 9"):
        model.score_ragged(model.initial_state(1), np.array([3, word]), np.array([0, 2]))


THREADS = 8
WORDS = [f"w{i}" for i in range(400)]


@pytest.fixture(scope="module", params=["exact", "quantised"])
def large_model(request):
    rows = [(np.random.default_rng(i).zipf(1.3, size=12) % 400) + 3 for i in range(800)]
    made = estimate(EncodedCorpus.from_sentences(rows), Vocabulary(WORDS), order=4, progress=Progress()).model
    return (
        made if request.param == "exact" else NGramModel(quantise_automaton(made.automaton), made.vocabulary)
    )


def answers(model, tokenizer, seed):
    """Results of every model method for texts drawn from a seed."""
    random = np.random.default_rng(seed)
    tokens, lengths = random.integers(3, 403, (60, 9)), random.integers(0, 10, 60)
    state = prefill_sequences(model, model.initial_state(60), tokens, lengths)
    lines = [" ".join(random.choice(WORDS, 7)) for _ in range(700)]
    return [
        state.ids,
        model.advance(state, tokens[:, 0]).ids,
        *model.score_detailed(state, tokens, lengths),
        model.next_log_probs(state),
        *model.top_k(state, 50),
        score_lines(model, tokenizer, lines, threads=2).log_probs,
    ]


def test_threads_do_not_disturb_each_other(large_model):
    tokenizer = WordTokenizer(large_model.vocabulary)  # all threads trigger the lazily built tables
    start = threading.Barrier(THREADS)

    def ask(seed):
        start.wait()
        return [answers(large_model, tokenizer, seed) for _ in range(2)]

    with ThreadPoolExecutor(THREADS) as pool:
        together = list(pool.map(ask, range(THREADS)))
    for seed, given in enumerate(together):
        alone = answers(large_model, tokenizer, seed)
        for one in given:
            assert all(np.array_equal(a, b) for a, b in zip(one, alone, strict=True))
