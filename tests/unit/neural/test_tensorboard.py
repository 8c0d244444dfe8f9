"""TensorBoard, which need not be installed."""

import sys

import pytest

from models.errors import InvalidInputError
from tests.resumable import fit
from training.neural.diagnostics import TensorBoardWriter
from training.progress import HistoryRecord

RECORD = HistoryRecord(5, 0, 100, 1.5, 2.0, None, 0.1, 3.0, 1.0)


def test_without_a_folder_nothing_is_written():
    with TensorBoardWriter("") as board:
        board.add(RECORD)


def test_a_missing_package_is_named_before_any_update(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'gramophone-lm\[tensorboard\]'") as caught:
        fit(tensorboard=str(tmp_path), max_steps=2)
    assert caught.value.parameter == "train.tensorboard"


def test_figures_that_are_there_are_written(monkeypatch):
    written = {}

    class Writer:
        def add_scalar(self, name, value, step):
            written[name] = (value, step)

        def close(self):
            written["closed"] = True

    board = TensorBoardWriter("")
    board._writer = Writer()
    with board:
        board.add(RECORD)
    assert written["training/train_loss"] == (2.0, 5)
    assert written["training/clipped_norm"] == (1.0, 5)
    assert "training/valid_perplexity" not in written
    assert written["closed"]
