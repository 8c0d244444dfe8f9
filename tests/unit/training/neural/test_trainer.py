"""The trainer: learning, stopping criteria, reproducibility."""

import itertools
import math
import re

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from models.errors import InputError
from models.language_model import BOS
from models.neural.config import NetworkConfig
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import evaluate
from training.neural import trainer
from training.neural.distributed import Processes
from training.neural.run import TrainingRun
from training.neural.settings import TrainSettings
from training.neural.threads import ThreadTuner
from training.neural.trainer import train_network
from training.progress import Progress
from training.recipe import Recipe

TINY = NetworkConfig(embedding_size=16, hidden_size=24, dropout=0.0)
QUICK = {
    "batch_size": 8,
    "bptt_length": 16,
    "learning_rate": 1e-2,
    "max_minutes": None,
    "precision": "float32",
    "reset": 0.2,
}


@pytest.fixture
def fit(vocabulary, counting):
    """Function that trains on the counting corpus, or another, with changed settings."""

    def run(train=counting, valid=counting, *, network=TINY, seed=1, progress=None, clock=None, **changes):
        more = {} if clock is None else {"clock": clock}
        return train_network(
            train,
            valid,
            vocabulary,
            Recipe(family="neural", seed=seed, neural=network, train=TrainSettings(**(QUICK | changes))),
            device="cpu",
            progress=progress or Progress(),
            **more,
        )

    return run


def weights(result):
    return dict(result.model.network.state_dict())


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_pattern_is_learnt(fit, cell):
    """Only the first of seven tokens is uncertain, one of six: perplexity is 1.29 at best, 8 from counts."""
    result = fit(network=TINY.model_copy(update={"cell": cell}), epochs=10)
    assert result.history[-1].valid_perplexity < 1.8
    assert result.model.family == cell


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "learning_rate": 6.0, "clip_norm": 0.25, "weight_decay": 0.0, "epochs": 12},
        {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.6, "clip_norm": 0.25, "weight_decay": 0.0},
        {"optimizer": "adam", "weight_decay": 0.0, "schedule": "one-cycle", "warmup": 0.3},
        {"optimizer": "rmsprop", "learning_rate": 3e-3, "weight_decay": 0.0, "schedule": "step"},
        {"variable_bptt": True, "activation_penalty": 0.1, "slowness_penalty": 0.1, "schedule": "constant"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_every_optimiser_and_schedule_learns(fit, settings):
    """Perplexity starts above 9, the level of token frequencies."""
    history = fit(**({"epochs": 10} | settings)).history
    assert history[-1].valid_perplexity < 6


@pytest.mark.parametrize("average", ["ema", "nt-asgd"])
def test_the_average_is_what_is_validated_and_kept(fit, counting, average):
    """At a learning rate too high to converge, the average is better than any weights."""
    rough = {"learning_rate": 0.06, "schedule": "constant", "epochs": 12, "validations": 24, "patience": 24}
    averaging = {"ema": {"average_decay": 0.98}, "nt-asgd": {"nonmonotone": 2}}[average]
    plain = fit(**rough)
    averaged = fit(average=average, **averaging, **rough)
    best = min(r.valid_perplexity for r in averaged.history if r.valid_perplexity)
    assert best < min(r.valid_perplexity for r in plain.history if r.valid_perplexity)
    assert evaluate(averaged.model, counting, progress=Progress()).perplexity == pytest.approx(best)


def test_patience_is_not_tried_before_the_mean_begins(fit, counting):
    """The mean begins after six worse validations; a patience of two counts from then on."""
    backwards = EncodedCorpus.from_sentences([counting.sentence(i)[::-1] for i in range(30)])
    result = fit(
        valid=backwards, epochs=100, validations=100, patience=2, average="nt-asgd", schedule="constant"
    )
    measured = [r.valid_perplexity for r in result.history if r.valid_perplexity is not None]
    assert result.stopped == "patience"
    assert len(measured) - 1 - int(np.argmin(measured)) >= 7


def test_the_rate_follows_the_length_of_the_stretch(fit):
    history = fit(
        variable_bptt=True, schedule="constant", warmup=0.0, learning_rate=0.016, max_steps=60
    ).history
    lengths = [record.learning_rate * 1000 for record in history]  # 16 tokens have rate 0.016
    assert len({round(length) for length in lengths}) > 3
    assert lengths == pytest.approx([round(length) for length in lengths])


def test_the_optimiser_uses_the_rates_that_are_recorded(fit):
    used = []
    hook = register_optimizer_step_pre_hook(
        lambda optimizer, *_: used.append({group["lr"] for group in optimizer.param_groups})
    )
    history = fit(schedule="one-cycle", max_steps=10, validations=10).history
    hook.remove()
    assert used == [{record.learning_rate} for record in history]
    assert len({record.learning_rate for record in history}) > 5


def test_an_update_is_by_its_own_gradient_with_the_penalties_of_its_outputs(fit, monkeypatch):
    original = trainer.backward

    def spy(network, *arguments, **options):
        assert not any(p.grad is not None and p.grad.any() for p in network.parameters())
        return original(network, *arguments, **options)

    monkeypatch.setattr(trainer, "backward", spy)
    plain, penalised = (weights(fit(max_steps=4, activation_penalty=alpha)) for alpha in (0.0, 10.0))
    assert not all(torch.equal(plain[name], penalised[name]) for name in plain)


def test_a_process_counts_by_its_share_of_the_predicted_tokens(fit, monkeypatch):
    """Of the rows of a batch it has some; starts of sentences are not predicted."""
    shares, predicted, original, exchange = [], [], trainer.backward, Processes.exchange

    def backward(network, outputs, targets, *others, **options):
        predicted.append(int((targets != BOS).sum()))
        return original(network, outputs, targets, *others, **options)

    def exchanging(self, *arguments, weight):
        shares.append(weight)
        return exchange(self, *arguments, weight=weight)

    monkeypatch.setattr(trainer, "backward", backward)
    monkeypatch.setattr(Processes, "exchange", exchanging)
    text = EncodedCorpus.from_sentences([[3, 4, 5, 6][: 1 + n % 4] for n in range(3000)])
    for rows in (slice(0, 2), slice(2, 8)):
        monkeypatch.setattr(Processes, "rows", lambda *_, own=rows: own)
        fit(text, max_steps=5)
    first, second = np.split(np.array(predicted), 2)
    assert shares == pytest.approx([*first / (first + second), *second / (first + second)])


def test_the_loss_in_a_record_is_the_mean_of_about_the_last_fifty(fit, monkeypatch):
    losses, original = [], trainer.backward

    def spy(*arguments, **options):
        losses.append(original(*arguments, **options))
        return losses[-1]

    monkeypatch.setattr(trainer, "backward", spy)
    history = fit(max_steps=30, validations=1).history
    ages = np.arange(30)[::-1]
    weights = np.where(ages == 29, 0.98**29, 0.02 * 0.98**ages)  # of the first, as if it had always been so
    assert history[-1].train_loss == pytest.approx(float(weights @ losses), rel=1e-5)
    assert weights.sum() == pytest.approx(1)


def test_validation_leaves_the_training_as_it_was(fit):
    """Validation swaps the average in and out between updates without changing the training loss."""
    dropping = TINY.model_copy(update={"dropout": 0.3})
    losses = [
        fit(network=dropping, max_steps=40, validations=v, average="ema").history[-1].train_loss
        for v in (1, 20)
    ]
    assert losses[0] == losses[1]


def test_dropout_grows_to_all_of_it(fit, monkeypatch):
    shares = []
    original = trainer.backward

    def spy(network, *arguments, **options):
        shares.append((network.input_dropout.share, network.output_dropout.share))
        return original(network, *arguments, **options)

    monkeypatch.setattr(trainer, "backward", spy)
    dropping = TINY.model_copy(update={"dropout": 0.4, "input_dropout": 0.2})
    fit(network=dropping, max_steps=11, dropout_start=0.5)
    assert shares[0] == pytest.approx((0.1, 0.2))
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(shares)]
    assert steps == [pytest.approx((0.1 / 11, 0.2 / 11))] * 10


def test_dropout_grows_over_some_passes(fit, monkeypatch):
    shares = []
    monkeypatch.setattr(
        TrainingRun,
        "raise_dropout",
        lambda self, original=TrainingRun.raise_dropout: (
            original(self),
            shares.append((self.step / self.streams.steps_per_epoch, self.network.output_dropout.share)),
        ),
    )
    dropping = TINY.model_copy(update={"dropout": 0.4})
    fit(network=dropping, epochs=3, dropout_start=0.0, dropout_passes=2)
    assert shares[-1][0] > 2
    assert [share for _, share in shares] == pytest.approx([0.2 * min(passes, 2) for passes, _ in shares])


def test_records_tell_of_clipping_and_speed(fit):
    seconds = itertools.count()
    history = fit(max_steps=40, clip_norm=0.01, clock=lambda: float(next(seconds))).history
    assert all(record.clipped_norm == 0.01 < record.grad_norm for record in history)
    assert all(record.tokens_per_second > 0 for record in history)


def test_equal_seeds_give_equal_weights_and_others_do_not(fit):
    dropping = TINY.model_copy(update={"dropout": 0.3})
    first, again, other = (weights(fit(network=dropping, seed=s, max_steps=20, reset=0.2)) for s in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_the_random_stream_of_the_caller_is_left_alone(fit):
    torch.manual_seed(9)
    expected = torch.rand(1)
    torch.manual_seed(9)
    fit(max_steps=2)
    assert torch.rand(1) == expected


def test_state_is_carried_from_stretch_to_stretch(fit):
    """With stretches of one token, only the carried state predicts the next token."""
    text = EncodedCorpus.from_sentences([[3, 5, 5, 4] * 500])  # 5 is followed by 5 or 4
    settings = {"batch_size": 16, "bptt_length": 1, "epochs": 3}
    carried = fit(text, text, reset=0.0, **settings).history[-1].train_loss
    emptied = fit(text, text, reset=1.0, **settings).history[-1].train_loss
    assert emptied > 0.3
    assert carried < 0.1


def test_the_wall_clock_bound_is_honoured_and_shapes_the_rate(fit):
    seconds = itertools.count(step=0.1)
    result = fit(max_minutes=0.5, epochs=1000, clock=lambda: float(next(seconds)))
    assert result.stopped == "max_minutes"
    assert 30 <= result.history[-1].seconds < 32
    assert result.history[-1].learning_rate < 0.02 * QUICK["learning_rate"]


def test_the_number_of_epochs_is_honoured(fit):
    result = fit(epochs=2)
    assert result.stopped == "epochs"
    assert result.history[-1].epoch == 1


def test_the_number_of_updates_is_honoured(fit):
    result = fit(max_steps=7)
    assert result.stopped == "max_steps"
    assert result.history[-1].step == 7
    assert result.history[-1].tokens == 7 * 8 * 16


def test_training_stops_early_and_keeps_the_best_weights(fit, counting):
    """The validation text contradicts the training text, so its perplexity rises during training."""
    backwards = EncodedCorpus.from_sentences([counting.sentence(i)[::-1] for i in range(30)])
    result = fit(valid=backwards, epochs=100, validations=100, patience=3)
    measured = [r.valid_perplexity for r in result.history if r.valid_perplexity is not None]
    assert result.stopped == "patience"
    assert len(measured) - 1 - int(np.argmin(measured)) == 3
    assert evaluate(result.model, backwards, progress=Progress()).perplexity == pytest.approx(min(measured))


def test_gradients_are_clipped(fit, monkeypatch):
    norms = []
    clip = torch.nn.utils.clip_grad_norm_

    def spy(parameters, limit):
        parameters = list(parameters)
        before = clip(parameters, limit)
        norms.append((float(before), math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))))
        return before

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", spy)
    fit(max_steps=5, clip_norm=0.01)
    assert all(before > 0.01 and after == pytest.approx(0.01, rel=1e-3) for before, after in norms)


def test_an_interrupt_returns_the_best_weights_so_far(fit):
    class Impatient(Progress):
        updates = 0

        def advance(self, *_):
            self.updates += 1
            if self.updates == 30:
                raise KeyboardInterrupt

    result = fit(progress=Impatient(), max_steps=100, epochs=50, validations=10)
    assert result.stopped == "interrupted"
    assert result.history[-1].step <= 30
    best = min(r.valid_perplexity for r in result.history if r.valid_perplexity)
    corpus = EncodedCorpus.from_sentences([[3, 4, 5, 6, 7, 8]])
    assert evaluate(result.model, corpus, progress=Progress()).perplexity < 3 * best


def test_divergence_names_the_learning_rate(fit):
    with pytest.raises(InputError, match=r"train\.learning_rate is 1e\+30: try a third") as caught:
        fit(optimizer="sgd", learning_rate=1e30, clip_norm=1e30, epochs=50)
    assert caught.value.param == "train.learning_rate"
    assert "at step 2: the loss is nan and the gradient norm nan;" in str(caught.value)
    assert re.search(r"highest loss is '.*w\d w\d", str(caught.value))


def test_progress_ends_at_a_hundred_per_cent(fit):
    class Sum(Progress):
        total = 0.0

        def advance(self, amount=1, note=""):
            self.total += amount
            assert "tokens/s" in note

    progress = Sum()
    fit(progress=progress, max_steps=13)
    assert progress.total == pytest.approx(100)


def test_lacking_cores_are_reported(fit, monkeypatch):
    """A process of one thread that waits for a core three quarters of the time."""
    clocks = {
        name: itertools.count(step=step) for name, step in (("clock", 3), ("cpu", 0.75), ("waits", 2.25))
    }
    tuner = ThreadTuner(
        clock=lambda: next(clocks["clock"]),
        cpu_clock=lambda: next(clocks["cpu"]),
        waits=lambda: {"1": next(clocks["waits"])},
    )
    monkeypatch.setattr("training.neural.run.ThreadTuner", lambda _: tuner)
    notes = []

    class Listening(Progress):
        def advance(self, _=1, note=""):
            notes.append(note)

    result = fit(progress=Listening(), max_steps=5)
    assert notes[0].endswith(" tokens/s on 0.2 of 1 cores")
    assert "this process got 0.25 of 1 cores" in result.notes[0]
    tokens = QUICK["batch_size"] * QUICK["bptt_length"]
    reached = result.throughput["tokens_per_second"]
    assert reached == pytest.approx(tokens / 3, rel=0.01)
    assert result.throughput["expected"] > reached
    assert result.throughput["cores"] == 0.25


@pytest.mark.parametrize("missing", ["train", "valid"])
def test_an_empty_text_is_refused(fit, missing):
    with pytest.raises(InputError, match="has no sentences"):
        fit(**{missing: EncodedCorpus.from_sentences([])})


def test_bos_is_never_predicted_after_training(fit):
    model = fit(max_steps=3).model
    assert model.next_log_probs(model.initial_state(1))[0, BOS] == -math.inf


def test_training_starts_from_the_tokens_frequencies(fit):
    text = EncodedCorpus.from_sentences([[3, 3, 3, 4]] * 50)
    model = fit(text, text, max_steps=1, learning_rate=1e-9).model
    probabilities = np.exp(model.next_log_probs(model.empty_state(1))[0])
    assert probabilities[[3, 4, 2]] == pytest.approx([0.6, 0.2, 0.2], rel=0.1)
