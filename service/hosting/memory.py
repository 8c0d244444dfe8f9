"""Memory accounting: budget, size of a model, and container or machine memory.

Sizes are estimated from a checkpoint's files before loading. A loaded model reports the size of its
arrays; the tokenizer's size stays an estimate. Memory in use is read from the control group (cgroup
v2 or v1), else from /proc/meminfo, without droppable page cache.
"""

import ctypes
import gc
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import ByteSize

from models.arrays import ModelBytes
from models.checkpoint.manifest import Manifest
from models.errors import MemoryBudgetError
from models.language_model import LanguageModel

_CGROUP, MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/meminfo")
_MAPPED_SUFFIXES = (".bin", ".safetensors")
_TOKENIZER = "tokenizer"
_TOKENIZER_GROWTH = 12
"""Memory of a tokenizer relative to its file: each word is an object in several tables."""
_GC_THRESHOLD = 10_000
"""Allocations minus deallocations that trigger a garbage collection."""


def estimate_bytes(manifest: Manifest) -> ModelBytes:
    """Estimate the memory of a loaded checkpoint from the sizes of its files."""
    own = mapped = 0
    for name, entry in manifest.files.items():
        path = PurePosixPath(name)
        if path.suffix in _MAPPED_SUFFIXES:
            mapped += entry.bytes
        elif path.name.startswith(_TOKENIZER):
            own += entry.bytes * _TOKENIZER_GROWTH
    return ModelBytes(own, mapped)


def loaded_bytes(model: LanguageModel[Any], manifest: Manifest) -> ModelBytes:
    """Return the memory of a loaded model and its tokenizer, by the manifest."""
    size = model.memory()
    return size._replace(own=size.own + estimate_bytes(manifest).own)


def check_budget(
    address: str, needed: int, *, budget: int | None, in_use: int, others: Mapping[str, int]
) -> None:
    """Reject a model that does not fit into the budget.

    Args:
        address: address of the model.
        needed: bytes that the model needs.
        budget: maximum bytes of all models; None for no limit.
        in_use: bytes in use.
        others: bytes of models that can be unloaded, by address, for the message.

    Raises:
        MemoryBudgetError: the model does not fit; no other model is unloaded.
    """
    if budget is None or in_use + needed <= budget:
        return
    largest = sorted(others, key=lambda model: -others[model])
    could = ", ".join(f"{model} ({format_bytes(others[model])})" for model in largest)
    raise MemoryBudgetError(
        f"{address} needs about {format_bytes(needed)}; the budget is {format_bytes(budget)}, of which "
        f"{format_bytes(in_use)} are in use; "
        + (f"models that can be unloaded: {could}" if could else "no model can be unloaded")
    )


def format_bytes(size: int) -> str:
    """Format a number of bytes with a unit, such as `1.5 GiB`."""
    return ByteSize(size).human_readable(separator=" ")


def freeze_garbage_collector() -> None:
    """Enable garbage collection, less often and without existing objects.

    With torch imported, a full collection delays every request by 0.3 s. Reference counting still frees these
    objects and nearly all of requests, because cycles are rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
    gc.enable()


def trim_heap() -> None:
    """Return freed memory from the allocator to the system."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


class SystemMemory(NamedTuple):
    """Memory in use, without droppable page cache, and its limit, in bytes."""

    used: int
    limit: int


def system_memory(cgroup: Path = _CGROUP, meminfo: Path = MEMINFO) -> SystemMemory:
    """Return the memory use of container or machine; requires the file `meminfo`.

    Args:
        cgroup: mount point of the container's control group, version 2 or 1.
        meminfo: the machine's memory statistics, for want of a lower limit of a group.
    """
    machine = {
        name: int(value.split()[0]) * 1024
        for name, _, value in (line.partition(":") for line in meminfo.read_text().splitlines())
    }
    total = machine["MemTotal"]
    grouped = _group_memory(cgroup, "memory.max", "memory.current", "inactive_file") or _group_memory(
        cgroup / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    )
    if grouped is None or grouped.limit >= total:
        return SystemMemory(total - machine["MemAvailable"], total)
    return grouped


def _group_memory(group: Path, limit_file: str, usage_file: str, droppable: str) -> SystemMemory | None:
    """Return the memory of a control group.

    It is None without a limit (`max`; huge in version 1), or if the kernel lacks the files.
    """
    try:
        limit, used, stat = ((group / name).read_text() for name in (limit_file, usage_file, "memory.stat"))
    except OSError:
        return None
    if limit.strip() == "max":
        return None
    counts = dict(line.split() for line in stat.splitlines())
    return SystemMemory(max(int(used) - int(counts.get(droppable, 0)), 0), int(limit))
