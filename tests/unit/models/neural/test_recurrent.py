"""The fixed-window network, and attention over past outputs."""

import pytest
import torch
from torch.autograd import gradcheck

from models.neural import layers
from models.neural.config import NetworkConfig
from models.neural.layers import AttentionBody, FeedForward, Recurrent


def window_layer(**options):
    torch.manual_seed(6)
    sizes = {"embedding_size": 3, "hidden_size": 5, "dropout": 0.0, "window": 3}
    return FeedForward(NetworkConfig(cell="feed-forward", **sizes | options)).double()


@pytest.mark.parametrize("options", [{}, {"layers": 3, "residual": True, "layer_norm": True}])
def test_feed_forward_gradients_pass_a_numerical_check(options):
    layer = window_layer(**options)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(inputs, before, *rest):
        return torch.func.functional_call(layer, dict(zip(names, rest, strict=True)), (inputs, (before,)))[0]

    leaves = [torch.randn(4, 2, 3).double(), torch.randn(2, 2, 3).double(), *(w.detach() for w in weights)]
    assert gradcheck(run, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


def test_a_token_is_seen_for_as_long_as_it_is_in_the_window():
    layer, inputs = window_layer(), torch.randn(6, 2, 3).double()
    outputs = layer(inputs, layer.start(2))[0]
    inputs[1] += 1
    changed = (layer(inputs, layer.start(2))[0] != outputs).flatten(1).any(1)
    assert changed.tolist() == [False, True, True, True, False, False]


def test_state_of_the_window_is_its_last_vectors():
    layer, inputs = window_layer(), torch.randn(2, 2, 3).double()
    (first,) = layer(inputs[:1], layer.start(2))[1]
    assert torch.equal(first, torch.stack([torch.zeros(2, 3).double(), inputs[0]]))
    (second,) = layer(inputs[1:], (first,))[1]
    assert torch.equal(second, inputs)


def test_a_skip_goes_round_layers_of_equal_width_only():
    assert window_layer(layers=2, residual=True).skips == [False, True]
    assert window_layer(layers=2, residual=True, hidden_size=9).skips == [
        True,
        True,
    ]  # the window's vectors: 3 × 3
    assert window_layer(layers=2).skips == [False, False]


def test_a_layer_that_adds_nothing_leaves_a_skip_alone():
    layer, inputs = window_layer(layers=1, residual=True, hidden_size=9), torch.randn(3, 2, 3).double()
    torch.nn.init.zeros_(layer.layers[0].weight)
    torch.nn.init.zeros_(layer.layers[0].bias)
    outputs = layer(inputs, layer.start(2))[0]
    assert torch.equal(outputs[2], inputs.transpose(0, 1).reshape(2, 9))


KINDS = ("additive", "multiplicative", "scaled")


def attention_layer(kind, window=4, **options):
    torch.manual_seed(6)
    config = NetworkConfig(
        cell="elman",
        embedding_size=3,
        hidden_size=5,
        dropout=0.0,
        attention=kind,
        attention_window=window,
        attention_size=4,
        **options,
    )
    return AttentionBody(Recurrent(config), config).double()


def vectors(times, batch=2):
    return torch.randn(times, batch, 3, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_gradients_pass_a_numerical_check(kind):
    layer = attention_layer(kind)
    names, weights = zip(*layer.named_parameters(), strict=True)
    before = layer(vectors(2), layer.start(2))[1]  # a partially filled memory

    def run(inputs, *rest):
        replaced = dict(zip(names, rest, strict=True))
        outputs, after = torch.func.functional_call(layer, replaced, (inputs, before))
        return outputs, after[1]

    leaves = [vectors(6), *(w.detach() for w in weights)]
    before = tuple(part.detach() for part in before)
    assert gradcheck(run, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_ignores_tokens_before_the_window(kind):
    """Recurrent weights are zero, so only attention reaches earlier tokens."""
    layer = attention_layer(kind, window=3)
    layer.inner.cells[0].kernel.weight_hh_l0.data.zero_()
    inputs = vectors(6)
    outputs = layer(inputs, layer.start(2))[0]
    inputs[2] += 1  # in the window at 2, 3 and 4
    changed = (layer(inputs, layer.start(2))[0] != outputs).flatten(1).any(1)
    assert changed.tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_bounded_and_says_how_full_it_is(kind):
    layer = attention_layer(kind, window=4)
    carried = layer.start(2)
    sizes = []
    for vector in vectors(5):
        carried = layer.step(vector, carried)[1]
        sizes.append(int(carried[-1][0, 0, 0]))
        assert carried[-2].shape == (3, 2, 5)
    assert sizes == [1, 2, 3, 3, 3]


def test_rows_of_different_fill_attend_to_what_they_have():
    layer = attention_layer("scaled", window=5)
    long, short = layer(vectors(4, 1), layer.start(1))[1], layer(vectors(1, 1), layer.start(1))[1]
    both = tuple(torch.cat(parts, dim=1) for parts in zip(long, short, strict=True))
    inputs = vectors(3, 2)
    together = layer(inputs, both)[0]
    torch.testing.assert_close(together[:, :1], layer(inputs[:, :1], long)[0])
    torch.testing.assert_close(together[:, 1:], layer(inputs[:, 1:], short)[0])


def test_pieces_of_additive_scores_change_nothing(monkeypatch):
    layer, inputs = attention_layer("additive"), vectors(7)
    whole = layer(inputs, layer.start(2))[0]
    monkeypatch.setattr(layers, "MAX_TANH_VALUES", 1)
    torch.testing.assert_close(layer(inputs, layer.start(2))[0], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_computes_in_bfloat16_where_told_to(kind):
    layer, inputs = attention_layer(kind).float(), vectors(6).float()
    expected = layer(inputs, layer.start(2))[0]
    with torch.autocast("cpu", torch.bfloat16):
        outputs, carried = layer(inputs, layer.start(2))
        layer(inputs, carried)
    torch.testing.assert_close(outputs.float(), expected, atol=0.03, rtol=0)
