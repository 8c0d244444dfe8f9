"""Attention over a body's last outputs."""

import pytest
import torch
from torch.autograd import gradcheck

from models.neural import attention
from models.neural.attention import AttentionBody
from models.neural.config import NetworkConfig
from models.neural.recurrent import Recurrent

KINDS = ("additive", "multiplicative", "scaled")


def body(kind, window=4, **options):
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
def test_gradients_pass_a_numerical_check(kind):
    layer = body(kind)
    names, weights = zip(*layer.named_parameters(), strict=True)
    before = layer(vectors(2), layer.start(2))[1]  # a memory that is not full

    def run(inputs, *rest):
        replaced = dict(zip(names, rest, strict=True))
        outputs, after = torch.func.functional_call(layer, replaced, (inputs, before))
        return outputs, after[1]

    leaves = [vectors(6), *(w.detach() for w in weights)]
    before = tuple(part.detach() for part in before)
    assert gradcheck(run, [leaf.requires_grad_() for leaf in leaves], fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_before_the_window_has_no_say(kind):
    """The body's own memory is cut off, so that attention alone could look back."""
    layer = body(kind, window=3)
    layer.inner.cells[0].kernel.weight_hh_l0.data.zero_()
    inputs = vectors(6)
    outputs = layer(inputs, layer.start(2))[0]
    inputs[2] += 1  # seen at 2, 3 and 4
    changed = (layer(inputs, layer.start(2))[0] != outputs).flatten(1).any(1)
    assert changed.tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_is_bounded_and_says_how_full_it_is(kind):
    layer = body(kind, window=4)
    carried = layer.start(2)
    sizes = []
    for vector in vectors(5):
        carried = layer.step(vector, carried)[1]
        sizes.append(int(carried[-1][0, 0, 0]))
        assert carried[-2].shape == (3, 2, 5)
    assert sizes == [1, 2, 3, 3, 3]


def test_rows_of_different_fill_attend_to_what_they_have():
    layer = body("scaled", window=5)
    long, short = layer(vectors(4, 1), layer.start(1))[1], layer(vectors(1, 1), layer.start(1))[1]
    both = tuple(torch.cat(parts, dim=1) for parts in zip(long, short, strict=True))
    inputs = vectors(3, 2)
    together = layer(inputs, both)[0]
    torch.testing.assert_close(together[:, :1], layer(inputs[:, :1], long)[0])
    torch.testing.assert_close(together[:, 1:], layer(inputs[:, 1:], short)[0])


def test_pieces_of_additive_scores_change_nothing(monkeypatch):
    layer, inputs = body("additive"), vectors(7)
    whole = layer(inputs, layer.start(2))[0]
    monkeypatch.setattr(attention, "_MAX_TANH_VALUES", 1)
    torch.testing.assert_close(layer(inputs, layer.start(2))[0], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_computes_in_bfloat16_where_told_to(kind):
    layer, inputs = body(kind).float(), vectors(6).float()
    expected = layer(inputs, layer.start(2))[0]
    with torch.autocast("cpu", torch.bfloat16):
        outputs, carried = layer(inputs, layer.start(2))
        layer(inputs, carried)
    torch.testing.assert_close(outputs.float(), expected, atol=0.03, rtol=0)
