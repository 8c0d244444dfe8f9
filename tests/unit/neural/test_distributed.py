"""How several processes share a batch."""

import pytest
import torch

from models.errors import InvalidInputError
from models.neural.dropout import Dropout
from training.neural.distributed import Processes


def test_a_batch_that_cannot_be_divided_is_refused():
    with pytest.raises(
        InvalidInputError, match="batch_size is 9 here, which 2 processes cannot divide"
    ) as caught:
        Processes(1, 2).rows(9)
    assert caught.value.parameter == "train.batch_size"
    assert Processes(1, 3).rows(9) == slice(3, 6)


@pytest.mark.parametrize("variational", [True, False])
def test_divided_masks_are_those_of_the_whole_batch(variational):
    values = torch.ones(5, 6, 7)

    def drop(number, count):
        dropout = Dropout(0.5, variational=variational).train()
        Processes(number, count).divide_dropout(dropout)
        torch.manual_seed(4)
        return dropout(values[:, Processes(number, count).rows(6)])

    assert torch.equal(torch.cat([drop(n, 3) for n in range(3)], dim=1), drop(0, 1))
