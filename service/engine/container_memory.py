"""Memory as it is counted by what ends a process for taking too much: the container's, else the machine's."""

from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class MemoryUse(NamedTuple):
    """Bytes in use, without what is cached of files and can be dropped, and bytes there are."""

    used: int
    limit: int


def is_told(meminfo: Path = _MEMINFO) -> bool:
    """Whether the system tells of its memory, as Linux does."""
    return meminfo.exists()


def memory_use(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> MemoryUse:
    """What is in use where this process runs, by all processes there together; only where it `is_told`.

    Args:
        cgroup: where Linux shows the control group that a container sees as its own, of version 2 or 1.
        meminfo: where it tells of the machine, which counts where no group sets a limit.
    """
    machine = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in meminfo.read_text().splitlines())
    }
    total = machine["MemTotal"]
    grouped = _version_2(cgroup) or _version_1(cgroup / "memory")
    if grouped is None or grouped.limit >= total:
        return MemoryUse(total - machine["MemAvailable"], total)
    return grouped


def _version_2(group: Path) -> MemoryUse | None:
    limit = _read(group / "memory.max")
    if limit is None or limit == "max":
        return None
    return _in_use(group, "memory.current", "inactive_file", int(limit))


def _version_1(group: Path) -> MemoryUse | None:
    limit = _read(group / "memory.limit_in_bytes")  # astronomical where there is none
    if limit is None:
        return None
    return _in_use(group, "memory.usage_in_bytes", "total_inactive_file", int(limit))


def _in_use(group: Path, usage: str, droppable: str, limit: int) -> MemoryUse | None:
    used, stat = _read(group / usage), _read(group / "memory.stat")
    if used is None or stat is None:
        return None
    counts = dict(line.split() for line in stat.splitlines())
    return MemoryUse(max(int(used) - int(counts.get(droppable, 0)), 0), limit)


def _read(path: Path) -> str | None:
    """A file of the group; None where the kernel does not show it."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
