"""Processor cores that this process may use, by affinity and quota.

A control group (cgroup) limits memory and processor time of a container or
service; a group inside others has their limits, too.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_QUOTA_FILES = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))


def group_folders(controller: str, cgroup: Path = CGROUP, own: Path = _OWN_GROUPS) -> Iterator[Path]:
    """Yield folders of this process's control groups, innermost first, of version 2, then 1.

    A container may see its group as the root, so folders may be missing.

    Args:
        controller: name of a controller, such as `memory`.
        cgroup: mount point of the control groups.
        own: list of the process's groups; its absence means the roots.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in own.read_text().splitlines()]
    except OSError:
        groups = []
    for root, name in ((cgroup, ""), (cgroup / controller, controller)):
        for names, path in groups:
            inner = Path(path.lstrip("/"))
            if name in names.split(",") and inner.name:
                yield from (root / folder for folder in (inner, *inner.parents[:-1]))
        yield root


def available_cores(cgroup: Path = CGROUP, own: Path = _OWN_GROUPS) -> float:
    """Return the number of cores that this process may use, perhaps a fraction.

    See `group_folders` for the arguments.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # of Linux
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quotas = map(_quota, group_folders("cpu", cgroup, own))
    return min(float(cores), *quotas)


def usable_threads(setting: str = "") -> int:
    """Return the number of threads to compute with: the cores, rounded up.

    With a quota of 1.5 cores, one thread would leave a third unused.

    Args:
        setting: environment variable, such as OMP_NUM_THREADS; its number wins.
    """
    chosen = os.environ.get(setting, "")  # noqa: TID251 - read by numba or OpenMP, too
    if chosen.isdecimal() and int(chosen):
        return int(chosen)
    return math.ceil(available_cores())


def _quota(group: Path) -> float:
    """Return the cores of a group's quota; infinite without a readable one."""
    for files in _QUOTA_FILES:
        try:
            text = " ".join((group / name).read_text() for name in files)
            quota, period = map(float, text.split())
        except (OSError, ValueError):  # ValueError: `max`
            continue
        if quota > 0 and period > 0:  # -1: none
            return quota / period
    return math.inf
