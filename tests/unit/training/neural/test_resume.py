"""A resumed training run equals an uninterrupted one, or fails with the reason."""

import os

import pytest
import torch

from models.errors import FormatError, InputError, RegistryError
from tests.support.resumable import NETWORK, VOCABULARY, fit, saved_state, weights
from training.neural.resume import write_state
from training.progress import Progress


class Ending(Progress):
    """Progress that raises KeyboardInterrupt after a number of updates."""

    def __init__(self, updates):
        self.left = updates + 1  # a resumed run first reports its earlier progress

    def advance(self, _=1, note=""):
        self.left -= 1
        if note and self.left <= 0:
            raise KeyboardInterrupt


@pytest.fixture
def state_file(tmp_path):
    return tmp_path / "runs" / "state.pt"


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": "adam", "loss": "nce", "average": "nt-asgd", "nonmonotone": 1},
        {"optimizer": "sgd", "momentum": 0.5, "loss": "softmax", "average": "none"},
        {"optimizer": "rmsprop", "momentum": 0.5, "schedule": "one-cycle", "learning_rate": 1e-3},
    ],
    ids=["adamw", "adam", "sgd", "rmsprop"],
)
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(state_file, changes):
    whole = fit(**changes)
    for updates in (1, 17, 30):
        assert fit(state_file, progress=Ending(updates), **changes).stopped == "interrupted"
    resumed = fit(state_file, **changes)
    assert same(weights(whole), weights(resumed))
    assert [r.train_loss for r in whole.history] == [r.train_loss for r in resumed.history]
    assert [r.valid_perplexity for r in whole.history] == [r.valid_perplexity for r in resumed.history]
    assert resumed.notes[0].startswith("resumed after ")


def test_a_finished_run_is_not_trained_again(state_file):
    first = fit(state_file)

    class Refusing(Progress):
        def advance(self, _=1, note=""):
            assert not note, "an update was made"

    again = fit(state_file, progress=Refusing())
    assert again.stopped == first.stopped == "max_steps"
    assert same(weights(first), weights(again))
    assert again.history == first.history


def test_without_resume_the_state_is_not_looked_at(state_file):
    fit(state_file, progress=Ending(5))
    assert same(weights(fit(state_file, resume=False)), weights(fit()))


def test_without_a_state_it_begins_at_the_beginning(state_file):
    result = fit(state_file, max_steps=3)
    assert result.notes == ()
    assert same(weights(result), weights(fit(max_steps=3)))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"texts": (3, 2)}, r"the training text has changed \(sha256 \w{12} then, \w{12} now\)"),
        ({"texts": (1, 3)}, r"the validation text has changed"),
        ({"learning_rate": 0.5}, r"train\.learning_rate was 0\.006 and is 0\.5"),
        ({"seed": 2}, r"seed was 1 and is 2"),
        ({"network": NETWORK.model_copy(update={"layers": 1})}, r"neural\.layers was 2 and is 1"),
    ],
)
def test_another_text_or_recipe_is_refused_by_name(state_file, changes, problem):
    fit(state_file, max_steps=2)
    content = state_file.read_bytes()
    with pytest.raises(InputError, match=problem) as caught:
        fit(state_file, max_steps=2, **changes)
    assert caught.value.param == "resume"
    assert state_file.read_bytes() == content


def test_another_tokenizer_is_refused(state_file, monkeypatch):
    fit(state_file, max_steps=2)
    monkeypatch.setattr("tests.support.resumable.VOCABULARY", type(VOCABULARY)(VOCABULARY.tokens[:2:-1]))
    with pytest.raises(InputError, match="the tokenizer has changed"):
        fit(state_file, max_steps=2)


def test_a_new_bound_shapes_the_schedule_anew_and_says_so(state_file):
    fit(state_file, max_steps=20, validations=1)
    longer = fit(state_file, max_steps=40, validations=1)
    assert longer.history[-1].step == 40
    assert longer.notes[1] == "the schedule was recomputed: train.max_steps was 20 and is 40"
    shorter = fit(state_file, max_steps=10, validations=1)
    assert (shorter.stopped, shorter.history[-1].step) == ("max_steps", 40)


def test_time_used_counts_across_pieces(state_file):
    """The durations of all runs add up to the limit."""
    seconds = []
    for _ in range(3):
        fit(state_file, progress=Ending(10), max_minutes=60.0)
        seconds.append(saved_state(state_file)["seconds"])
    assert 0 < seconds[0] < seconds[1] < seconds[2]


@pytest.mark.parametrize("content", [b"", b"PK", b"no state at all" * 100])
def test_a_damaged_state_is_told_by_its_path(state_file, content):
    state_file.parent.mkdir()
    state_file.write_bytes(content)
    with pytest.raises(FormatError, match=r"state\.pt: is not a training state.*from the beginning"):
        fit(state_file)


def test_best_weights_that_lack_a_parameter_are_refused(state_file):
    fit(state_file, max_steps=2)
    state = saved_state(state_file)
    state["best"]["weights"].popitem()
    write_state(state_file, state)
    with pytest.raises(FormatError, match=r"state\.pt: .*best.weights and the network differ in"):
        fit(state_file, max_steps=2)


def test_a_state_of_another_format_is_refused(state_file, monkeypatch):
    fit(state_file, max_steps=1)
    monkeypatch.setattr("training.neural.resume.STATE_FORMAT", 0)
    with pytest.raises(FormatError, match="has format 1, not 0"):
        fit(state_file)


def test_a_disk_that_is_full_does_not_end_the_training(state_file, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    result = fit(state_file, max_steps=3, save_minutes=100)
    assert result.history[-1].step == 3
    assert "No space left on device" in result.notes[0]
    assert list(state_file.parent.iterdir()) == []


def test_a_folder_that_takes_no_changes_is_told_as_such(tmp_path):
    """Regression: a read-only file system also rejects the removal, which ended the training."""
    (tmp_path / "runs").write_text("a file where the folder should be")
    with pytest.raises(RegistryError, match="cannot save the training state"):
        write_state(tmp_path / "runs" / "state.pt", {})
