"""Errors that end a training run; optional TensorBoard output."""

import math
import os
import signal
import sys
import threading
from contextlib import closing

import pytest
import torch

from models.errors import InputError
from models.language_model import BOS, Vocabulary
from models.neural.config import NetworkConfig
from models.neural.network import Network
from tests.support.resumable import fit, saved_state
from training.neural.diagnostics import TensorBoardWriter, display_text, memory_advice, worst_row
from training.neural.settings import TrainSettings
from training.progress import HistoryRecord, Progress, catch_interruption


def test_the_worst_row_is_the_one_with_the_highest_loss(vocabulary):
    torch.manual_seed(1)
    network = Network(NetworkConfig(embedding_size=6, hidden_size=6), len(vocabulary))
    targets = torch.tensor([[3, 4, BOS], [3, 5, 6]])
    outputs = torch.zeros(2, 3, 6)
    with torch.no_grad():
        network.output.bias[5] = -50.0
    assert worst_row(network, outputs, targets, vocabulary) == "w1 w2"
    outputs[1, 2, 0] = math.nan
    assert worst_row(network, outputs, targets, vocabulary) == "<s> w3"
    assert network.training


def test_pieces_are_joined_and_long_texts_cut():
    pieces = Vocabulary(["▁the", "▁c", "at"])
    assert display_text([3, 4, 5, 2], pieces) == "the cat</s>"
    assert display_text([3] * 1000, pieces) == ("the " * 40)[:159] + "…"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.cuda.OutOfMemoryError("CUDA out of memory"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        ),
    ],
    ids=["numpy", "cuda", "cpu"],
)
def test_out_of_memory_names_the_settings_to_lower(error):
    with (
        pytest.raises(InputError, match=r"train\.batch_size is 48; try half .*bptt_length \(32\)") as told,
        memory_advice(TrainSettings(batch_size=48)),
    ):
        raise error
    assert told.value.param == "train.batch_size"


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes differ"), memory_advice(TrainSettings()):
        raise RuntimeError("shapes differ")


def test_a_run_out_of_memory_keeps_its_state(tmp_path):
    """The saved state remains and can be resumed."""

    class Exhausting(Progress):
        def advance(self, *_):
            raise MemoryError

    fit(tmp_path / "state", max_steps=20, epochs=1, validations=1)
    content = (tmp_path / "state").read_bytes()
    with pytest.raises(InputError, match="out of memory"):
        fit(tmp_path / "state", progress=Exhausting(), max_steps=30, epochs=1, validations=1)
    assert (tmp_path / "state").read_bytes() == content


class Signalling(Progress):
    """Progress that sends SIGINT after the third update."""

    def __init__(self):
        self.updates = 0

    def advance(self, *_):
        self.updates += 1
        if self.updates == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_lets_the_update_end_and_saves_it(tmp_path):
    result = fit(tmp_path / "state", progress=Signalling(), save_minutes=100)
    assert result.stopped == "interrupted"
    assert saved_state(tmp_path / "state")["step"] == 4
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_at_once():
    with catch_interruption() as asked:
        signal.raise_signal(signal.SIGINT)
        assert asked.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_is_ignored_or_of_another_thread_is_left_alone():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with catch_interruption():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    entered = []

    def work():
        with catch_interruption() as asked:
            entered.append(asked.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [False]


RECORD = HistoryRecord(5, 0, 100, 1.5, 2.0, None, 0.1, 3.0, 1.0)


def test_without_a_folder_nothing_is_written():
    with closing(TensorBoardWriter("")) as board:
        board.add(RECORD)


def test_a_missing_package_is_named_before_any_update(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'gramophone-lm\[tensorboard\]'") as caught:
        fit(tensorboard=str(tmp_path), max_steps=2)
    assert caught.value.param == "train.tensorboard"


def test_figures_that_are_there_are_written(monkeypatch):
    written = {}

    class Writer:
        def add_scalar(self, name, value, step):
            written[name] = (value, step)

        def close(self):
            written["closed"] = True

    board = TensorBoardWriter("")
    board._writer = Writer()
    with closing(board):
        board.add(RECORD)
    assert written["training/train_loss"] == (2.0, 5)
    assert written["training/clipped_norm"] == (1.0, 5)
    assert "training/valid_perplexity" not in written
    assert written["closed"]
