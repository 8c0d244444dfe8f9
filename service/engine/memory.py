"""Memory accounting: budget, measured size of a model, and container or machine memory.

Sizes are estimated from a checkpoint's files before loading and measured afterwards by walking the
objects, each counted once; mapped files count in full, however many processes share their pages.
Memory in use is read from the control group (cgroup v2 or v1), else from /proc/meminfo, without
page cache that can be dropped.
"""

import ctypes
import gc
import mmap
import sys
import types
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ByteSize

from models.checkpoint.manifest import Manifest
from models.errors import MemoryBudgetError

_MAPPED_SUFFIXES = (".bin", ".safetensors")
_TOKENIZER = "tokenizer"
_TOKENIZER_GROWTH = 12
"""Memory of a tokenizer relative to its file: every word is an object, in several tables."""
_GC_THRESHOLD = 10_000
"""Allocations minus deallocations after which the collector looks for reference cycles."""


class ModelBytes(NamedTuple):
    """Memory of a model in bytes.

    Attributes:
        own: private memory of this process.
        mapped: files mapped into memory; processes share their pages, but each counts all of them.
        device: memory of a device.
    """

    own: int = 0
    mapped: int = 0
    device: int = 0

    @property
    def host(self) -> int:
        """Bytes that count towards the budget; mapped pages do, as a model is fast only while they are resident."""
        return self.own + self.mapped


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


def check_budget(
    address: str, needed: int, *, budget: int | None, in_use: int, others: Mapping[str, int]
) -> None:
    """Reject a model that does not fit into the budget.

    Args:
        address: the model.
        needed: bytes that it takes.
        budget: maximum bytes of all models together; None is no bound.
        in_use: bytes that are in use.
        others: bytes of models that could be unloaded, by address, for the message.

    Raises:
        MemoryBudgetError: it does not fit; nothing is unloaded.
    """
    if budget is None or in_use + needed <= budget:
        return
    largest = sorted(others, key=lambda model: -others[model])
    could = ", ".join(f"{model} ({format_bytes(others[model])})" for model in largest)
    raise MemoryBudgetError(
        f"{address} needs about {format_bytes(needed)}, but of the budget of {format_bytes(budget)} "
        f"{format_bytes(in_use)} are in use; "
        + (f"what could be unloaded: {could}" if could else "nothing could be unloaded")
    )


def format_bytes(size: int) -> str:
    """Format a number of bytes for people, such as `1.5 GiB`."""
    return ByteSize(size).human_readable(separator=" ")


def freeze_garbage_collector() -> None:
    """Exclude all present objects from garbage collection, and collect less often.

    With torch there are so many objects that a full collection delays every request by 0.3 s. Reference counts
    still free them, as they free nearly all objects of requests: cycles are rare.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])


def trim_heap() -> None:
    """Return freed memory to the system, which the allocator would keep for later allocations."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


_SKIPPED_MODULES = ("numba", "llvmlite", "_thread", "threading", "logging", "structlog", "weakref", "ctypes")
_SKIPPED_TYPES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def measure_bytes(*objects: object) -> ModelBytes:
    """Measure the memory of everything reachable from objects, each object counted once.

    A view counts as the whole array or storage behind it; data in a mapped file counts as mapped, however many
    processes share its pages. Not counted: classes, functions and modules, which all models share, and memory
    that libraries hold in compiled code.
    """
    walk = _MemoryWalk()
    walk.walk(objects)
    return ModelBytes(walk.own, walk.mapped, walk.device)


class _MemoryWalk:
    def __init__(self) -> None:
        self.own = self.mapped = self.device = 0
        self._seen: set[int] = set()
        self._blocks: set[int] = set()
        self._pending: list[Any] = []
        self._files = _MappedFiles()
        torch: Any = sys.modules.get("torch")
        self._tensor: type = torch.Tensor if torch is not None else _NoTensor

    def walk(self, objects: tuple[object, ...]) -> None:
        self._pending.extend(objects)
        while self._pending:
            item = self._pending.pop()
            if id(item) in self._seen or item is None or isinstance(item, (bool, *_SKIPPED_TYPES)):
                continue
            self._seen.add(id(item))
            self._count(item)

    def _count(self, item: Any) -> None:
        if isinstance(item, np.ndarray):
            self._count_array(item)
        elif isinstance(item, self._tensor):
            self._count_storage(item)
        elif isinstance(item, dict):
            self.own += sys.getsizeof(item)
            self._pending.extend(item.keys())
            self._pending.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            self.own += sys.getsizeof(item)
            self._pending.extend(item)
        elif not type(item).__module__.startswith(_SKIPPED_MODULES):
            self.own += sys.getsizeof(item)
            self._pending.append(getattr(item, "__dict__", None))
            for kind in type(item).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                names = (slots,) if isinstance(slots, str) else slots
                self._pending.extend(getattr(item, name, None) for name in names)

    def _count_array(self, array: npt.NDArray[Any]) -> None:
        base: Any = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        if isinstance(base, memoryview):
            base = base.obj
        if isinstance(base, mmap.mmap):
            if self._is_new(id(base)):
                self.mapped += len(base)
        elif isinstance(base, self._tensor):
            self._pending.append(base)
        elif isinstance(base, np.ndarray):
            if self._is_new(base.ctypes.data):
                self.own += base.nbytes
        else:
            self.own += array.nbytes if self._is_new(id(base)) else 0

    def _count_storage(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        if self._is_new(storage.data_ptr()):
            if tensor.device.type != "cpu":
                self.device += storage.nbytes()
            elif storage.data_ptr() in self._files:
                self.mapped += storage.nbytes()
            else:
                self.own += storage.nbytes()

    def _is_new(self, block: int) -> bool:
        before = len(self._blocks)
        self._blocks.add(block)
        return len(self._blocks) > before


class _MappedFiles:
    """Address ranges of files mapped into this process, which tensors do not record; empty without /proc."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        try:
            lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:  # begin-end permissions offset device inode path, in ascending order
            addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
            if inode != "0":
                begin, end = addresses.split("-")
                self._begins.append(int(begin, 16))
                self._ends.append(int(end, 16))

    def __contains__(self, address: int) -> bool:
        index = bisect_right(self._begins, address) - 1
        return index >= 0 and address < self._ends[index]


class _NoTensor:
    """Placeholder of the tensor type if torch is not imported."""


_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


class SystemMemory(NamedTuple):
    """Memory in use in bytes, without page cache that can be dropped, and its limit."""

    used: int
    limit: int


def reports_memory(meminfo: Path = _MEMINFO) -> bool:
    """Return whether the system reports its memory in `meminfo`, as Linux does."""
    return meminfo.exists()


def system_memory(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> SystemMemory:
    """Return the memory use of the container, or of the machine; requires `reports_memory`.

    Args:
        cgroup: mount point of the control group that a container sees as its own, of version 2 or 1.
        meminfo: memory statistics of the machine, used if no group sets a lower limit.
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
    limit = _read(group / "memory.limit_in_bytes")  # a huge number if there is no limit
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
    """Read a file of the group; None if the kernel does not provide it."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
