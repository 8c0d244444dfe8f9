"""How several processes share a batch."""

from types import SimpleNamespace

import pytest
import torch

from models.errors import InvalidInputError
from models.neural.cells import Dropout
from training.neural.distributed import Processes
from training.neural.trainer import Saver


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


def test_machines_started_in_another_order_do_not_begin_anew(tmp_path):
    """The second process has what the first one would have to go on with."""

    class Told(Processes):
        def broadcast_bytes(self, content):
            return content

        def gather_texts(self, text):
            return [text, "/far/state.pt"]

    saver = Saver(SimpleNamespace(processes=Told(0, 2)), tmp_path / "state.pt", {})
    with pytest.raises(
        InvalidInputError, match=r"process 1 has one, /far/state\.pt: start its machine as the first"
    ):
        saver.resume()
