"""Memory as it is counted by what ends a process for taking too much: the container's, else the machine's."""

from pathlib import Path
from typing import NamedTuple

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class SystemMemory(NamedTuple):
    """Bytes in use, without what is cached of files and can be dropped, and bytes there are."""

    used: int
    limit: int


def reports_memory(meminfo: Path = _MEMINFO) -> bool:
    """Whether the system tells of its memory, as Linux does."""
    return meminfo.exists()


def system_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> SystemMemory:
    """What is in use where this process runs, by all processes there together; only where it `reports_memory`.

    Args:
        cgroup: where Linux shows the control group that a container sees as its own, of version 2 or 1.
        meminfo: where it tells of the machine, which counts where no group sets a limit.
    """
    machine = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in meminfo.read_text().splitlines())
    }
    total = machine["MemTotal"]
    grouped = _cgroup_v2(cgroup) or _cgroup_v1(cgroup / "memory")
    if grouped is None or grouped.limit >= total:
        return SystemMemory(total - machine["MemAvailable"], total)
    return grouped


def _cgroup_v2(group: Path) -> SystemMemory | None:
    limit = _read(group / "memory.max")
    if limit is None or limit == "max":
        return None
    return _in_use(group, "memory.current", "inactive_file", int(limit))


def _cgroup_v1(group: Path) -> SystemMemory | None:
    limit = _read(group / "memory.limit_in_bytes")  # astronomical where there is none
    if limit is None:
        return None
    return _in_use(group, "memory.usage_in_bytes", "total_inactive_file", int(limit))


def _in_use(group: Path, usage: str, droppable: str, limit: int) -> SystemMemory | None:
    used, stat = _read(group / usage), _read(group / "memory.stat")
    if used is None or stat is None:
        return None
    counts = dict(line.split() for line in stat.splitlines())
    return SystemMemory(max(int(used) - int(counts.get(droppable, 0)), 0), limit)


def _read(path: Path) -> str | None:
    """A file of the group; None where the kernel does not show it."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
