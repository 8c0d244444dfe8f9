"""Memory in use and memory there is, as the kernel tells them of a container and of a machine."""

import pytest

from service.engine.memory import SystemMemory, system_memory

MIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path):
    """A machine of 8 GiB, half of it free."""
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
