"""How much memory an object takes with all it is made of."""

import mmap
import sys
import types
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from service.engine.memory import ModelBytes

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
