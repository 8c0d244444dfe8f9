"""Rows divided among threads."""

import threading

import numpy as np
import pytest
import torch

from models.kernels.threads import STEP_ROWS_PER_THREAD, THREADS, run_parts, run_row_slices
from models.neural.network import resolve_device
from models.neural.output import log_sum_exp


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(THREADS, "limit", 3)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "count",
    [
        0,
        1,
        STEP_ROWS_PER_THREAD,
        2 * STEP_ROWS_PER_THREAD - 1,
        2 * STEP_ROWS_PER_THREAD,
        5 * STEP_ROWS_PER_THREAD + 7,
        1000,
    ],
)
def test_every_row_is_done_once_and_few_rows_in_one_share(count):
    done, shares = np.zeros(count, int), []

    def work(rows):
        done[rows] += 1
        shares.append(rows)

    run_row_slices(work, count)
    assert (done == 1).all()
    assert len(shares) == max(1, min(3, count // STEP_ROWS_PER_THREAD))


def test_parts_are_done_side_by_side():
    together = threading.Barrier(3, timeout=10)
    run_parts(lambda _: together.wait(), [1, 2, 3])


@pytest.mark.parametrize("failing", [0, 2])
def test_error_of_a_part_is_raised_after_all_parts(failing):
    done = []

    def work(part):
        if part == failing:
            raise ValueError(f"part {part}")
        done.append(part)

    with pytest.raises(ValueError, match=f"part {failing}"):
        run_parts(work, [0, 1, 2])
    assert sorted(done) == [part for part in range(3) if part != failing]


def test_log_sum_exp_does_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr("models.neural.output.LOGITS_PER_THREAD", 64)
    logits = torch.randn(10, 70, generator=torch.Generator().manual_seed(1))
    shared = log_sum_exp(logits)
    torch.set_num_threads(1)
    assert torch.equal(shared, log_sum_exp(logits))
    torch.testing.assert_close(shared, torch.logsumexp(logits, dim=-1))


def test_the_number_of_threads_is_that_of_the_usable_cores(monkeypatch):
    monkeypatch.setattr(THREADS, "limit", None)
    monkeypatch.setattr("models.cores.available_cores", lambda: 1.5)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert THREADS.most == 2
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # the user's choice
    resolve_device("cpu")
    assert torch.get_num_threads() == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    resolve_device("cpu")
    assert torch.get_num_threads() == 2
