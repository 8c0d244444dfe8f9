"""The n-gram model on a device through the protocol; property tests compare its numbers."""

import logging

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models.arrays import to_numpy
from models.decoding.batch import SequenceBatch, row_seed, uniform_numbers
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import compile_rules
from models.decoding.sampling import choose_tokens
from models.errors import InputError
from models.language_model import (
    BOS,
    SCORES,
    STATE,
    SequenceReader,
    TopKPredictor,
    prefill_sequences,
    score_sequences,
)
from models.ngram.automaton import word_ids
from models.ngram.cuda import kernels
from models.ngram.cuda import model as cuda_model
from models.ngram.cuda.model import TensorNGramModel
from models.ngram.model import NGramModel
from tests.support.families import DEVICES


@pytest.fixture(params=DEVICES)
def moved(request, model):
    return TensorNGramModel(model, device=request.param)


def test_it_has_the_optional_capabilities(moved):
    assert all(isinstance(moved, kind) for kind in (SequenceReader, TopKPredictor))


def test_it_says_of_itself_what_the_model_on_the_cpu_says(model, moved):
    for name in ("family", "order", "normalised", "num_parameters", "vocabulary"):
        assert getattr(moved, name) == getattr(model, name)


def test_it_saves_what_the_model_on_the_cpu_saves(model, moved, vocabulary, tmp_path):
    moved.save(tmp_path)
    loaded = NGramModel.load(tmp_path, vocabulary, device="cpu")
    assert all(np.array_equal(*arrays) for arrays in zip(loaded.automaton, model.automaton, strict=True))


def test_initial_state_is_the_empty_state_after_bos(model, moved):
    after = moved.advance(moved.empty_state(2), np.full(2, BOS))
    assert after.ids.tolist() == moved.initial_state(2).ids.tolist() == model.initial_state(2).ids.tolist()


def test_states_are_values(moved):
    state = moved.advance(moved.initial_state(3), np.array([3, 4, 5]))
    before = state.ids.tolist()
    moved.advance(state, np.array([5, 6, 7]))
    moved.next_log_probs(state)
    picked = state.select(np.array([2, 0, 0]))
    joined = picked.concatenate([state, state.select(np.zeros(0, np.int64))])
    assert state.ids.tolist() == before
    assert joined.ids.tolist() == [before[2], before[0], before[0], *before]
    assert len(joined) == 6


def test_a_decoder_may_stay_on_the_device(moved):
    """Tokens and rows may be tensors."""
    state = moved.initial_state(2)
    tokens = moved.next_log_probs(state).argmax(dim=1)
    rows = torch.arange(2, device=moved.device)
    advanced = moved.advance(state, tokens).select(rows)
    assert advanced.ids.tolist() == moved.advance(state, tokens.cpu().numpy()).ids.tolist()


@pytest.mark.parametrize("strategy", ["greedy", "sample"])
def test_decoding_on_the_host_chooses_as_it_does_from_the_cpus_model(model, moved, strategy):
    parameters = DecodingParameters(max_tokens=1, strategy=strategy, top_k=6, top_p=0.9, temperature=0.8)
    chosen = []
    for each in (model, moved):
        log_probs = to_numpy(each.next_log_probs(each.initial_state(4)))
        rules = compile_rules(parameters, np.zeros(0, np.int64))
        batch = SequenceBatch.of([rules] * 4, [row_seed(0, row) for row in range(4)])
        chosen.append(
            choose_tokens(log_probs, batch.rows(), uniform_numbers(batch.seeds, batch.lengths)).tokens
        )
    assert np.array_equal(*chosen)


def test_read_only_and_reversed_arrays_are_taken(moved):
    tokens = np.array([[3, 4, 5], [5, 7, 8]])
    tokens.flags.writeable = False
    state, lengths = moved.initial_state(2), np.array([3, 2])
    forwards = score_sequences(moved, state, tokens, lengths)
    assert np.array_equal(score_sequences(moved, state, tokens[::-1], lengths[::-1]), forwards[::-1])
    assert len(moved.advance(state, tokens[:, 0])) == 2


@pytest.mark.parametrize("word", [-1, 10, 2**40])
def test_an_unknown_id_is_refused_by_name(moved, word):
    message = f"token 1 of the batch is {word}, but token ids are 0 to 9"
    two, one = moved.initial_state(2), moved.initial_state(1)
    calls = [
        lambda: moved.advance(two, np.array([3, word])),
        lambda: moved.advance(two, torch.tensor([3, word], device=moved.device)),
        lambda: score_sequences(moved, one, np.array([[3, word]]), np.array([2])),
        lambda: prefill_sequences(moved, one, np.array([[3, word]]), np.array([2])),
    ]
    for call in calls:
        with pytest.raises(InputError, match=message):
            call()


def test_padding_of_a_row_is_ignored(moved):
    tokens = np.array([[3, 4, 5], [3, 10**9, -7]])
    scores = score_sequences(moved, moved.initial_state(2), tokens, np.array([3, 1]))
    assert scores[1].tolist() == [scores[0, 0], 0, 0]


def test_only_tokens_that_can_matter_are_looked_at_to_prefill(model, moved):
    tokens, lengths = np.array([[-5, 3, 4], [10**9, 5, 7]]), np.array([3, 3])
    expected = prefill_sequences(model, model.initial_state(2), tokens, lengths)
    assert (
        prefill_sequences(moved, moved.initial_state(2), tokens, lengths).ids.tolist()
        == expected.ids.tolist()
    )


def test_no_tokens_leave_the_state(moved):
    state, lengths = moved.initial_state(2), np.zeros(2, np.int64)
    assert (
        prefill_sequences(moved, state, np.zeros((2, 0), np.int64), lengths).ids.tolist()
        == state.ids.tolist()
    )
    assert score_sequences(moved, state, np.zeros((2, 0), np.int64), lengths).shape == (2, 0)


def test_shapes_that_do_not_fit_are_refused(moved):
    state = moved.initial_state(2)
    with pytest.raises(InputError, match="the state has 2 rows"):
        moved.advance(state, np.array([3]))
    for want in (SCORES, STATE):
        with pytest.raises(InputError, match=r"they must be \[2, T\] and \[2\]"):
            moved.read(state, np.array([[3]]), np.array([1]), want)
        with pytest.raises(InputError, match="lengths go up to 5, tokens have 1 columns"):
            moved.read(state, np.array([[3], [3]]), np.array([1, 5]), want)


@pytest.mark.parametrize("k", [0, 11])
def test_more_tokens_than_there_are_cannot_be_ranked(moved, k):
    with pytest.raises(InputError, match=f"k is {k}, it can be 1 to 10"):
        moved.top_k(moved.initial_state(1), k)


def test_copying_in_small_pieces_changes_nothing(model, moved, monkeypatch):
    monkeypatch.setattr(kernels, "_BLOCK", 5)
    again = kernels.to_tensors(model.automaton, moved.device)
    for one, other in zip(again, moved._automaton, strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_words_of_three_bytes_are_put_together():
    words = np.array([0, 255, 256, 65_535, 65_536, 2**24 - 1], np.int32)
    as_bytes = words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    assert word_ids(as_bytes).tolist() == word_ids(words).tolist() == words.tolist()


def test_nothing_is_charged_below_the_empty_context(model, moved):
    """A file's back-off weight of the empty context is ignored, as on the CPU."""
    backoffs = model.automaton.log10_backoffs.copy()
    backoffs[0] = -3
    odd = NGramModel(model.automaton._replace(log10_backoffs=backoffs), model.vocabulary)
    again = TensorNGramModel(odd, device=moved.device)
    assert torch.equal(again.next_log_probs(again.empty_state(1)), moved.next_log_probs(moved.empty_state(1)))


class Recorder(TorchDispatchMode):
    """Record every torch operation; on a device each would launch a kernel."""

    def __init__(self):
        super().__init__()
        self.done = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.done.append(operation.overloadpacket.__name__ + " sized" * ("output_size" in kwargs))
        return operation(*args, **kwargs)


CALLS = {
    "next_log_probs": lambda model, state, _: model.next_log_probs(state),
    "top_k": lambda model, state, _: model.top_k(state, 3),
    "advance": lambda model, state, rows: model.advance(state, rows[:, 0]),
    "score": lambda model, state, rows: score_sequences(model, state, rows, np.full(len(rows), 5)),
    "prefill": lambda model, state, rows: prefill_sequences(model, state, rows, np.full(len(rows), 5)),
}


def operations(model, call, batch):
    """Torch operations for a batch of texts of different lengths."""
    rows = np.random.default_rng(batch).integers(0, 10, (batch, 5))
    state = model.advance(model.initial_state(batch), rows[:, 0])
    with Recorder() as recorder:
        CALLS[call](model, state, rows)
    return recorder.done


@pytest.mark.parametrize("call", CALLS)
def test_there_is_no_loop_over_rows_or_words(moved, call):
    assert operations(moved, call, 20) == operations(moved, call, 500)


@pytest.mark.parametrize("call", CALLS)
def test_nothing_waits_for_the_device_but_to_fetch_results_and_lengths(moved, call):
    """Each of these operations makes the host wait for the device."""
    waiting = {"_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "repeat_interleave"}
    assert waiting.isdisjoint(operations(moved, call, 20))


@pytest.mark.parametrize("failure", [torch.OutOfMemoryError, torch.AcceleratorError])
@pytest.mark.parametrize("where", ["__init__", "next_log_probs"])
def test_a_model_that_a_device_cannot_take_stays_on_the_cpu(model, monkeypatch, caplog, failure, where):
    def fail(*_, **__):
        raise failure("CUDA out of memory. Tried to allocate 1 GiB.\nmore")

    monkeypatch.setattr(TensorNGramModel, where, fail)
    with caplog.at_level(logging.WARNING):
        assert cuda_model.move_if_it_fits(model, "cpu") is model
    reason = "CUDA out of memory. Tried to allocate 1 GiB."
    assert caplog.messages == [
        f"n-gram model of 28 n-grams stays on the CPU because device cpu cannot run it: {reason}"
    ]
