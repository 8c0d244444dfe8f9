"""How much memory models take: guessed from their files, bounded by a budget, given back."""

import ctypes
import gc
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

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
