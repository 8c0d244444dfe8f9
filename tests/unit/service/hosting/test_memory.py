"""Memory of models: estimated, measured, bounded; memory of containers and machines."""

import numpy as np
import pytest
from pydantic import ValidationError

from models.arrays import ModelBytes, array_bytes
from models.checkpoint.manifest import FileEntry, read_manifest
from models.errors import MemoryBudgetError
from models.neural.int8.model import Int8Model
from models.neural.model import NeuralModel
from models.tensor_files import map_tensors
from service.hosting.loading import SystemMemory, check_budget, estimate_bytes, loaded_bytes, system_memory
from service.settings import Settings
from tests.support import families
from tests.support.checkpoints import write_minimal


def test_a_view_counts_all_that_it_keeps_in_memory_and_once():
    array = np.zeros(100_000, dtype=np.float32)
    assert array_bytes([array[:3], array[10:], array.reshape(10, -1)]) == ModelBytes(own=400_000)


def test_mapped_files_are_told_apart(tmp_path):
    families.model("ngram").save(tmp_path)
    path = tmp_path / "ngram.bin"
    assert array_bytes(map_tensors(path).values()) == ModelBytes(mapped=path.stat().st_size)


@pytest.mark.parametrize("name", families.NAMES)
def test_a_model_of_any_family_takes_about_its_parameters(name):
    model = families.model(name)
    assert model.memory().own >= 4 * model.num_parameters
    assert model.memory().own < 24 * model.num_parameters + 4000


def test_weights_rounded_from_a_file_are_private_memory(tmp_path):
    families.model("lstm").save(tmp_path)
    loaded = NeuralModel.load(tmp_path, families.model("lstm").vocabulary)
    assert loaded.memory().own == 0
    rounded = Int8Model(loaded.network.weights(), loaded.vocabulary).memory()
    assert rounded.mapped == 0
    assert rounded.own >= families.model("lstm").num_parameters


def test_a_tokenizer_counts_as_estimated(tmp_path):
    write_minimal(tmp_path)
    entries = {"tokenizer.json": FileEntry(sha256="0" * 64, bytes=100)}
    manifest = read_manifest(tmp_path).model_copy(update={"files": entries})
    model = families.model("ngram")
    assert loaded_bytes(model, manifest).own == model.memory().own + estimate_bytes(manifest).own
    assert estimate_bytes(manifest).own >= 1000


def test_an_estimate_goes_by_the_files(tmp_path):
    write_minimal(tmp_path)
    names = {"ngram.bin": 10, "parts/0/ngram.bin": 100, "model.safetensors": 1000, "report.html": 9}
    entries = {name: FileEntry(sha256="0" * 64, bytes=size) for name, size in names.items()}
    manifest = read_manifest(tmp_path).model_copy(update={"files": entries})
    assert estimate_bytes(manifest) == ModelBytes(own=0, mapped=1110)


def test_a_refusal_names_budget_use_need_and_what_could_go():
    rooms = {"small@1": 2**20, "large@1": 2**29}
    with pytest.raises(MemoryBudgetError) as refusal:
        check_budget("new@1", 2**30, budget=2**30, in_use=2**29, others=rooms)
    assert str(refusal.value) == (
        "new@1 needs about 1.0 GiB; the budget is 1.0 GiB, of which 512.0 MiB are in use; "
        "models that can be unloaded: large@1 (512.0 MiB), small@1 (1.0 MiB)"
    )
    check_budget("new@1", 2**29, budget=2**30, in_use=2**29, others={})
    check_budget("new@1", 2**60, budget=None, in_use=0, others={})


@pytest.mark.parametrize(("given", "means"), [("2GiB", 2**31), ("500MB", 500_000_000), ("4096", 4096)])
def test_a_budget_is_bytes_or_has_a_unit(given, means):
    assert Settings(memory_budget=given).memory_budget == means


@pytest.mark.parametrize("given", ["0", "-1", "much", "2 gigs", ""])
def test_a_budget_that_is_none_is_refused(given):
    with pytest.raises(ValidationError):
        Settings(memory_budget=given)


@pytest.mark.parametrize(
    "given", ["int4", "", "int8,float32", "lstm=int8,lstm=float32", "=int8", "lstm=", "lstm=int8,", "a=b=c"]
)
def test_a_precision_that_is_none_is_refused(given):
    with pytest.raises(ValidationError):
        Settings(precision=given)


@pytest.mark.parametrize("given", ["gpu", "cuda:", "cuda:x", "CPU", "cuda:0000"])
def test_a_device_that_is_none_is_refused(given):
    with pytest.raises(ValidationError):
        Settings(device=given)


MIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path):
    """Meminfo file of a machine with 8 GiB, half of it free."""
    file = tmp_path / "meminfo"
    file.write_text(
        f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {4 << 20} kB\nHugePages_Total: 0\n"
    )
    return file


def group(folder, **files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name.replace("memory_", "memory.")).write_text(f"{content}\n")


def test_a_container_counts_what_cannot_be_dropped(tmp_path, meminfo):
    stat = f"anon {100 * MIB}\ninactive_file {30 * MIB}"
    group(tmp_path / "2", memory_max=512 * MIB, memory_current=200 * MIB, memory_stat=stat)
    assert system_memory(tmp_path / "2", meminfo) == SystemMemory(170 * MIB, 512 * MIB)


def test_a_group_of_version_1_likewise(tmp_path, meminfo):
    files = {"memory_limit_in_bytes": 512 * MIB, "memory_usage_in_bytes": 200 * MIB}
    group(tmp_path / "1/memory", **files, memory_stat=f"inactive_file 0\ntotal_inactive_file {50 * MIB}")
    assert system_memory(tmp_path / "1", meminfo) == SystemMemory(150 * MIB, 512 * MIB)


@pytest.mark.parametrize("limit", ["max", 2**63 - 4096])
def test_without_a_limit_the_machine_counts(tmp_path, meminfo, limit):
    group(tmp_path / "2", memory_max=limit, memory_current=200 * MIB, memory_stat="inactive_file 0")
    assert system_memory(tmp_path / "2", meminfo) == SystemMemory(4 << 30, 8 << 30)


def test_without_groups_the_machine_counts(tmp_path, meminfo):
    assert system_memory(tmp_path / "none", meminfo) == SystemMemory(4 << 30, 8 << 30)
