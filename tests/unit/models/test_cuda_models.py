"""Models on a CUDA device or the stand-in for one: the CPU's results, and no copies that a step does not need.

Invariants of the families, and the properties of n-gram models on a device, are those of the CPU's tests.
"""

import copy
import functools

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.cache.config import CacheConfig
from models.cache.model import CacheModel
from models.checkpoint.load import CheckpointDescription, load_checkpoint, write_checkpoint
from models.errors import InputError
from models.language_model import (
    BOS,
    EOS,
    UNK,
    Want,
    pad_sequences,
    prefill_sequences,
    read_sequences,
    read_step_by_step,
    score_choices,
    score_sequences,
)
from models.mixture import MixtureModel
from models.neural.model import NeuralModel
from models.ngram.cuda.model import TensorNGramModel
from models.ngram.model import NGramModel
from models.pretrained.model import PretrainedModel
from tests.property import test_ngram_on_device as on_device
from tests.property.test_family_invariants import (  # noqa: F401 - collected here with other models
    batch,
    test_a_batch_of_no_rows_has_no_answers,
    test_a_row_scores_the_same_alone_and_in_any_company,
    test_reading_a_context_at_once_leaves_the_state_of_reading_it_step_by_step,
    test_rows_sum_to_one_and_the_start_is_never_predicted,
    test_score_of_a_whole_is_that_of_its_halves,
    test_states_are_values,
    test_whole_sequences_score_as_step_by_step,
)
from tests.property.test_ngram_on_device import (  # noqa: F401 - collected here on another device
    test_no_rows_are_no_trouble,
    test_stretches_of_rows_change_nothing,
    test_stretches_of_tokens_change_nothing,
)
from tests.support import families
from tests.support.cuda_stand_in import KINDS, cuda_device
from tests.support.pretrained import CONFIGS, TEXTS, WINDOW, pretrained

FAMILIES = [name for name in families.NAMES if name != "tensor ngram"]


@pytest.fixture(autouse=True, params=KINDS)
def cuda(request):
    with cuda_device(request.param) as device:
        yield device


where_copies_are_counted = pytest.mark.parametrize("cuda", ["stand-in"], indirect=True)


@pytest.fixture
def device():
    return "cuda"


@pytest.fixture(params=FAMILIES)
def name(request):
    return request.param


@pytest.fixture
def model(name, cuda):
    return moved(name, cuda.kind)


@functools.cache
def moved(name, kind):
    """Return the model of a family on the device of a kind, whose tensors are its own."""
    return to_device(families.model(name))


def to_device(model):
    if isinstance(model, NeuralModel):
        return NeuralModel(copy.deepcopy(model.network), model.vocabulary, device="cuda")
    if isinstance(model, NGramModel):
        return TensorNGramModel(model, device="cuda")
    return model.with_parts([to_device(part) for part in model.parts])


def after(model, rows):
    return prefill_sequences(model, model.initial_state(len(rows)), *pad_sequences(rows))


ROWS = [[5, 9, 12, 0, 33, 7], [4], [8, 8, EOS, 20], [], [36, 17, 3]]


def test_the_results_are_those_of_the_cpu(name, model):
    original = families.model(name)
    there, here = after(model, ROWS), after(original, ROWS)
    np.testing.assert_allclose(
        to_numpy(model.next_log_probs(there)), to_numpy(original.next_log_probs(here)), atol=1e-5
    )
    tokens, lengths = pad_sequences([[3, 5], [0, 9, EOS, 7], [6], [], [11, 2, 30]])
    np.testing.assert_allclose(
        score_sequences(model, there, tokens, lengths),
        score_sequences(original, here, tokens, lengths),
        atol=1e-5,
    )
    rows, ids = np.array([0, 0, 0, 1, 2, 4, 4]), np.array([0, 2, 39, 7, 8, 9, 20])
    np.testing.assert_allclose(
        score_choices(model, there, rows, ids), score_choices(original, here, rows, ids), atol=1e-5
    )


@pytest.mark.parametrize("name", [name for name in FAMILIES if "ngram" not in name and "cache" not in name])
def test_features_are_those_of_the_cpu(cuda, name, model):
    original = families.model(name)
    atol = 1e-5 if cuda.counts_copies else 2e-5  # a device's own kernels round otherwise
    there, here = after(model, ROWS), after(original, ROWS)
    np.testing.assert_allclose(to_numpy(model.features(there)), to_numpy(original.features(here)), atol=atol)
    tokens, lengths = pad_sequences([[3, 5], [0, 9, EOS, 7], [6], [], [11, 2, 30]])
    found, expected = (
        to_numpy(some.features(read_sequences(some, state, tokens, lengths, Want(features=True)).before))
        for some, state in ((model, there), (original, here))
    )
    np.testing.assert_allclose(found, expected, atol=atol)


def test_forks_do_not_disturb_one_another(model):
    begun = after(model, [[5, 6]])
    before = to_numpy(model.next_log_probs(begun)).copy()
    branches = [begun, begun.select(np.array([0, 0])).select(np.array([1])), begun]
    for token in (7, 8, 9):
        branches = [model.advance(branch, np.array([token + n])) for n, branch in enumerate(branches)]
    assert (to_numpy(model.next_log_probs(begun)) == before).all()
    for number, branch in enumerate(branches):
        alone = after(model, [[5, 6, 7 + number, 8 + number, 9 + number]])
        found, expected = (to_numpy(model.next_log_probs(state)) for state in (branch, alone))
        np.testing.assert_allclose(found, expected, atol=1e-5)


# Bytes of copies for three rows.
IDS, STATES, WEIGHTS = 3 * 8, 3 * 4, 3 * 2 * 4
COUNTS = 3 * 3 * 8  # of the arcs of each context
ROWS_OF_PROBABILITIES, FEATURES = 3 * 4 * (len(families.WORDS) + 3), 3 * 4 * 13
BY_CONTEXT = ([IDS, IDS, WEIGHTS], [COUNTS, STATES])
CACHE = [FEATURES, ROWS_OF_PROBABILITIES, FEATURES]
STEPS = {
    **dict.fromkeys(families.NEURAL, ([IDS], [])),
    "ngram": ([IDS], [COUNTS]),
    "mixture": ([IDS] * 2, [COUNTS]),
    "nested mixture": ([IDS] * 3, [COUNTS]),
    "mixture by context": BY_CONTEXT,
    "cache": ([IDS], CACHE),  # computes on the host
    "unigram cache": ([IDS], [COUNTS, ROWS_OF_PROBABILITIES]),
    "cached mixture": (BY_CONTEXT[0], BY_CONTEXT[1] + CACHE),
    "adapted cache": (BY_CONTEXT[0], BY_CONTEXT[1] + CACHE),
}
"""Copies to the device and to the host in one step of a family, `advance` and `next_log_probs`."""


@where_copies_are_counted
def test_a_step_copies_token_ids_to_the_device_and_what_the_host_computes_with(cuda, name, model):
    state = model.advance(model.initial_state(3), np.array([4, 5, 6]))  # captures the graph
    with cuda.measured() as report:
        model.next_log_probs(model.advance(state, np.array([7, 8, 9])))
    assert report.waits == []
    to_device, to_host = STEPS[name]
    assert sorted(report.to_device) == sorted(to_device)
    assert sorted(report.to_host) == sorted(to_host)


READS = {
    **dict.fromkeys(families.NEURAL, ((4, 1), (4, 0), (1, 1))),
    "ngram": ((3, 3), (3, 0), (4, 3)),
    "mixture": ((7, 4), (7, 0), (5, 4)),
    "mixture by context": ((8, 6), (7, 0), (5, 5)),
}
"""Number of copies to the device and to the host that sequences take: their scores, their state, and choices."""


@where_copies_are_counted
@pytest.mark.parametrize("name", READS)
def test_sequences_are_copied_at_once_whatever_their_length(cuda, name, model):
    state = model.initial_state(3)
    for rows in ([[3, 5, 4], [0, 9, EOS], [6, 7]], [[7] * 20, [8] * 25, [9] * 30]):
        tokens, lengths = pad_sequences(rows)
        counts = []
        for read in (score_sequences, prefill_sequences):
            with cuda.measured() as report:
                read(model, state, tokens, lengths)
            counts.append((len(report.to_device), len(report.to_host)))
            assert len(report.waits) == (2 if (name, read) == ("adaptive", score_sequences) else 0)
        with cuda.measured() as report:
            score_choices(model, state, np.array([0, 0, 1, 2]), np.array([3, 4, 5, 6]))
        counts.append((len(report.to_device), len(report.to_host)))
        assert tuple(counts) == READS[name]


@pytest.mark.parametrize(
    "check",
    [
        on_device.test_distributions_are_the_same,
        on_device.test_every_token_leads_to_the_same_state,
        on_device.test_sequences_score_the_same_and_by_the_same_ngrams,
        on_device.test_a_context_leads_to_the_same_state,
        on_device.test_the_top_of_a_distribution_is_the_top_of_the_whole_and_equals_stand_in_order_of_id,
    ],
)
@pytest.mark.parametrize("seed", [3, 4, 5])  # quantised, complete, and with missing suffixes
def test_any_ngram_model_has_the_results_of_the_cpu(check, seed):
    check.hypothesis.inner_test(seed, "cuda")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Published models: their folders by name."""
    folder = tmp_path_factory.mktemp("checkpoints")
    about = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    parts = {"ngram": (), "lstm": (), "every option": (), "mixture by context": ("lstm", "ngram")}
    for name, of_name in (parts | {"cached mixture": ("mixture by context",)}).items():
        (folder / name).mkdir()
        own = [folder / part for part in of_name]
        write_checkpoint(folder / name, families.model(name), families.tokenizer(), about, parts=own)
    _, model, tokenizer = pretrained("llama")
    (folder / "pretrained").mkdir()
    write_checkpoint(folder / "pretrained", model, tokenizer, about)
    return folder


@pytest.mark.parametrize(
    ("name", "device", "precision"),
    [
        ("ngram", "cuda", "float32"),
        ("ngram", "auto", "cpu"),
        ("lstm", "cuda:0", "float32"),
        ("every option", "auto", "float32"),
        ("mixture by context", "cuda", "float32"),
        ("cached mixture", "auto", "float32"),
        ("pretrained", "cuda", "bfloat16"),
    ],
)
def test_a_checkpoint_loads_on_the_device_and_reproduces_its_scores(
    checkpoints, cuda, name, device, precision
):
    loaded = load_checkpoint(checkpoints / name, device=device)
    if precision == "cpu":
        assert loaded.model.memory().device == 0
        assert not cuda.counts_copies or cuda.report.transfers == []
        return
    assert loaded.precision == precision
    assert loaded.model.memory().device > 0
    assert not cuda.counts_copies or len(cuda.report.to_host) > 0


@pytest.mark.parametrize(
    ("device", "message"), [("cuda:1", "torch sees 1 CUDA devices"), ("cuda", "requires the CPU")]
)
def test_unavailable_device_or_precision_is_refused(checkpoints, device, message):
    with pytest.raises(InputError, match=message):
        load_checkpoint(checkpoints / "lstm", device=device, precision="int8")


def test_a_network_is_saved_from_the_device(cuda, tmp_path):
    moved("every option", cuda.kind).save(tmp_path)
    loaded = NeuralModel.load(tmp_path, families.tokenizer().vocabulary)
    original = families.model("every option")
    for network in (loaded.network, moved("every option", cuda.kind).network):
        arrays = network.weights().arrays
        assert all(
            np.array_equal(arrays[name], array) for name, array in original.network.weights().arrays.items()
        )


@functools.cache
def pretrained_pair(kind, device, *, bfloat16=False):
    _, model, tokenizer = pretrained(kind)
    there = PretrainedModel(model._folder, model.vocabulary, device="cuda", bfloat16=bfloat16)
    return model, there, [[*ids, EOS] for ids in tokenizer.encode_all(TEXTS[::12])]


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_compute_the_results_of_the_cpu(cuda, kind):
    model, there, texts = pretrained_pair(kind, cuda.kind)
    tokens, lengths = pad_sequences([*texts, []])
    want = Want(scores=True, state=True, before=True)
    expected, whole, steps = (
        read(some, some.initial_state(len(lengths)), tokens, lengths, want)
        for read, some in ((read_sequences, model), (read_sequences, there), (read_step_by_step, there))
    )
    for found in (whole, steps):
        np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-4)
        np.testing.assert_allclose(
            to_numpy(there.next_log_probs(found.state)), model.next_log_probs(expected.state), atol=1e-4
        )
        np.testing.assert_allclose(
            to_numpy(there.features(found.before)), model.features(expected.before), atol=1e-4
        )
    single = score_sequences(there, there.initial_state(1), *pad_sequences(texts[:1]))[0]
    np.testing.assert_allclose(single, whole.log_probs[0, : len(single)], atol=1e-4)


def test_a_transformer_in_half_precision_is_near_the_cpus_in_single_precision(cuda):
    model, there, texts = pretrained_pair("gpt2", cuda.kind, bfloat16=True)
    assert there.next_log_probs(there.initial_state(1)).dtype == torch.float32
    given = pad_sequences(texts)
    found, expected = (
        score_sequences(some, some.initial_state(len(texts)), *given) for some in (there, model)
    )
    assert 0 < np.abs(found - expected).max() < 0.5


def test_branches_of_a_transformer_and_its_window(cuda):
    model, there, texts = pretrained_pair("llama", cuda.kind)
    path = [token for ids in texts * 3 for token in ids[:-1]]
    assert len(path) > WINDOW
    for some in (model, there):
        some.last = prefill_sequences(some, some.initial_state(1), *pad_sequences([path]))
    np.testing.assert_allclose(
        to_numpy(there.next_log_probs(there.last)), model.next_log_probs(model.last), atol=1e-4
    )
    begun = prefill_sequences(there, there.initial_state(1), *pad_sequences(texts[:1]))
    before = to_numpy(there.next_log_probs(begun))
    branches = there.advance(begun.select(np.zeros(3, np.int64)), np.array([UNK, 9, 10]))
    assert len(branches.concatenate([begun])) == 4
    alone = there.advance(begun, np.array([9]))
    found = to_numpy(there.next_log_probs(branches))
    np.testing.assert_allclose(found[1], to_numpy(there.next_log_probs(alone))[0], atol=1e-4)
    assert (to_numpy(there.next_log_probs(begun)) == before).all()
    assert (found[:, BOS] == -np.inf).all()


@where_copies_are_counted
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_of_a_transformer_copies_ids_and_positions_to_the_device_and_no_more(cuda, kind):
    _, model, _ = pretrained_pair(kind, cuda.kind)
    state = model.advance(model.initial_state(3), np.array([4, 5, 6]))
    with cuda.measured() as report:
        model.next_log_probs(model.advance(state, np.array([7, 8, 9])))
    assert (report.to_device, report.to_host, report.waits) == ([2 * IDS], [], [])


def test_models_on_two_devices_are_mixed_on_the_host(cuda):
    parts = [moved("lstm", cuda.kind), families.model("ngram")]
    found = MixtureModel(parts, [0.3, 0.7])
    expected = MixtureModel([families.model("lstm"), families.model("ngram")], [0.3, 0.7])
    there, here = after(found, ROWS), after(expected, ROWS)
    with cuda.measured() as report:
        log_probs = found.next_log_probs(there)
    assert isinstance(log_probs, np.ndarray)
    assert report.to_host == [len(ROWS) * ROWS_OF_PROBABILITIES // 3] * cuda.counts_copies
    np.testing.assert_allclose(log_probs, expected.next_log_probs(here), atol=1e-5)


def test_a_cache_around_a_transformer_computes_on_the_host(cuda):
    model, there, texts = pretrained_pair("qwen2", cuda.kind)
    config = CacheConfig(kind="continuous", window=6, flatness=3.0, half_life=4.0, weight=0.25)
    found, expected = (
        score_sequences(cached, cached.initial_state(len(texts)), *pad_sequences(texts))
        for cached in (CacheModel(there, config), CacheModel(model, config))
    )
    np.testing.assert_allclose(found, expected, atol=1e-4)
