"""Interrupted training runs through the training command."""

import errno
import fcntl
import os

import pytest

from models.checkpoint.load import load_checkpoint
from models.checkpoint.registry import LocalRegistry
from models.errors import InputError, RegistryError
from training import commands
from training.progress import Progress
from training.single_model import ResumableRuns

pytestmark = pytest.mark.usefixtures("no_pictures")

SET = ["neural.hidden_size=8", "neural.embedding_size=8", "train.max_steps=20", "train.save_minutes=0"]
SET += ["train.batch_size=4", "train.bptt_length=8", "train.validations=2", "tokenizer.kind=word"]
SET += ["train.max_minutes=100", "train.patience=100", "train.epochs=100"]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("the cat sat on the mat\na dog ran on a log\n" * 60)
    return path


@pytest.fixture
def run(tmp_path, corpus, monkeypatch):
    """Function that trains `m` and optionally stops after a number of updates."""

    def train(recipe="lstm", *, updates=None, **more):
        class Impatient(Progress):
            left = -1 if updates is None else updates

            def advance(self, _=1, note=""):
                updated = "tokens/s" in note
                self.left -= updated
                if updated and self.left == 0:
                    raise KeyboardInterrupt

        monkeypatch.setattr("training.progress.console_progress", Impatient)
        settings = [*SET, *more.pop("settings", [])]
        return commands.run_train(
            recipe, name="m", registry=tmp_path / "registry", corpus=[corpus], assignments=settings, **more
        )

    return train


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "registry" / ".runs" / "m"


def test_a_published_training_leaves_no_state(run, folder):
    result = run()
    assert not folder.exists()
    assert not any("resume" in note for note in result["notes"])


def test_an_interrupted_training_is_published_and_can_go_on(run, folder, tmp_path):
    first = run(updates=7)
    assert first["stopped"] == "interrupted"
    assert "the same command with --resume continues it" in first["notes"][0]
    second = run(resume=True)
    assert second["model"] == "m@2"
    assert second["stopped"] == "max_steps"
    assert second["notes"][0].startswith("resumed after 7 updates")
    assert not folder.exists()
    assert LocalRegistry(tmp_path / "registry").models() == ["m"]


def test_resumed_weights_are_those_of_one_go(run, tmp_path):
    whole, _, resumed = run(), run(updates=7), run(resume=True)
    files = [load_checkpoint(tmp_path / "registry" / "m" / "versions" / v).manifest.files for v in "13"]
    assert (whole["model"], resumed["model"]) == ("m@1", "m@3")
    assert files[0]["model.safetensors"] == files[1]["model.safetensors"]


def test_without_resume_an_old_state_is_removed_with_a_note(run):
    run(updates=7)
    result = run()
    assert result["notes"][0] == "an unfinished training (lstm) was removed; --resume would have continued it"
    assert result["history"][-1]["step"] == 20


def test_finished_parts_of_a_mixture_are_not_trained_again(run, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    settings = ['mixture.recipes=["ngram","lstm"]', "ngram.order=2", "mixture.drop_unused=false"]
    with monkeypatch.context() as patch:
        patch.setattr("training.mixture.mix_dynamically", fail)
        with pytest.raises(ZeroDivisionError):
            run("mixture", settings=settings)
    result = run("mixture", settings=settings, resume=True, updates=1)  # any update would end it
    assert result["notes"][0].startswith("resumed after 20 updates")
    assert result["parts"][1]["name"] == "lstm"


def test_another_recipe_is_refused(run):
    run(updates=7)
    with pytest.raises(InputError, match=r"train\.learning_rate was 0\.006 and is 0\.1"):
        run(resume=True, settings=["train.learning_rate=0.1"])


def test_another_tokenizer_is_refused(run):
    run(updates=7)
    with pytest.raises(InputError, match="the tokenizer has changed"):
        run(resume=True, settings=["tokenizer.kind=char"])


def test_two_trainings_of_one_model_are_refused(tmp_path):
    """The lock belongs to the open file, so a second opening acts like another process."""
    first, second = (ResumableRuns(tmp_path, "m", resume=False) for _ in range(2))
    with (
        first.locked(),
        pytest.raises(InputError, match="another process is training 'm'"),
        second.locked(),
    ):
        pass


def test_ngram_models_need_no_lock(run, folder):
    assert run("ngram", settings=["ngram.order=2"])["model"] == "m@1"
    assert not folder.exists()


def test_a_folder_that_its_holder_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    """Regression: two processes trained one model if one ended while the other started."""
    folder, really = tmp_path / ".runs" / "m", fcntl.flock

    def late(descriptor, how):
        monkeypatch.setattr(fcntl, "flock", really)
        folder.rmdir()
        really(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with ResumableRuns(tmp_path, "m", resume=True).locked():
        other = ResumableRuns(tmp_path, "m", resume=True)
        with pytest.raises(InputError, match="another process"):
            other.locked().__enter__()


def test_a_file_system_without_locks_is_not_taken_for_another_process(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with (
        pytest.raises(RegistryError, match="No locks available"),
        ResumableRuns(tmp_path, "m", resume=True).locked(),
    ):
        pass
