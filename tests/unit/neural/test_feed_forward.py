"""The fixed-window network."""

import pytest
import torch
from torch.autograd import gradcheck

from models.neural.config import NetworkConfig
from models.neural.recurrent import FeedForward


def body(**options):
    torch.manual_seed(6)
    sizes = {"embedding_size": 3, "hidden_size": 5, "dropout": 0.0, "window": 3}
    return FeedForward(NetworkConfig(cell="feed-forward", **sizes | options)).double()


@pytest.mark.parametrize("options", [{}, {"layers": 3, "residual": True, "layer_norm": True}])
def test_gradients_pass_a_numerical_check(options):
    layer = body(**options)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(inputs, before, *rest):
        return torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (inputs, (before,)))[0]

    leaves = [torch.randn(4, 2, 3).double(), torch.randn(2, 2, 3).double(), *(w.detach() for w in weights)]
    assert gradcheck(run, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


def test_a_token_is_seen_for_as_long_as_it_is_in_the_window():
    layer, inputs = body(), torch.randn(6, 2, 3).double()
    outputs = layer(inputs, layer.start(2))[0]
    inputs[1] += 1
    changed = (layer(inputs, layer.start(2))[0] != outputs).flatten(1).any(1)
    assert changed.tolist() == [False, True, True, True, False, False]


def test_what_is_carried_is_the_last_vectors():
    layer, inputs = body(), torch.randn(2, 2, 3).double()
    (first,) = layer(inputs[:1], layer.start(2))[1]
    assert torch.equal(first, torch.stack([torch.zeros(2, 3).double(), inputs[0]]))
    (second,) = layer(inputs[1:], (first,))[1]
    assert torch.equal(second, inputs)


def test_a_skip_goes_round_layers_of_equal_width_only():
    assert body(layers=2, residual=True).skips == [False, True]
    assert body(layers=2, residual=True, hidden_size=9).skips == [True, True]  # the window's vectors: 3 × 3
    assert body(layers=2).skips == [False, False]


def test_a_layer_that_adds_nothing_leaves_a_skip_alone():
    layer, inputs = body(layers=1, residual=True, hidden_size=9), torch.randn(3, 2, 3).double()
    torch.nn.init.zeros_(layer.layers[0].weight)
    torch.nn.init.zeros_(layer.layers[0].bias)
    outputs = layer(inputs, layer.start(2))[0]
    assert torch.equal(outputs[2], inputs.transpose(0, 1).reshape(2, 9))
