"""Products in single precision of packed weights, in digits and in floats, and the layers that are made of them."""

import numba
import numpy as np
import pytest
import torch

from models.language_model import BlockSampler, pad_sequences, supports
from models.neural.cells import make_cell
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.neural.packed import split_products
from models.neural.packed.matrix import (
    BEST_PACKING,
    FLOAT_PACKING,
    SPLIT_FLOAT_PACKING,
    PackedLinear,
    multiply_vectors,
)
from models.neural.packed.network import PackedCell, pack_network
from models.neural.packed.softmax import PackedSoftmax
from models.neural.packed.split_products import empty_split_floats, split_floats
from models.neural.softmax import Softmax
from models.tensor_files import PrivateWeightCache
from models.vocabulary import BOS, Vocabulary

# the second is what processors without tiles use
PRODUCTS = [split_products.multiply_block, split_products._multiply_plainly]

PACKINGS = pytest.mark.parametrize("packing", [SPLIT_FLOAT_PACKING, FLOAT_PACKING], ids=["digits", "floats"])


def random_matrix(rows, columns, seed=0):
    return np.random.default_rng(seed).normal(0, 0.3, (rows, columns)).astype(np.float32)


def value_of(digits, row, width):
    """What the digits of a row stand for, in double precision."""
    places = digits.values.reshape(len(digits.scales) // 16, -1, 3, 16, 64)[row // 16, :, :, row % 16]
    numbers = places.astype(np.float64).transpose(1, 0, 2).reshape(3, -1)[:, :width]
    return (numbers * [[1], [2.0**-8], [2.0**-16]]).sum(0) * digits.scales[row]


@pytest.mark.parametrize("width", [1, 13, 64, 511])
def test_digits_stand_for_a_row_to_the_last_bits_of_its_largest_number(width):
    vectors = random_matrix(19, width)
    digits = empty_split_floats(19, width)
    split_floats(vectors, digits, 0)
    for row, vector in enumerate(vectors):
        worst = np.abs(value_of(digits, row, width) - vector).max()
        assert worst <= np.abs(vector).max() * 2.0**-22


@PACKINGS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [3, 18])
def test_a_row_with_what_is_no_number_has_no_product(packing, bad, place):
    vectors = random_matrix(2, 20)
    vectors[0, place] = bad
    products = multiply_vectors(packing.pack(random_matrix(5, 20), np.zeros(5, np.float32), 0.0), vectors)
    assert not np.isfinite(products[0, :5]).any()
    assert packing is FLOAT_PACKING or np.isnan(products[0, :5]).all()
    assert np.isfinite(products[1]).all()


@PACKINGS
def test_a_row_of_zeros_is_one(packing):
    bias = np.arange(5, dtype=np.float32)
    products = multiply_vectors(packing.pack(random_matrix(5, 20), bias, 0.0), np.zeros((1, 20), np.float32))
    assert (products[0, :5] == bias).all()


@pytest.mark.parametrize("multiply", PRODUCTS)
def test_a_block_sums_products_of_digits_exactly(multiply):
    @numba.njit
    def fill(rows, columns, sums):
        split_products.configure(split_products.SHAPES, 16)
        multiply(rows, 0, columns, 0, 3, sums)
        split_products.release()

    random = np.random.default_rng(1)
    a, b = random.integers(-128, 128, (3, 16, 192)), random.integers(-128, 128, (3, 32, 192))
    rows, columns = split_products.aligned(a.size), split_products.aligned(b.size)
    rows[:] = a.reshape(3, 16, 3, 64).transpose(2, 0, 1, 3).ravel()
    columns[:] = b.reshape(3, 2, 16, 3, 16, 4).transpose(3, 1, 0, 4, 2, 5).ravel()
    sums = np.ones(6 * 256, np.int32)
    fill(rows, columns, sums)
    for level in range(3):
        expected = sum(a[digit] @ b[level - digit].T for digit in range(level + 1))
        assert (sums.reshape(2, 3, 16, 16)[:, level] == expected.reshape(16, 2, 16).swapaxes(0, 1)).all()


@PACKINGS
@pytest.mark.parametrize("count", [1, 3, 11, 15, 16, 33])
@pytest.mark.parametrize("shape", [(1, 1), (32, 64), (33, 65), (700, 511)])
def test_products_are_as_exact_as_single_precision(packing, count, shape):
    matrix, vectors = random_matrix(*shape), random_matrix(count, shape[1], seed=1)
    bias = np.linspace(-1, 1, shape[0], dtype=np.float32)
    got = multiply_vectors(packing.pack(matrix, bias, 0.0), vectors)[:, : shape[0]]
    expected = vectors.astype(np.float64) @ matrix.T.astype(np.float64) + bias
    worst = (
        6e-6 if packing is SPLIT_FLOAT_PACKING else 1.2e-5
    )  # torch's own, summed by parts, differ by up to 5e-6
    np.testing.assert_allclose(got, expected, atol=worst)


@PACKINGS
def test_a_linear_layer_is_the_layer(packing):
    layer, inputs = torch.nn.Linear(70, 45), torch.randn(3, 7, 70)
    with torch.inference_mode():
        torch.testing.assert_close(
            PackedLinear(layer, packing, PrivateWeightCache())(inputs), layer(inputs), atol=3e-6, rtol=0
        )


@PACKINGS
@pytest.mark.parametrize(
    "options", [{"cell": "lstm"}, {"cell": "gru"}, {"cell": "elman", "activation": "relu"}]
)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_recurrent_layer_is_the_layer(packing, options, rows):
    torch.manual_seed(0)
    cell = make_cell(NetworkConfig(hidden_size=45, **options), 37)
    inputs, carried = torch.randn(9, rows, 37), tuple(torch.randn(rows, 45) for _ in range(cell.parts))
    before = [part.clone() for part in carried]
    with torch.inference_mode():
        outputs, after = PackedCell(cell, packing, PrivateWeightCache())(inputs, carried)
        wanted, wanted_after = cell(inputs, carried)
    torch.testing.assert_close((outputs, *after), (wanted, *wanted_after), atol=2e-6, rtol=0)
    assert all(torch.equal(part, was) for part, was in zip(carried, before, strict=True))


@PACKINGS
@pytest.mark.parametrize("size", [3, 32, 600, 1031])
def test_a_softmax_is_the_softmax(packing, size):
    torch.manual_seed(0)
    layer = Softmax(33, size, shared=None)
    torch.nn.init.normal_(layer.weight, std=0.3)
    features, ids = torch.randn(35, 33), torch.randint(2, size, (35,))
    with torch.inference_mode():
        layer_packed, exact = (
            PackedSoftmax(layer, packing, PrivateWeightCache()),
            layer.double().log_probs(features.double()),
        )
        wanted = exact.gather(1, ids[:, None])[:, 0].float()
        torch.testing.assert_close(layer_packed.log_probs(features), exact.float(), atol=6e-6, rtol=0)
        torch.testing.assert_close(layer_packed.target_log_probs(features, ids), wanted, atol=6e-6, rtol=0)
        assert layer_packed.log_probs(features)[:, BOS].isneginf().all()


@PACKINGS
def test_choices_are_those_of_their_rows(packing):
    torch.manual_seed(0)
    layer = PackedSoftmax(Softmax(33, 1031, shared=None), packing, PrivateWeightCache())
    features, rows = torch.randn(70, 33), torch.tensor([0, 0, 3, 3, 3, 40, 69])
    ids = torch.tensor([1030, 2, 5, 600, 5, 31, 32])
    with torch.inference_mode():
        told = layer.choice_log_probs(features, rows, ids)
        assert torch.equal(told, layer.log_probs(features)[rows, ids])


@PACKINGS
def test_a_batch_tells_each_row_what_another_batch_does_to_the_bit(packing, monkeypatch):
    torch.manual_seed(0)
    layer = PackedSoftmax(Softmax(33, 1031, shared=None), packing, PrivateWeightCache())
    features = torch.randn(70, 33)
    with torch.inference_mode():
        whole = layer.log_probs(features)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
        assert torch.equal(layer.log_probs(features), whole)
        assert torch.equal(layer.log_probs(features[5:40]), whole[5:40])


@PACKINGS
@pytest.mark.parametrize("cell", ["lstm", "gru", "elman", "mingru", "feed-forward"])
def test_a_packed_network_scores_as_the_network(packing, cell, monkeypatch):
    torch.manual_seed(0)
    config = NetworkConfig(
        cell=cell, layers=2, embedding_size=33, hidden_size=40, residual=True, layer_norm=True
    )
    vocabulary = Vocabulary([f"w{i}" for i in range(600)])
    model = NeuralModel(Network(config, len(vocabulary)), vocabulary)
    texts = [np.random.default_rng(n).integers(2, 600, n) for n in (3, 17, 0, 30, 30)]
    answers = []
    for network in (model.network.eval(), pack_network(model.network, packing)):
        monkeypatch.setitem(model.__dict__, "_served", network)
        answers.append(model.score(model.initial_state(5), *pad_sequences(texts)))
    np.testing.assert_allclose(answers[1], answers[0], atol=5e-6)


@PACKINGS
def test_a_packed_network_shares_what_it_does_not_pack(packing):
    network = Network(NetworkConfig(embedding_size=33, hidden_size=40), 50)
    served = pack_network(network, packing)
    assert served.embedding.weight is network.embedding.weight
    assert isinstance(served.output, PackedSoftmax)
    assert isinstance(network.output, Softmax)
    assert served.accepts_any_shape
    assert not network.accepts_any_shape


def test_a_loaded_model_weighs_where_weights_are_packed(tmp_path):
    vocabulary = Vocabulary([f"w{i}" for i in range(60)])
    for options, weighs in (
        ({}, BEST_PACKING is not None),
        ({"output": "adaptive", "cutoffs": (20, 40)}, False),
    ):
        config = NetworkConfig(embedding_size=33, hidden_size=40, **options)
        NeuralModel(Network(config, len(vocabulary)), vocabulary).save(tmp_path)
        assert supports(NeuralModel.load(tmp_path, vocabulary), BlockSampler) == weighs


def test_only_a_packed_softmax_holds_few_logits():
    for options, few in (({}, True), ({"output": "adaptive", "cutoffs": (20, 40)}, False)):
        network = Network(NetworkConfig(embedding_size=33, hidden_size=40, **options), 63)
        assert pack_network(network, FLOAT_PACKING).output.streams_logits == few
        assert not network.output.streams_logits
