"""Names of devices."""

import pytest
import torch

from models.errors import InvalidInputError
from models.neural.device import resolve_device


def test_auto_is_the_best_device_there_is():
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["tpu", "cpu:1", "cuda:", "cuda:x", "cuda:-1", ""])
def test_other_names_are_refused(name):
    with pytest.raises(InvalidInputError, match="it can be auto, cpu, cuda or cuda:<number>"):
        resolve_device(name)


def test_a_cuda_device_that_is_not_there_is_refused():
    with pytest.raises(InvalidInputError, match=r"'cuda:99', but torch sees \d+ CUDA devices"):
        resolve_device("cuda:99")
