"""The network as the trainer uses it."""

import pytest
import torch

from models.neural.config import NetworkConfig
from models.neural.network import Network
from models.vocabulary import BOS
from tests import families


@pytest.fixture(params=families.NEURAL)
def network(request):
    torch.manual_seed(3)
    options = {"layers": 2, "embedding_size": 6, "hidden_size": 6, **families.NEURAL[request.param]}
    return Network(NetworkConfig(**options), 40)


def test_rows_that_go_on_keep_their_state_and_others_begin_anew(network):
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)  # a learned state that is not zero
    tokens = torch.tensor([[3, 4, 5], [6, 7, 8]])
    before = network(tokens, network.initial_hidden(3))[1]
    hidden = network.detach_and_reset(before, torch.tensor([True, False, True]))
    for part, old, new in zip(hidden, before, network.initial_hidden(3), strict=True):
        assert torch.equal(part[:, [0, 2]], old[:, [0, 2]])
        assert torch.equal(part[:, 1], new[:, 1])


def test_gradients_end_where_a_stretch_begins(network):
    tokens = torch.tensor([[3, 4], [6, 7]])
    before = network(tokens, network.initial_hidden(2))[1]
    hidden = network.detach_and_reset(before, torch.ones(2, dtype=torch.bool))
    assert all(part.grad_fn is None or not _reaches(part, network) for part in hidden)


def _reaches(part, network):
    """Whether a gradient of a part reaches a parameter; where all rows go on, none may."""
    grads = torch.autograd.grad(part.sum(), list(network.parameters()), allow_unused=True)
    return any(grad is not None and bool(grad.any()) for grad in grads)


def test_a_learned_state_is_learned_by_rows_that_begin():
    config = NetworkConfig(cell="lstm", layers=2, embedding_size=6, hidden_size=6, learned_state=True)
    network = Network(config, 15)
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.tensor([True, False]))
    network(torch.tensor([[3, 4]]), hidden)[0][:, 0].sum().backward()
    assert not any(part.grad.any() for part in network.body.initial)  # row 0 went on
    network.zero_grad()
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.tensor([True, False]))
    network(torch.tensor([[3, 4]]), hidden)[0][:, 1].sum().backward()
    assert all(part.grad.any() for part in network.body.initial)


def test_every_parameter_gets_a_gradient(network):
    """After some tokens, so that memories and recurrent weights have something to act on."""
    tokens = torch.stack([torch.randperm(40), torch.randperm(40)], dim=1)
    hidden = network.detach_and_reset(network.initial_hidden(2), torch.zeros(2, dtype=torch.bool))
    outputs = network(tokens, hidden)[0]
    features = network.features(outputs).flatten(0, 1)
    predicted = tokens.flatten() != BOS
    network.output.target_log_probs(features[predicted], tokens.flatten()[predicted]).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())
