"""Cores of this process: affinity, and quotas of control groups of both versions, also inside one another."""

import os

import pytest

from models.cores import available_cores, group_folders, usable_threads


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


def write(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".", 1)).write_text(f"{content}\n")


def cores(tmp_path, groups=""):
    (tmp_path / "own").write_text(groups)
    return available_cores(tmp_path, tmp_path / "own")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000", 8),
        ("50000 100000", 0.5),
        ("150000 100000", 1.5),
        ("1600000 100000", 8),
        ("damaged", 8),
        ("1 2 3", 8),
        ("100000 0", 8),
    ],
)
def test_a_container_of_version_2_has_its_quota(tmp_path, content, expected):
    write(tmp_path, cpu_max=content)
    assert cores(tmp_path, "0::/\n") == expected


@pytest.mark.parametrize(("quota", "expected"), [(-1, 8), (50000, 0.5), (250000, 2.5)])
def test_a_container_of_version_1_has_its_quota(tmp_path, quota, expected):
    write(tmp_path / "cpu", cpu_cfs_quota_us=quota, cpu_cfs_period_us=100000)
    # Docker's path is the host's; the mount shows the container's group as the root
    assert cores(tmp_path, "3:memory:/docker/ab\n2:cpu,cpuacct:/docker/ab\n0::/\n") == expected


def test_a_quota_without_a_period_is_none(tmp_path):
    write(tmp_path / "cpu", cpu_cfs_quota_us=50000)
    assert cores(tmp_path) == 8


@pytest.mark.parametrize(("inner", "outer", "expected"), [("max", "300000", 3), ("200000", "300000", 2)])
def test_the_lowest_quota_of_groups_inside_one_another_counts(tmp_path, inner, outer, expected):
    write(tmp_path, cpu_max="max 100000")
    write(tmp_path / "system.slice", cpu_max=f"{outer} 100000")
    write(tmp_path / "system.slice/net.service", cpu_max=f"{inner} 100000")
    write(tmp_path / "other", cpu_max="10000 100000")
    assert cores(tmp_path, "0::/system.slice/net.service\n") == expected


def test_the_folders_of_a_controller_are_the_innermost_first(tmp_path):
    (tmp_path / "own").write_text("5:cpuset:/x\n4:cpu:/a/b\n0::/c\n")
    folders = list(group_folders("cpu", tmp_path, tmp_path / "own"))
    inside = [folder.relative_to(tmp_path).as_posix() for folder in folders]
    assert inside == ["c", ".", "cpu/a/b", "cpu/a", "cpu"]


def test_without_control_groups_the_affinity_counts(tmp_path, monkeypatch):
    assert available_cores(tmp_path, tmp_path / "missing") == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 6})
    assert available_cores(tmp_path, tmp_path / "missing") == 2


@pytest.mark.parametrize(("counted", "expected"), [(3, 3), (None, 1)])
def test_systems_without_affinity_count_all_cores(tmp_path, monkeypatch, counted, expected):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert available_cores(tmp_path, tmp_path / "missing") == expected


@pytest.mark.parametrize(("found", "threads"), [(0.5, 1), (1, 1), (1.5, 2), (8.0, 8)])
def test_threads_are_the_cores_rounded_up(monkeypatch, found, threads):
    monkeypatch.setattr("models.cores.available_cores", lambda: found)
    assert usable_threads() == threads


@pytest.mark.parametrize(("value", "threads"), [("5", 5), ("", 3), ("0", 3), ("many", 3)])
def test_a_number_that_the_user_set_wins(monkeypatch, value, threads):
    monkeypatch.setattr("models.cores.available_cores", lambda: 3.0)
    monkeypatch.setenv("NUMBA_NUM_THREADS", value)
    assert usable_threads("NUMBA_NUM_THREADS") == threads
