"""The adaptive softmax: values, ranks, tying, storage and errors; unnormalised scores."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.errors import InputError, ManifestError
from models.language_model import BOS, EOS, Vocabulary, score_sequences
from models.neural.config import NetworkConfig
from models.neural.model import NeuralModel
from models.neural.network import Network
from models.neural.output import AdaptiveSoftmax, ClusteredEmbedding
from training.recipe import parse_recipe

V, E = 30, 16
CUTOFFS = (5, 11)
COUNTS = torch.tensor([float(3 + i * 7 % 31) for i in range(V)])


@pytest.fixture
def layer():
    torch.manual_seed(1)
    softmax = AdaptiveSoftmax(E, ClusteredEmbedding(V, E, cutoffs=CUTOFFS))
    for vectors in (*softmax.vectors.tables, softmax.clusters):
        torch.nn.init.uniform_(vectors, -1, 1)
    softmax.initialise_from_counts(COUNTS)
    for bias in softmax.biases:
        torch.nn.init.normal_(bias)
    return softmax


def network(**changes):
    torch.manual_seed(2)
    config = {"embedding_size": E, "hidden_size": 24, "output": "adaptive", "cutoffs": CUTOFFS}
    return Network(NetworkConfig(**(config | changes)), V).eval()


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request):
    built = network(tied=request.param)
    built.output.initialise_from_counts(COUNTS)
    return NeuralModel(built, Vocabulary([f"w{i}" for i in range(V - 3)]))


def slowly(layer, x):
    """Reference distribution after one vector, token by token in float64."""
    parameters = {name: p.detach().double().numpy() for name, p in layer.named_parameters()}
    table = [parameters[f"vectors.tables.{i}"] for i in range(3)]
    scores = [v @ x for v in [*table[0], *parameters["clusters"]]] + parameters["biases.0"]
    scores[layer.vectors.rank[BOS]] = -np.inf
    head = np.exp(scores) / np.exp(scores).sum()
    inside = []
    for i in (1, 2):
        logits = table[i] @ (parameters[f"vectors.projections.{i - 1}"] @ x) + parameters[f"biases.{i}"]
        inside.append(np.exp(logits) / np.exp(logits).sum())
    by_rank = [*head[:5], *(head[5] * inside[0]), *(head[6] * inside[1])]
    return np.array([by_rank[rank] for rank in layer.vectors.rank])


def test_probabilities_are_those_of_the_formula(layer):
    features = torch.randn(4, E)
    got = layer.log_probs(features).exp().detach().numpy()
    want = np.stack([slowly(layer, x) for x in features.double().numpy()])
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_allclose(got.sum(1), 1, atol=1e-6)
    assert not got[:, BOS].any()


def test_targets_have_the_probabilities_that_the_distribution_gives_them(layer):
    features = torch.randn(V, E)
    ids = torch.randperm(V)
    want = layer.log_probs(features).gather(1, ids[:, None])[:, 0]
    torch.testing.assert_close(layer.target_log_probs(features, ids), want)


def test_only_clusters_that_are_needed_are_computed(layer, monkeypatch):
    asked = []
    inside = layer._inside
    monkeypatch.setattr(layer, "_inside", lambda i, x: asked.append((i, len(x))) or inside(i, x))
    by_rank = torch.argsort(layer.vectors.rank)
    layer.target_log_probs(torch.randn(4, E), by_rank[[2, 20, 3, 25]])
    assert asked == [(2, 2)]


def test_choices_cost_a_row_once_and_have_the_probabilities_of_the_distribution(layer, monkeypatch):
    features, ids = torch.randn(3, E), torch.arange(V)
    rows = torch.tensor([0, 2]).repeat_interleave(V)
    want = layer.log_probs(features)[rows, ids.repeat(2)]
    asked = []
    inside = layer._inside
    monkeypatch.setattr(layer, "_inside", lambda i, x: asked.append((i, len(x))) or inside(i, x))
    torch.testing.assert_close(layer.choice_log_probs(features, rows, ids.repeat(2)), want)
    assert asked == [(1, 2), (2, 2)]


def test_it_starts_from_the_tokens_frequencies():
    layer = AdaptiveSoftmax(E, ClusteredEmbedding(V, E, cutoffs=CUTOFFS))
    layer.initialise_from_counts(COUNTS)
    got = layer.log_probs(torch.zeros(1, E)).exp()[0]
    others = torch.arange(V) != BOS
    torch.testing.assert_close(got[others], COUNTS[others] / COUNTS[others].sum(), rtol=1e-4, atol=1e-6)


def test_lengths_of_vectors_follow_log_counts_within_each_cluster():
    layer = AdaptiveSoftmax(E, ClusteredEmbedding(V, E, cutoffs=CUTOFFS))
    before = [table.norm(dim=1).detach() for table in layer.vectors.tables]
    layer.initialise_from_counts(COUNTS)
    counts = COUNTS[torch.argsort(layer.vectors.rank)]
    counts[0] = COUNTS[EOS]  # <s> is read as often as </s>
    for old, table, begin, end in zip(
        before, layer.vectors.tables, (0, *CUTOFFS), (*CUTOFFS, V), strict=True
    ):
        logs = np.log(counts[begin:end].numpy() + 1)
        np.testing.assert_allclose((table.norm(dim=1) / old).detach(), logs / logs.mean(), rtol=1e-5)


def test_ranks_fall_with_frequency_and_bos_comes_first(layer):
    ranked = torch.argsort(layer.vectors.rank)
    assert ranked[0] == BOS
    assert (COUNTS[ranked[1:]].diff() <= 0).all()


def test_input_vectors_are_widened_table_rows(layer):
    tokens = torch.arange(V).view(3, 10)
    got = layer.vectors(tokens)
    assert got.shape == (3, 10, E)
    for token, rank in enumerate(layer.vectors.rank.tolist()):
        cluster = sum(rank >= cutoff for cutoff in CUTOFFS)
        row = layer.vectors.table(cluster)[rank - layer.vectors.bounds[cluster]]
        want = row @ layer.vectors.projection(cluster) if cluster else row
        torch.testing.assert_close(got.view(V, E)[token], want)


def test_rare_tokens_have_narrow_vectors():
    built = network()
    assert [tuple(t.shape) for t in built.output.vectors.tables] == [(5, 16), (6, 4), (19, 1)]
    assert built.embedding is built.output.vectors
    assert network(tied=False).embedding is not network(tied=False).output.vectors


def test_a_stored_model_answers_as_before(model, tmp_path):
    model.save(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert sum(name.endswith(".rank") for name in stored) == 1
    loaded = NeuralModel.load(tmp_path, model.vocabulary)
    tokens, lengths = np.array([[3, 20, 4, 29]]), np.array([4])
    scores, stored_scores = (
        score_sequences(one, one.initial_state(1), tokens, lengths) for one in (model, loaded)
    )
    np.testing.assert_array_equal(scores, stored_scores)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rank: rank.fill_(0), "rank is not a permutation of 0 to 29"),
        (lambda rank: rank.add_(1), "rank is not a permutation"),
        (lambda rank: rank.copy_(torch.arange(V)), "rank of <s> is 1, it must be 0"),
    ],
)
def test_damaged_ranks_are_refused(model, tmp_path, change, problem):
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(next(tensor for name, tensor in tensors.items() if name.endswith(".rank")))
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ManifestError, match=problem):
        NeuralModel.load(tmp_path, model.vocabulary)


@pytest.mark.parametrize("cutoffs", [[], [2, 9], [9, 9], [9, 5]])
def test_cutoffs_that_do_not_rise_are_refused(cutoffs):
    with pytest.raises(
        InputError, match=r"neural\.cutoffs: must be an ascending list from 3 or more.*, given \["
    ):
        parse_recipe(
            {"family": "neural", "neural": {"output": "adaptive", "cutoffs": cutoffs}}, source="mine"
        )


def test_an_adaptive_softmax_without_cutoffs_is_refused():
    with pytest.raises(InputError, match=r"neural\.cutoffs: must be an ascending list .* given \[\]"):
        parse_recipe({"family": "neural", "neural": {"output": "adaptive"}}, source="mine")


@pytest.mark.parametrize("last", [30, 31])
def test_cutoffs_beyond_the_vocabulary_are_refused(last):
    with pytest.raises(InputError, match=r"below the vocabulary's 30 tokens, given \[5, 3[01]\]"):
        network(cutoffs=(5, last))


@pytest.mark.parametrize(
    ("neural", "train", "problem"),
    [
        ({"cutoffs": [5]}, {}, r"neural\.cutoffs requires neural\.output=adaptive, given softmax"),
        ({"self_normalised": True}, {}, r"neural\.self_normalised is decided by train\.self_normalise"),
        ({}, {"samples": 5}, r"train\.samples requires train\.loss=sampled or nce"),
        ({}, {"loss": "nce", "self_normalise": 0.1}, r"train\.self_normalise requires train\.loss=softmax"),
        (
            {"output": "adaptive", "cutoffs": [5]},
            {"loss": "nce"},
            r"train\.loss=nce requires neural\.output=softmax",
        ),
    ],
)
def test_keys_that_cannot_act_are_refused(neural, train, problem):
    with pytest.raises(InputError, match=problem):
        parse_recipe({"family": "neural", "neural": neural, "train": train}, source="mine")


def test_a_stored_configuration_with_wrong_cutoffs_is_refused(model, tmp_path):
    model.save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace("11\n", "99\n"))
    with pytest.raises(ManifestError, match=r"config\.json: neural\.cutoffs: must stay below"):
        NeuralModel.load(tmp_path, model.vocabulary)
