"""Captured steps equal plain steps; on a CPU a replay repeats the computation."""

import pytest
import torch

from models.neural.config import NetworkConfig
from models.neural.model import CudaGraphSteps, advance_one, capture_on_cuda
from models.neural.network import Network, resolve_device


def record_here(compute):
    """CPU stand-in for a captured graph; its replay overwrites the outputs of the first run."""
    outputs = compute()

    def replay():
        for place, part in zip(outputs, compute(), strict=True):
            place.copy_(part)

    return replay, outputs


@pytest.fixture(scope="module", params=["lstm", "gru", "feed-forward"])
def network(request):
    torch.manual_seed(0)
    device = resolve_device("auto")  # without TF32
    return Network(NetworkConfig(cell=request.param, embedding_size=8, hidden_size=8), 20).eval().to(device)


@pytest.fixture
def recorded(network):
    return CudaGraphSteps(network, capture_on_cuda if torch.cuda.is_available() else record_here)


@torch.inference_mode()
def read(stepping, network, rows, seed=0):
    place = next(network.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    hidden = network.initial_hidden(rows)
    for _ in range(3):
        tokens = torch.randint(20, (rows,), generator=generator).to(place)
        hidden = stepping(tokens, hidden)
    return hidden


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8])
def test_a_replayed_step_is_the_step(network, recorded, rows):
    wanted = read(lambda tokens, hidden: advance_one(network, tokens, hidden), network, rows)
    for ours, theirs in zip(read(recorded.step, network, rows), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_results_of_a_graph_stay_when_it_is_replayed(network, recorded):
    first = read(recorded.step, network, 3)
    kept = [part.clone() for part in first]
    read(recorded.step, network, 4, seed=1)
    assert all(torch.equal(part, was) for part, was in zip(first, kept, strict=True))


def test_few_recordings_serve_all_sizes(network):
    made = []

    def counted(compute):
        made.append(compute)
        return record_here(compute)

    recorded = CudaGraphSteps(network, counted)
    for rows in range(1, 9):
        read(recorded.step, network, rows)
    assert len(made) == 4
