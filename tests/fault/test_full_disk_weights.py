"""The folder of shared weights is full, as where a container's /dev/shm is small: each process has its own then."""

import contextlib
import itertools
import logging

import numpy as np
import pytest

from models.arrays import to_numpy
from models.checkpoint.load import load_checkpoint
from models.checkpoint.write import CheckpointDescription, write_checkpoint
from models.tensor_files import SharedWeightCache
from tests import families
from tests.fault.disks import KINDS, disk_of_kind


@pytest.fixture(params=KINDS)
def disk(request, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    with disk_of_kind(request.param, folder) as disk:
        yield disk


@pytest.mark.parametrize("room_bytes", [0, 300, 5000])
def test_weights_that_find_no_room_on_the_shelf_are_this_processs_own(disk, room_bytes, caplog):
    """As in a container whose /dev/shm is small."""
    caplog.set_level(logging.WARNING)
    made = {"values": np.arange(30_000, dtype=np.int32)}
    with disk.full(room_bytes):
        taken = SharedWeightCache(disk.folder, "key").get_or_make("a", lambda: made)
        np.testing.assert_array_equal(taken["values"], made["values"])
    assert disk.refusal in caplog.text
    assert not (disk.folder / "key.a").exists()
    laid = SharedWeightCache(disk.folder, "key").get_or_make("a", lambda: made)
    np.testing.assert_array_equal(laid["values"], made["values"])
    assert (disk.folder / "key.a").exists()


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_model_answers_the_same_whether_its_weights_found_room_or_not(disk, tmp_path, precision):
    lstm = tmp_path / "lstm"
    lstm.mkdir()
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    write_checkpoint(lstm, families.model("lstm"), families.tokenizer(), description)
    answers = []
    for room_bytes in (0, 3000, None):
        with disk.full(room_bytes) if room_bytes is not None else contextlib.nullcontext():
            model = load_checkpoint(lstm, precision=precision, shared=disk.folder).model
            answers.append(to_numpy(model.next_log_probs(model.initial_state(1))))
    assert all((one == other).all() for one, other in itertools.pairwise(answers))
