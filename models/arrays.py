"""Array types, and conversion of torch tensors to NumPy.

Models compute in NumPy on a CPU, in torch on CUDA. Code that uses their results on the
host converts them here; imports no torch.
"""

import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

TokenIds: TypeAlias = npt.NDArray[np.int64]
"""Token ids, [B] or [B, T]."""

FloatArray: TypeAlias = npt.NDArray[np.float32]
"""Natural-log probabilities in single precision."""

AnyArray: TypeAlias = npt.NDArray[Any]

# arrays of any shape, by the type of their numbers
Bools: TypeAlias = npt.NDArray[np.bool_]
Float32s: TypeAlias = npt.NDArray[np.float32]
Float64s: TypeAlias = npt.NDArray[np.float64]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt8s: TypeAlias = npt.NDArray[np.uint8]
UInt16s: TypeAlias = npt.NDArray[np.uint16]
UInt32s: TypeAlias = npt.NDArray[np.uint32]
UInt64s: TypeAlias = npt.NDArray[np.uint64]


class Array(Protocol):
    """Common interface of NumPy arrays and torch tensors."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    def __getitem__(self, key: Any, /) -> Any: ...


class SharedSlots:
    """Slots of a buffer that the states of one text share; each is claimed once, in order.

    Args:
        capacity: number of slots.
    """

    __slots__ = ("_capacity", "_filled", "_lock")

    def __init__(self, capacity: int) -> None:
        self._capacity, self._filled = capacity, 0
        # states are values, so several threads may continue one
        self._lock = threading.Lock()

    def claim(self, begin: int, end: int) -> bool:
        """Claim slots [begin, end) if they exist and are free; return True on success."""
        with self._lock:
            is_free = begin == self._filled and end <= self._capacity
            if is_free:
                self._filled = end
            return is_free


class ModelBytes(NamedTuple):
    """Memory of a model in bytes.

    Attributes:
        own: private memory of this process.
        mapped: files mapped into memory; processes share the pages, but each counts all.
        device: memory of a device.
    """

    own: int = 0
    mapped: int = 0
    device: int = 0

    @property
    def host(self) -> int:
        """Bytes counted towards the budget.

        Mapped pages count because a model is fast only if they are resident.
        """
        return self.own + self.mapped


def array_bytes(arrays: Iterable[Any]) -> ModelBytes:
    """Sum the memory of NumPy arrays.

    Each mapped file and base array counts once, in full, even for a view.
    """
    own: dict[int, int] = {}
    mapped: dict[int, int] = {}
    for array in arrays:
        base = array
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        file = base.obj if isinstance(base, memoryview) else base
        if isinstance(file, mmap.mmap):
            mapped[id(file)] = len(file)
        else:
            own[id(base)] = base.nbytes if isinstance(base, np.ndarray) else array.nbytes
    return ModelBytes(sum(own.values()), sum(mapped.values()))


def add_bytes(sizes: Iterable[ModelBytes]) -> ModelBytes:
    """Sum the memory of the parts of a model."""
    return ModelBytes(*map(sum, zip(ModelBytes(), *sizes, strict=True)))


def runs_by_cost(costs: npt.ArrayLike, most: float) -> Iterator[slice]:
    """Yield consecutive runs of items whose costs sum to at most `most`, or that have one item."""
    ends, begin, spent = np.cumsum(costs), 0, 0.0
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, spent + most, side="right")))
        yield slice(begin, end)
        begin, spent = end, float(ends[end - 1])


def index_ranges(begins: Int64s, ends: Int64s) -> Int64s:
    """Join the ranges begins[0], …, ends[0] − 1, begins[1], …, ends[1] − 1, …."""
    counts = ends - begins
    before = np.cumsum(counts) - counts
    numbers: Int64s = np.arange(int(counts.sum())) + np.repeat(begins - before, counts)
    return numbers


def to_numpy(array: Array) -> FloatArray:
    """Return a float32 NumPy array on the host, without a copy if it is one."""
    if isinstance(array, np.ndarray):
        return np.asarray(array, np.float32)
    tensor: Any = array
    return np.asarray(tensor.detach().cpu().numpy(), np.float32)


def on_one_device(arrays: Sequence[Array]) -> bool:
    """True if all are torch tensors on one device, to combine there."""
    devices = {None if isinstance(array, np.ndarray) else getattr(array, "device", None) for array in arrays}
    return len(devices) == 1 and None not in devices


def code_points(words: Sequence[str]) -> tuple[UInt32s, Int64s]:
    """Return the joined characters of words [C], and how many each has [N]."""
    codes = np.frombuffer("".join(words).encode("utf-32-le", "surrogatepass"), np.uint32)
    return codes, np.fromiter(map(len, words), np.int64, len(words))


def letter_sets(words: Sequence[str]) -> UInt64s:
    """Encode each word's letter set in 64 bits [N]; letters may share a bit."""
    codes, lengths = code_points(words)
    bits = np.left_shift(np.uint64(1), (codes % 64).astype(np.uint64))
    sets = np.zeros(len(words), np.uint64)
    filled = np.flatnonzero(lengths)
    sets[filled] = np.bitwise_or.reduceat(bits, (np.cumsum(lengths) - lengths)[filled])
    return sets
