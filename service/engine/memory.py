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
from collections.abc import Iterable
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
"""Lists of words take so many times the room of their file: every word is an object, in several tables."""
_GC_THRESHOLD = 10_000
"""That are made and not freed again before those that refer to themselves are looked for."""


class ModelBytes(NamedTuple):
    """Bytes that a model takes.

    Attributes:
        own: of this process's memory.
        mapped: of files mapped into memory, whose pages processes share: each counts all of them.
        device: of a device's memory.
    """

    own: int = 0
    mapped: int = 0
    device: int = 0

    @property
    def host(self) -> int:
        """What a budget counts: mapped pages too, for a model is fast only while they stay."""
        return self.own + self.mapped


class UnloadableModel(NamedTuple):
    """A model in memory, and what unloading it would give back."""

    address: str
    bytes: int


def estimate_bytes(manifest: Manifest) -> ModelBytes:
    """What a checkpoint will take once it is loaded, by the sizes of its files."""
    own = mapped = 0
    for name, entry in manifest.files.items():
        path = PurePosixPath(name)
        if path.suffix in _MAPPED_SUFFIXES:
            mapped += entry.bytes
        elif path.name.startswith(_TOKENIZER):
            own += entry.bytes * _TOKENIZER_GROWTH
    return ModelBytes(own, mapped)


def check_budget(
    address: str, needed: int, *, budget: int | None, in_use: int, others: Iterable[UnloadableModel]
) -> None:
    """Refuse a model that does not fit.

    Args:
        address: the model.
        needed: bytes it takes.
        budget: bytes that all models may take; None is no bound.
        in_use: bytes that are taken.
        others: models that could be unloaded.

    Raises:
        MemoryBudgetError: it does not fit; nothing is unloaded to make room.
    """
    if budget is None or in_use + needed <= budget:
        return
    largest = sorted(others, key=lambda room: -room.bytes)
    could = ", ".join(f"{room.address} ({format_bytes(room.bytes)})" for room in largest)
    raise MemoryBudgetError(
        f"{address} needs about {format_bytes(needed)}, but of the budget of {format_bytes(budget)} "
        f"{format_bytes(in_use)} are in use; "
        + (f"what could be unloaded: {could}" if could else "nothing could be unloaded")
    )


def format_bytes(size: int) -> str:
    """A number of bytes as people read it."""
    return ByteSize(size).human_readable(separator=" ")


def freeze_garbage_collector() -> None:
    """Let later collections of garbage pass over all that is in memory now.

    With torch there are so many objects that looking at all of them holds every request up for 0.3 s. They are
    freed as before, by their last reference. So is nearly all that requests make: what refers to itself is looked
    for after so many objects that it costs nobody time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])


def trim_heap() -> None:
    """Return what was freed to the system; the allocator would keep it for what is allocated next."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


_SKIPPED_MODULES = ("numba", "llvmlite", "_thread", "threading", "logging", "structlog", "weakref", "ctypes")
_SKIPPED_TYPES = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def measure_bytes(*objects: object) -> ModelBytes:
    """Bytes of everything that can be reached from objects, each counted once.

    Arrays and tensors count with all they are views of; what lies in a mapped file counts as mapped, however many
    processes share its pages. Classes, functions and modules, which all models share, and what libraries hide
    in compiled code do not count.
    """
    survey = _MemoryWalk()
    survey.walk(objects)
    return ModelBytes(survey.own, survey.mapped, survey.device)


class _MemoryWalk:
    def __init__(self) -> None:
        self.own = self.mapped = self.device = 0
        self._seen: set[int] = set()
        self._blocks: set[int] = set()
        self._left: list[Any] = []
        self._files = _MappedFiles()
        torch: Any = sys.modules.get("torch")
        self._tensor: type = torch.Tensor if torch is not None else _NoTensor

    def walk(self, objects: tuple[object, ...]) -> None:
        self._left.extend(objects)
        while self._left:
            one = self._left.pop()
            if id(one) in self._seen or one is None or isinstance(one, (bool, *_SKIPPED_TYPES)):
                continue
            self._seen.add(id(one))
            self._count(one)

    def _count(self, one: Any) -> None:
        if isinstance(one, np.ndarray):
            self._array(one)
        elif isinstance(one, self._tensor):
            self._storage(one)
        elif isinstance(one, dict):
            self.own += sys.getsizeof(one)
            self._left.extend(one.keys())
            self._left.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            self.own += sys.getsizeof(one)
            self._left.extend(one)
        elif not type(one).__module__.startswith(_SKIPPED_MODULES):
            self.own += sys.getsizeof(one)
            self._left.append(getattr(one, "__dict__", None))
            for kind in type(one).__mro__:
                slots = kind.__dict__.get("__slots__", ())
                names = (slots,) if isinstance(slots, str) else slots
                self._left.extend(getattr(one, name, None) for name in names)

    def _array(self, array: npt.NDArray[Any]) -> None:
        whole: Any = array
        while isinstance(whole, np.ndarray) and whole.base is not None:
            whole = whole.base
        if isinstance(whole, memoryview):
            whole = whole.obj
        if isinstance(whole, mmap.mmap):
            if self._is_new(id(whole)):
                self.mapped += len(whole)
        elif isinstance(whole, self._tensor):
            self._left.append(whole)
        elif isinstance(whole, np.ndarray):
            if self._is_new(whole.ctypes.data):
                self.own += whole.nbytes
        else:
            self.own += array.nbytes if self._is_new(id(whole)) else 0

    def _storage(self, tensor: Any) -> None:
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
    """The addresses at which this process has files; none where the system does not tell. A tensor cannot say it."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        try:
            lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:  # begin-end permissions offset device inode path, by rising address
            addresses, _, _, _, inode, *_ = line.split(maxsplit=5)
            if inode != "0":
                begin, end = addresses.split("-")
                self._begins.append(int(begin, 16))
                self._ends.append(int(end, 16))

    def __contains__(self, address: int) -> bool:
        place = bisect_right(self._begins, address) - 1
        return place >= 0 and address < self._ends[place]


class _NoTensor:
    """Where torch was never imported."""


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
