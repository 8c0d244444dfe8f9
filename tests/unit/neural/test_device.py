"""Names of devices."""

import pytest
import torch

from models.errors import InvalidInputError
from models.neural.network import resolve_device


def test_auto_is_the_best_device_there_is():
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:", "cuda:x", "cuda:-1", ""])
def test_other_names_are_refused(name):
    with pytest.raises(InvalidInputError, match="it can be auto, cpu, cuda or cuda:<number>"):
        resolve_device(name)


def test_a_cuda_device_that_is_not_there_is_refused():
    with pytest.raises(InvalidInputError, match=r"'cuda:99', but torch sees \d+ CUDA devices"):
        resolve_device("cuda:99")


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_single_precision_is_not_rounded_on_a_cuda_device(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert resolve_device(name).type == "cuda"
    assert torch.backends.cudnn.rnn.fp32_precision != "tf32"


def test_a_number_is_a_number_however_it_is_spelled(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert resolve_device("cuda:00") == torch.device("cuda", 0)
