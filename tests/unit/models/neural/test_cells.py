"""Recurrent cells: gradients, initialisation, weight drop and dropout."""

import pytest
import torch
from torch.autograd import gradcheck

from models.neural.cells import Dropout, MinGRU, TorchCell, drop_tokens, drop_weights, linear_recurrence
from models.neural.config import NetworkConfig
from models.neural.network import Network
from tests.support.families import DEVICES

CELLS = ("elman", "lstm", "gru", "mingru")
WITH_MATRICES = (*CELLS[:3], "relu")


def cell(name, **options):
    """Small layer; `relu` is an Elman cell with ReLU."""
    torch.manual_seed(2)
    kind = {"cell": "elman", "activation": "relu"} if name == "relu" else {"cell": name}
    config = NetworkConfig(**kind, hidden_size=4, **options)
    return (MinGRU(3, 4) if config.cell == "mingru" else TorchCell(config, 3)).double()


def carried(layer, batch=2):
    return tuple(torch.randn(batch, 4, dtype=torch.float64) for _ in range(getattr(layer, "parts", 1)))


@pytest.mark.parametrize("name", [*CELLS, "relu"])
def test_gradients_pass_a_numerical_check(name):
    """Gradients of outputs and new states with respect to inputs, old states and all weights."""
    layer = cell(name)
    names, weights = zip(*layer.named_parameters(), strict=True)
    before = carried(layer)

    def run(inputs, *rest):
        replaced = dict(zip(names, rest[len(before) :], strict=True))
        outputs, after = torch.func.functional_call(layer, replaced, (inputs, rest[: len(before)]))
        return outputs, *after

    leaves = [torch.randn(5, 2, 3, dtype=torch.float64), *before, *(w.detach() for w in weights)]
    assert gradcheck(run, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("name", CELLS)
def test_gradients_of_single_steps_are_those_of_the_whole(name):
    layer = cell(name)
    inputs, before = torch.randn(6, 2, 3, dtype=torch.float64), carried(layer)
    layer(inputs, before)[0][-1].square().sum().backward()
    whole = {n: p.grad.clone() for n, p in layer.named_parameters()}
    layer.zero_grad()
    for vector in inputs:
        _, before = layer.step(vector, before)
    before[0].square().sum().backward()
    for n, p in layer.named_parameters():
        torch.testing.assert_close(p.grad, whole[n])


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 33])
def test_a_recurrence_by_doubling_is_the_recurrence(steps):
    decays, drives = torch.rand(steps, 2, 3, dtype=torch.float64), torch.randn(steps, 2, 3).double()
    h = start = torch.randn(2, 3, dtype=torch.float64)
    expected = []
    for a, b in zip(decays, drives, strict=True):
        h = a * h + b
        expected.append(h)
    torch.testing.assert_close(linear_recurrence(decays, drives, start), torch.stack(expected))


def test_a_long_recurrence_neither_overflows_nor_vanishes():
    """With decays near 0 long products underflow; a quotient of products would be 0 / 0."""
    decays = torch.full((400, 1, 1), 1e-6)
    outputs = linear_recurrence(decays, torch.ones(400, 1, 1), torch.ones(1, 1))
    torch.testing.assert_close(outputs, torch.full((400, 1, 1), 1.000001))


@pytest.mark.parametrize("name", WITH_MATRICES)
def test_every_gate_starts_orthogonal_where_asked_for(name):
    for orthogonal in (True, False):
        matrix = cell(name, orthogonal=orthogonal).weights()[1]
        off = [(gate @ gate.T - torch.eye(4)).abs().max() for gate in matrix.split(4)]
        assert (max(off) < 1e-6) == orthogonal


def test_forget_gates_start_with_their_bias():
    kernel = cell("lstm", forget_bias=1.5).kernel
    bias = (kernel.bias_ih_l0 + kernel.bias_hh_l0).reshape(4, 4)
    assert (bias[1] == 1.5).all()
    assert not bias[[0, 2, 3]].any()


@pytest.mark.parametrize("name", WITH_MATRICES)
def test_weight_drop_changes_training_and_spares_evaluation(name):
    layer = cell(name, weight_drop=0.5)
    inputs, before = torch.randn(4, 2, 3, dtype=torch.float64), carried(layer)
    plain = cell(name)(inputs, before)[0]
    assert not torch.equal(layer(inputs, before)[0], plain)
    assert torch.equal(layer.eval()(inputs, before)[0], plain)


@pytest.mark.parametrize("name", WITH_MATRICES)
def test_weight_drop_is_the_kernel_with_other_weights(name):
    """Outputs equal those of a layer with the dropped weights set to 0; gradients reach the others."""
    layer = cell(name, weight_drop=0.5)
    inputs, before = torch.randn(4, 2, 3, dtype=torch.float64), carried(layer)
    torch.manual_seed(5)
    outputs = layer(inputs, before)[0]
    torch.manual_seed(5)
    dropped = layer.dropped_weights()[1].detach()
    outputs.sum().backward()
    gone = dropped == 0
    assert 0.2 < gone.double().mean() < 0.8
    assert not layer.kernel.weight_hh_l0.grad[gone].any()
    assert layer.kernel.weight_hh_l0.grad[~gone].any()
    layer.kernel.weight_hh_l0.data.copy_(dropped)
    torch.testing.assert_close(layer.eval()(inputs, before)[0], outputs)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WITH_MATRICES)
def test_dropped_weights_suit_the_kernels_of_every_device(name, device):
    """Warnings are errors here; cuDNN warns of non-contiguous weights and copies them."""
    layer = cell(name, weight_drop=0.5).float().to(device)
    inputs, before = torch.randn(4, 2, 3), [part.float() for part in carried(layer)]
    outputs = layer(inputs.to(device), tuple(part.to(device) for part in before))[0]
    outputs.sum().backward()
    assert layer.kernel.weight_hh_l0.grad.any()


@pytest.mark.parametrize("name", CELLS)
def test_layers_compute_in_bfloat16_where_told_to(name):
    layer = cell(name).float()
    inputs, before = torch.randn(4, 2, 3), tuple(part.float() for part in carried(layer))
    expected = layer(inputs, before)[0]
    with torch.autocast("cpu", torch.bfloat16):
        if name == "lstm" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            with pytest.raises(RuntimeError, match="LSTM"):  # training rejects this case with its own error
                layer(inputs, before)
            return
        outputs, after = layer(inputs, before)
        layer(inputs, after)  # the new state is valid input
    torch.testing.assert_close(outputs.float(), expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("variational", [True, False])
def test_a_share_of_the_values_is_dropped_and_the_mean_stays(variational):
    torch.manual_seed(0)
    values = Dropout(0.3, variational=variational)(torch.ones(3, 400, 50))
    assert float((values == 0).float().mean()) == pytest.approx(0.3, abs=0.02)
    assert float(values.mean()) == pytest.approx(1, abs=0.02)


def test_a_variational_row_drops_the_same_at_every_step_and_rows_differ():
    values = Dropout(0.5, variational=True)(torch.ones(6, 4, 40))
    assert (values == values[:1]).all()
    assert not (values[0] == values[0, :1]).all()


def test_plain_dropout_differs_from_step_to_step():
    values = Dropout(0.5, variational=False)(torch.ones(6, 4, 40))
    assert not (values == values[:1]).all()


def test_nothing_is_dropped_in_evaluation_or_with_a_share_of_zero():
    values = torch.randn(3, 2, 5)
    assert torch.equal(Dropout(0.5, variational=True).eval()(values), values)
    assert torch.equal(Dropout(0.0, variational=True)(values), values)


def test_a_dropped_token_is_dropped_wherever_it_stands():
    torch.manual_seed(0)
    tokens = torch.arange(200).repeat(5, 2)
    kept = drop_tokens(torch.ones(5, 400, 3), tokens, 0.4, 200)[..., 0]
    assert (kept == kept[:1, :200].repeat(5, 2)).all()
    assert float((kept == 0).float().mean()) == pytest.approx(0.4, abs=0.1)


def test_dropped_weights_are_of_the_share():
    torch.manual_seed(0)
    weights = drop_weights(torch.ones(300, 300), 0.25)
    assert float((weights == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(weights.mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("cell", ["feed-forward", "elman", "lstm", "gru", "mingru"])
def test_a_network_in_evaluation_drops_nothing(cell):
    """With every dropout, outputs vary between calls in training mode but not in evaluation mode."""
    config = NetworkConfig(
        cell=cell,
        layers=2,
        embedding_size=8,
        hidden_size=8,
        dropout=0.5,
        embedding_dropout=0.5,
        weight_drop=0.5,
    )
    network = Network(config, 20)
    tokens, start = torch.arange(2, 18).reshape(8, 2), network.initial_hidden(2)

    def outputs():
        return network.features(network(tokens, start)[0])

    assert not torch.equal(outputs(), outputs())
    network.eval()
    assert torch.equal(outputs(), outputs())
