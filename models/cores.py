"""Processor cores that this process may use: by its affinity and by quotas.

A control group (cgroup) limits memory and processor time of a container or a system
service. A group inside others has their limits, too.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def group_folders(controller: str, cgroup: Path = CGROUP, own: Path = _OWN_GROUPS) -> Iterator[Path]:
    """Yield folders of this process's control groups: of version 2, then 1.

    The innermost is first. In a container the mounted root is often the container's
    group, so folders may be missing.

    Args:
        controller: name of a controller, such as `memory`.
        cgroup: mount point of the control groups.
        own: list of the groups of this process; its absence means the roots.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    except OSError:
        groups = []
    for root, name in ((cgroup, ""), (cgroup / controller, controller)):
        for names, path in groups:
            if name in names.split(",") and (inner := Path(path.lstrip("/"))).name:
                yield from (root / folder for folder in (inner, *inner.parents[:-1]))
        yield root


def available_cores(cgroup: Path = CGROUP, own: Path = _OWN_GROUPS) -> float:
    """Return the number of cores that this process may use, above 0.

    A quota makes it a fraction. See `group_folders` for the arguments.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = float((len(affinity(0)) if affinity else os.cpu_count()) or 1)
    return min([cores, *map(_quota, group_folders("cpu", cgroup, own))])


def usable_threads(setting: str = "") -> int:
    """Return the number of threads that compute fastest: the cores, rounded up; at least 1.

    With a quota of 1.5 cores, one thread would leave a third of the time unused.

    Args:
        setting: environment variable, such as OMP_NUM_THREADS, whose number, if any, is
            returned instead.
    """
    chosen = os.environ.get(setting, "")  # noqa: TID251 - read by numba or OpenMP, too
    return int(chosen) if chosen.isdecimal() and int(chosen) else math.ceil(available_cores())


def _quota(group: Path) -> float:
    """Return the cores of a group's quota, above 0; infinite without one, or if it cannot be read."""
    for files in _QUOTA_FILES:
        try:
            quota, period = map(float, " ".join((group / name).read_text() for name in files).split())
        except (OSError, ValueError):  # ValueError: `max`
            continue
        if quota > 0 and period > 0:  # -1: none
            return quota / period
    return math.inf
