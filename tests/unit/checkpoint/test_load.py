"""Where a loaded model computes: the device by name, and what becomes of a model that does not fit there."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from models.arrays import to_numpy
from models.checkpoint.load import load_checkpoint
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.errors import InvalidInputError
from models.mixture import MixtureModel
from models.neural import network as device_names
from models.ngram.cuda import model as cuda_model
from models.ngram.cuda.model import TensorNGramModel
from models.ngram.model import NGramModel
from tests import families
from tests.devices import DEVICES

DESCRIPTION = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """An n-gram model, an LSTM, the mixture of both, and one of n-gram models alone."""
    folder = tmp_path_factory.mktemp("checkpoints")
    ngram = families.model("ngram")
    models = {
        "ngram": (ngram, []),
        "lstm": (families.model("lstm"), []),
        "mixture": (families.model("mixture"), ["ngram", "lstm"]),
        "ngrams": (MixtureModel([ngram, ngram], [0.5, 0.5]), ["ngram", "ngram"]),
    }
    for name, (model, embedded) in models.items():
        (folder / name).mkdir()
        parts = [folder / part for part in embedded]
        write_checkpoint(folder / name, model, families.tokenizer(), DESCRIPTION, parts=parts)
    return folder


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
@pytest.mark.parametrize("device", ["tpu", "cuda:x", "cpu:1", ""])
def test_names_of_no_device_are_refused_for_every_family(checkpoints, name, device):
    with pytest.raises(InvalidInputError, match="it can be auto, cpu, cuda or cuda:<number>"):
        load_checkpoint(checkpoints / name, device=device)


@pytest.mark.parametrize("name", ["ngram", "lstm", "mixture"])
def test_a_cuda_device_that_is_not_there_is_refused_for_every_family(checkpoints, name):
    with pytest.raises(InvalidInputError, match=r"'cuda:99', but torch sees \d+ CUDA devices"):
        load_checkpoint(checkpoints / name, device="cuda:99")


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_ngram_model_is_on_the_cpu_unless_a_device_is_named(checkpoints, device):
    assert isinstance(load_checkpoint(checkpoints / "ngram", device=device).model, NGramModel)


def test_only_what_has_a_neural_part_asks_for_the_best_device(checkpoints, monkeypatch):
    asked = []
    monkeypatch.setattr(
        device_names, "resolve_device", lambda name: asked.append(name) or torch.device("cpu")
    )
    load_checkpoint(checkpoints / "ngrams", device="auto")
    assert asked == []
    load_checkpoint(checkpoints / "mixture", device="auto")
    assert asked == ["auto"]


def test_an_ngram_model_on_a_cuda_device_is_tensors_there(checkpoints, monkeypatch):
    """Without a CUDA device, on what stands for it here."""
    if DEVICES[-1] != "cuda":
        monkeypatch.setattr(device_names, "resolve_device", torch.device)
        monkeypatch.setattr(
            cuda_model, "_move_and_try", lambda model, _: TensorNGramModel(model, device="cpu")
        )
    model = load_checkpoint(checkpoints / "ngram", device="cuda").model
    assert isinstance(model, TensorNGramModel)
    assert model.device.type == DEVICES[-1]
    original = families.model("ngram")
    expected = original.next_log_probs(original.initial_state(2))
    np.testing.assert_allclose(to_numpy(model.next_log_probs(model.initial_state(2))), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["ngram", "ngrams"])
def test_an_ngram_model_that_does_not_fit_answers_from_the_cpu(checkpoints, monkeypatch, caplog, name):
    def fail(model, device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(device_names, "resolve_device", torch.device)
    monkeypatch.setattr(cuda_model, "_move_and_try", fail)
    model = load_checkpoint(checkpoints / name, device="cuda").model
    assert all(isinstance(part, NGramModel) for part in getattr(model, "parts", [model]))
    assert "stays on the CPU, device cuda cannot take it: CUDA out of memory." in caplog.text


@pytest.mark.parametrize("device", ["cpu", "auto"])
@pytest.mark.parametrize("name", ["ngram", "ngrams"])
def test_serving_ngram_models_on_the_cpu_needs_no_torch(checkpoints, name, device):
    code = (
        "import sys; from pathlib import Path; from models.checkpoint.load import load_checkpoint\n"
        f"model = load_checkpoint(Path({str(checkpoints / name)!r}), device={device!r}).model\n"
        "model.next_log_probs(model.initial_state(1)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
