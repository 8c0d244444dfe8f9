"""Packed weights in files shared by several processes: several start at once, or one dies while writing."""

import json
import signal
import subprocess
import sys

import numpy as np

from models.checkpoint.load import CheckpointDescription, write_checkpoint
from models.tensor_files import PackedWeightCache
from tests.support import families

LOAD = """
import hashlib, json, sys
from pathlib import Path
from models.checkpoint.load import load_checkpoint
from models.language_model import pad_sequences, score_sequences
checkpoint, shared = sys.argv[1:]
digest, models = hashlib.sha256(), []
for precision in ("float32", "int8"):
    model = load_checkpoint(Path(checkpoint), precision=precision, shared=Path(shared)).model
    digest.update(score_sequences(model, model.initial_state(2), *pad_sequences([[3, 4, 5], [6]])).tobytes())
    models.append(model)
with open("/proc/self/maps") as maps:
    inodes = sorted(line.split()[4] for line in maps if shared in line)
print(json.dumps([digest.hexdigest(), inodes]), flush=True)
sys.stdin.read()
"""

TAKE = """
import json, sys, time
from pathlib import Path
import numpy as np
from models.tensor_files import PackedWeightCache
made = []
def make():
    made.append(1)
    time.sleep(0.02)
    return {"values": np.full(5000, 7, np.int8)}
cache = PackedWeightCache(Path(sys.argv[1]), "key")
sys.stdin.readline()
held = [cache.get_or_make(str(number), make) for number in range(10)]
with open("/proc/self/maps") as maps:
    inodes = sorted({line.split()[4] for line in maps if sys.argv[1] in line})
print(json.dumps([len(made), inodes, all((one["values"] == 7).all() for one in held)]), flush=True)
sys.stdin.readline()
"""

DIE = """
import os, signal, sys
from pathlib import Path
import numpy as np
from models import tensor_files
write = tensor_files.write_hashed_tensors
def dies(file, arrays):
    write(file, arrays)
    os.kill(os.getpid(), signal.SIGKILL)
tensor_files.write_hashed_tensors = dies
tensor_files.PackedWeightCache(Path(sys.argv[1]), "key").get_or_make("a", lambda: {"values": np.zeros(5000, np.int8)})
"""


def started(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ended(processes):
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_processes_map_the_same_files_and_answer_alike(tmp_path):
    checkpoint, shared = tmp_path / "m", tmp_path / "shared"
    checkpoint.mkdir()
    shared.mkdir(mode=0o700)
    description = CheckpointDescription("2026-01-01T00:00:00+00:00", {}, {}, [[5, 6, 7], [9]], {})
    write_checkpoint(checkpoint, families.model("lstm"), families.tokenizer(), description)
    processes = [started(LOAD, checkpoint, shared) for _ in range(2)]  # at the same time
    (digest, inodes), other = (json.loads(process.stdout.readline()) for process in processes)
    ended(processes)
    assert other == [digest, inodes]
    laid = {str(path.stat().st_ino) for path in shared.iterdir() if not path.name.startswith(".")}
    assert set(inodes) == laid


def test_of_processes_that_come_at_once_one_makes_each_file(tmp_path):
    processes = [started(TAKE, tmp_path) for _ in range(4)]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    reports = [json.loads(process.stdout.readline()) for process in processes]
    ended(processes)
    assert sum(made for made, _, _ in reports) == 10
    assert all(inodes == reports[0][1] and right for _, inodes, right in reports)
    assert len(reports[0][1]) == 10


def test_one_that_is_killed_while_it_writes_leaves_nothing_that_counts(tmp_path):
    process = started(DIE, tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / ".unfinished").stat().st_size > 5000
    laid = PackedWeightCache(tmp_path, "key").get_or_make("a", lambda: {"values": np.ones(5, np.int8)})
    assert laid["values"].tolist() == [1] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "key.a"]
