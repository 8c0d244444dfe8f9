"""Averages of weights, against the formulas written plainly."""

import numpy as np
import pytest
from torch import nn

from training.neural.optimization import WeightAverage
from training.neural.settings import TrainSettings


@pytest.fixture
def network():
    return nn.Linear(3, 2)


def walk(network, average, values, done=0.5):
    """Set all weights to one value after the other, each as an update."""
    for value in values:
        for parameter in network.parameters():
            parameter.data.fill_(value)
        average.add(done)


def averaged(network, average):
    with average.applied():
        return float(network.weight.detach()[0, 0])


def test_without_an_average_the_weights_are_the_last(network):
    average = WeightAverage(network, TrainSettings(average="none"))
    walk(network, average, [1.0, 2.0])
    assert averaged(network, average) == 2.0
    assert average.updates == 0


def test_an_exponential_average_forgets_its_start_quickly(network):
    average = WeightAverage(network, TrainSettings(average="ema", average_decay=0.6))
    values = np.random.default_rng(1).normal(size=30)
    walk(network, average, values)
    expected = values[0]
    for t, value in enumerate(values[1:], start=1):
        decay = min(0.6, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * value
    assert averaged(network, average) == pytest.approx(expected, abs=1e-6)


def test_an_exponential_average_begins_where_it_is_told_to(network):
    average = WeightAverage(network, TrainSettings(average="ema", average_start=0.5))
    walk(network, average, [100.0], done=0.49)
    walk(network, average, [1.0], done=0.5)
    assert averaged(network, average) == 1.0


def test_the_mean_begins_when_validation_stops_improving(network):
    """At the first validation worse than the best of those more than two before it."""
    average = WeightAverage(network, TrainSettings(average="nt-asgd", nonmonotone=2))
    for perplexity in (9.0, 5.0, 6.0, 7.0):
        average.record_validation(perplexity)
        walk(network, average, [100.0])
        assert average.is_pending
    average.record_validation(5.5)
    walk(network, average, [1.0, 2.0, 6.0])
    assert not average.is_pending
    assert averaged(network, average) == pytest.approx(3.0)


def test_the_networks_own_weights_come_back(network):
    average = WeightAverage(network, TrainSettings(average="ema"))
    walk(network, average, [1.0, 2.0, 4.0])
    with average.applied():
        assert float(network.bias.detach()[0]) < 4.0
    assert float(network.bias.detach()[0]) == 4.0


def test_a_restored_average_goes_on_the_same(network):
    settings = TrainSettings(average="ema", average_decay=0.9)
    average, restored = WeightAverage(network, settings), WeightAverage(network, settings)
    walk(network, average, [1.0, 3.0, 2.0])
    restored.restore({**average.state(), "averages": [a.clone() for a in average.state()["averages"]]})
    for other in (average, restored):
        walk(network, other, [5.0, 4.0])
    assert averaged(network, average) == averaged(network, restored)
