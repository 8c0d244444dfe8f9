"""What dropout drops, how much of it, and when."""

import pytest
import torch

from models.neural.cells import Dropout, drop_tokens, drop_weights
from models.neural.config import NetworkConfig
from models.neural.network import Network


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
    """Every kind of dropout on: training answers differ from call to call, evaluation's do not."""
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
