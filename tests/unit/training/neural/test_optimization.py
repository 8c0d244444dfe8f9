"""Optimisers, weight averaging, learning-rate schedules and activation penalties."""

import numpy as np
import pytest
import torch
from torch import nn

from models.neural.config import NetworkConfig
from models.neural.network import Network
from training.neural.run import OutputPenalties, Schedule, WeightAverage, make_optimizer
from training.neural.settings import TrainSettings

NAMES = ["adamw", "adam", "sgd", "rmsprop"]


@pytest.fixture
def normalised_network():
    return Network(
        NetworkConfig(embedding_size=5, hidden_size=7, layers=2, layer_norm=True, learned_state=True), 9
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_updated_once(normalised_network, name):
    optimizer = make_optimizer(normalised_network, TrainSettings(optimizer=name))
    updated = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in updated} == {id(p) for p in normalised_network.parameters()}
    assert len(updated) == len({id(p) for p in updated})


@pytest.mark.parametrize("name", NAMES)
def test_matrices_decay_and_nothing_else_does(normalised_network, name):
    """With zero gradients except the decay, only matrices change."""
    for param in normalised_network.parameters():
        param.data.fill_(1.0)
        param.grad = torch.zeros_like(param)
    make_optimizer(normalised_network, TrainSettings(optimizer=name, weight_decay=0.1)).step()
    for param in normalised_network.parameters():
        assert bool((param != 1).all()) == (param.ndim == 2)


def test_settings_reach_the_optimiser(normalised_network):
    adam = make_optimizer(normalised_network, TrainSettings(optimizer="adam", betas=(0.5, 0.7))).param_groups[
        0
    ]
    sgd = make_optimizer(normalised_network, TrainSettings(optimizer="sgd", momentum=0.3)).param_groups[0]
    assert adam["betas"] == (0.5, 0.7)
    assert sgd["momentum"] == 0.3


@pytest.fixture
def linear_network():
    return nn.Linear(3, 2)


def walk(network, average, values, done=0.5):
    """Set all weights to each value in turn, one update per value."""
    for value in values:
        for param in network.parameters():
            param.data.fill_(value)
        average.add(done)


def averaged(network, average):
    with average.applied():
        return float(network.weight.detach()[0, 0])


def test_without_an_average_the_weights_are_the_last(linear_network):
    average = WeightAverage(linear_network, TrainSettings(average="none"))
    walk(linear_network, average, [1.0, 2.0])
    assert averaged(linear_network, average) == 2.0
    assert average.updates == 0


def test_an_exponential_average_forgets_its_start_quickly(linear_network):
    average = WeightAverage(linear_network, TrainSettings(average="ema", average_decay=0.6))
    values = np.random.default_rng(1).normal(size=30)
    walk(linear_network, average, values)
    expected = values[0]
    for t, value in enumerate(values[1:], start=1):
        decay = min(0.6, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * value
    assert averaged(linear_network, average) == pytest.approx(expected, abs=1e-6)


def test_an_exponential_average_begins_where_it_is_told_to(linear_network):
    average = WeightAverage(linear_network, TrainSettings(average="ema", average_start=0.5))
    walk(linear_network, average, [100.0], done=0.49)
    walk(linear_network, average, [1.0], done=0.5)
    assert averaged(linear_network, average) == 1.0


def test_the_mean_begins_when_validation_stops_improving(linear_network):
    """It begins at the first validation that is worse than the best of those more than two before it."""
    average = WeightAverage(linear_network, TrainSettings(average="nt-asgd", nonmonotone=2))
    for perplexity in (9.0, 5.0, 6.0, 7.0):
        average.record_validation(perplexity)
        walk(linear_network, average, [100.0])
        assert average.is_pending
    average.record_validation(5.5)
    walk(linear_network, average, [1.0, 2.0, 6.0])
    assert not average.is_pending
    assert averaged(linear_network, average) == pytest.approx(3.0)


def test_the_networks_own_weights_come_back(linear_network):
    average = WeightAverage(linear_network, TrainSettings(average="ema"))
    walk(linear_network, average, [1.0, 2.0, 4.0])
    with average.applied():
        assert float(linear_network.bias.detach()[0]) < 4.0
    assert float(linear_network.bias.detach()[0]) == 4.0


def test_an_average_follows_parameters_to_new_memory(linear_network):
    """A module of cuDNN copies its parameters into one piece of memory whenever it is moved."""
    average = WeightAverage(linear_network, TrainSettings(average="ema", average_decay=0.5))
    walk(linear_network, average, [1.0])
    with torch.no_grad():
        for param in linear_network.parameters():
            param.set_(param.detach().clone())
    walk(linear_network, average, [3.0])
    share = 1 - 2 / 11
    assert averaged(linear_network, average) == pytest.approx(1 + 2 * share)
    assert float(linear_network.bias.detach()[0]) == 3.0


def test_a_restored_average_goes_on_the_same(linear_network):
    settings = TrainSettings(average="ema", average_decay=0.9)
    average, restored = WeightAverage(linear_network, settings), WeightAverage(linear_network, settings)
    walk(linear_network, average, [1.0, 3.0, 2.0])
    restored.restore({**average.state(), "averages": [a.clone() for a in average.state()["averages"]]})
    for other in (average, restored):
        walk(linear_network, other, [5.0, 4.0])
    assert averaged(linear_network, average) == averaged(linear_network, restored)


class Clock:
    """Clock that tests set."""

    now = 100.0

    def __call__(self):
        return self.now


def schedule(clock=None, steps_per_epoch=10, **changes):
    return Schedule(TrainSettings(**changes), steps_per_epoch=steps_per_epoch, clock=clock or Clock())


def test_updates_count_where_time_is_not_bounded():
    assert schedule(max_minutes=None, epochs=4).done(10) == 0.25


def test_time_counts_where_it_runs_out_first():
    clock = Clock()
    run = schedule(clock, max_minutes=1, epochs=4)
    clock.now += 45
    assert run.done(10) == 0.75
    clock.now += 45
    assert run.done(10) == 1.0
    assert run.reached(10) == "max_minutes"


def test_the_bound_that_ends_a_run_is_named():
    assert schedule(epochs=2).reached(20) == "epochs"
    assert schedule(epochs=2, max_steps=5).reached(5) == "max_steps"
    assert schedule(epochs=2, max_steps=50).reached(20) == "epochs"


def test_the_rate_rises_to_its_peak_and_falls_to_zero():
    run = schedule(learning_rate=0.5, warmup=0.2)
    rates = [run.learning_rate(share / 100) for share in range(101)]
    assert max(rates) == rates[20] == 0.5
    assert rates[10] == pytest.approx(0.25)
    assert rates[60] == pytest.approx(0.25)  # halfway down
    assert 0 < rates[0] < 0.01
    assert rates[100] == pytest.approx(0)


def test_without_warmup_the_rate_starts_at_its_peak():
    assert schedule(learning_rate=0.5, warmup=0).learning_rate(0) == 0.5


def test_one_cycle_rises_falls_and_anneals_in_straight_lines():
    run = schedule(schedule="one-cycle", learning_rate=1.0, warmup=0.25, anneal=0.25)
    rate = run.learning_rate
    assert rate(0.125) == pytest.approx((1 / 25 + 1) / 2)
    assert rate(0.25) == 1.0
    assert rate(0.5) == pytest.approx((1 / 25 + 1) / 2)
    assert rate(0.75) == pytest.approx(1 / 25)
    assert rate(0.875) == pytest.approx(1 / 50)
    assert rate(1.0) == 0


def test_one_cycle_without_an_anneal_ends_where_it_began():
    run = schedule(schedule="one-cycle", learning_rate=1.0, warmup=0.5, anneal=0)
    assert run.learning_rate(1.0) == pytest.approx(1 / 25) == run.learning_rate(0)


def test_steps_multiply_the_rate_where_they_are():
    run = schedule(schedule="step", learning_rate=1.0, warmup=0, decay_at=(0.4, 0.8), decay_factor=0.5)
    assert [run.learning_rate(done) for done in (0, 0.39, 0.4, 0.8, 1)] == [1, 1, 0.5, 0.25, 0.25]


def test_a_constant_rate_is_constant_after_the_warmup():
    run = schedule(schedule="constant", learning_rate=0.5, warmup=0.1)
    assert run.learning_rate(0.05) == 0.25
    assert {run.learning_rate(done) for done in (0.1, 0.5, 1)} == {0.5}


def test_time_that_was_used_before_counts():
    clock = Clock()
    run = schedule(clock, steps_per_epoch=10**6, max_minutes=1)
    run.resume_from(30)
    clock.now += 15
    assert run.seconds == 45
    assert run.done(1) == 0.75


def network_of(**changes):
    torch.manual_seed(1)
    return Network(NetworkConfig(embedding_size=6, hidden_size=6, **changes), 11).train()


def gradients(network, extra=None):
    """Gradients of a loss of the features, plus an extra term, for one stretch."""
    torch.manual_seed(2)
    tokens = torch.randint(0, 11, (5, 3))
    outputs, _ = network(tokens, network.initial_hidden(3))
    features = network.features(outputs)
    loss = features.square().sum()
    if extra is not None:
        loss = loss + extra(outputs, features)
    network.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in network.parameters() if p.grad is not None]


def plainly(alpha, beta):
    return lambda outputs, dropped: (
        alpha * dropped.square().mean() + beta * (outputs[1:] - outputs[:-1]).square().mean()
    )


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("alpha", "beta"), [(2.0, 0.0), (0.0, 1.5), (2.0, 1.5)])
def test_gradients_are_those_of_the_formula(dropout, alpha, beta):
    expected = gradients(network_of(dropout=dropout), plainly(alpha, beta))
    penalised = network_of(dropout=dropout)
    penalties = OutputPenalties(penalised, TrainSettings(activation_penalty=alpha, slowness_penalty=beta))
    for ours, theirs in zip(gradients(penalised), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    penalties.scale = 3.0
    assert not torch.allclose(gradients(penalised)[0], expected[0])


def test_evaluation_is_not_penalised():
    network = network_of()
    OutputPenalties(network, TrainSettings(activation_penalty=5.0, slowness_penalty=5.0))
    expected = gradients(network_of().eval())
    for ours, theirs in zip(gradients(network.eval()), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
