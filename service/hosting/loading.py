"""Loading of one model version: memory check, golden test, precision, caches and warm-up.

The warm-up runs all operations of a model at several batch sizes, to compile and select kernels
before the first request.

Sizes are estimated from a checkpoint's files before loading. A loaded model reports the size of its
arrays; the tokenizer's size stays an estimate. Memory in use is read from the control group (cgroup
v2 or v1), else from /proc/meminfo, without droppable page cache.
"""

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import structlog
from pydantic import ByteSize

from models.arrays import ModelBytes
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.manifest import Manifest, Version
from models.checkpoint.precision import FLOAT32, INT8, Precision, check_precision
from models.checkpoint.registry import LocalRegistry
from models.checkpoint.registry_interface import Registry
from models.cores import CGROUP, group_folders
from models.errors import (
    CheckpointError,
    DomainError,
    InputError,
    MemoryBudgetError,
    ModelNotFoundError,
)
from models.kernels.threads import THREADS
from models.language_model import (
    EOS,
    BlockSampler,
    LanguageModel,
    TopKPredictor,
    is_lookup,
    prefill_sequences,
    score_sequences,
    supports,
)
from models.prefix_cache import NextTokenCache, PrefixCache
from service.engine.constants import NEXT_TOKEN_CACHE_DIVISOR
from service.hosting.loaded_model import HostedModel, LoadedModel

MEMINFO = Path("/proc/meminfo")
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a group's limit and use of memory, and key of its page cache: versions 2 and 1."""

_MAPPED_SUFFIXES = (".bin", ".safetensors")
_TOKENIZER = "tokenizer"
_TOKENIZER_GROWTH = 12
"""Memory of a tokenizer relative to its file: each word is an object in several tables."""
_GC_THRESHOLD = 10_000
"""Allocations minus deallocations that trigger a garbage collection."""

BATCHES = (1, 2, 17, 64)
"""Batch sizes: single; smallest batch; odd and above the width of a vector; large."""

_WIDTH, _TOP = 5, 10
LOAD_ERRORS = (
    DomainError,
    ImportError,
    OSError,
    MemoryError,
    RuntimeError,  # includes torch's errors, such as a device out of memory
    ArithmeticError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
)
"""Errors of a damaged or unsupported version in loading and warm-up."""

_log = structlog.get_logger(__name__)


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


def system_memory(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> SystemMemory:
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
    of_machine = SystemMemory(total - machine["MemAvailable"], total)
    limited = (
        _group_memory(folder, *files) for folder in group_folders("memory", cgroup) for files in _MEMORY_FILES
    )
    return min([of_machine, *filter(None, limited)], key=lambda memory: memory.limit)


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


def read_precisions(text: str) -> dict[str, Precision]:
    """Parse `int8`, `lstm=int8,gru@3=float32` or `int8,gru=float32`.

    Returns:
        Precisions by model name or `name@number`; that of all others, by default `auto`, by the empty name.

    Raises:
        InputError: a part is not a precision, or two parts apply to the same models.
    """
    precisions: dict[str, Precision] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        precision = check_precision(value)
        if name in precisions or (equals and not name):
            raise InputError.of(
                "precision", f"is {text!r}: {part.strip()!r} is a duplicate or names no model"
            )
        precisions[name] = precision
    return {"": "auto", **precisions}


def warm_up(model: LanguageModel[Any]) -> None:
    """Run all operations of a model at several batch sizes; its errors propagate."""
    vocab_size = len(model.vocabulary)
    for batch in BATCHES:
        # ordinary ids spread over the vocabulary, or `</s>` if it has none
        ids = EOS + 1 + np.arange(batch * _WIDTH) * 7919 % max(vocab_size - EOS - 1, 1)
        tokens = np.minimum(ids, vocab_size - 1).reshape(batch, _WIDTH)
        lengths = 1 + np.arange(batch) % _WIDTH
        state = model.advance(model.initial_state(batch), tokens[:, 0])
        model.next_log_probs(state)
        if supports(model, TopKPredictor):
            model.top_k(state, min(_TOP, vocab_size))
        if supports(model, BlockSampler):
            rows = np.arange(batch)
            model.logits(model.block_sums(state, np.ones(batch, np.float32)), rows, np.zeros(batch, np.int64))
        score_sequences(model, state, tokens, lengths)
        prefill_sequences(model, state.select(np.arange(batch)[::-1].copy()), tokens, lengths)
    model.next_log_probs(model.empty_state(1))


@dataclass(slots=True, kw_only=True)
class Loader:
    """Loader of model versions on one device.

    Attributes:
        registry: source of the versions.
        read: reads a checkpoint.
        device: `cpu`, `cuda`, `cuda:1` or `auto`.
        precision: setting in the syntax of `read_precisions`.
        budget: maximum bytes of all models; None for no limit.
        num_threads: maximum threads of a network; None for the default.
        prefix_cache_bytes: maximum bytes of each model's caches, not in the budget; 0 for none.
        clock: monotonic clock in seconds.

    Raises:
        InputError: the precision is invalid, or names an alias or a model not in the registry.
        RegistryError: the registry cannot be read.
    """

    registry: Registry
    read: Callable[..., Checkpoint] = load_checkpoint
    device: str = "cpu"
    precision: str = "auto"
    budget: int | None = None
    num_threads: int | None = None
    prefix_cache_bytes: int = 0
    clock: Callable[[], float] = time.monotonic
    _precisions: dict[str, Precision] = field(init=False)

    def __post_init__(self) -> None:
        self._precisions = read_precisions(self.precision)
        for address in filter(None, self._precisions):
            try:
                version = self.registry.resolve(address)
            except ModelNotFoundError as error:
                raise InputError.of("precision", f"names {address!r}: {error}") from None
            except CheckpointError:
                continue  # the model exists; loading it reports the error
            # an alias; `_precision_of` ignores it
            if address not in {version.name, version.address}:
                raise InputError.of(
                    "precision",
                    f"names {address!r}; name the model, {version.name}, or a version with its number, "
                    f"such as {version.address}",
                )

    def _precision_of(self, version: Version) -> Precision:
        """Return the precision set for a version's address, else for its name, else for others."""
        set_for = self._precisions
        return set_for.get(version.address, set_for.get(version.name, set_for[""]))

    def compile_kernels(self, versions: Iterable[Version]) -> list[Future[None]]:
        """Start to compile versions' missing kernels; see `compile_groups`.

        `load` compiles those of a remote registry: it fetches files after checking the budget.
        """
        from models.precompile import compile_groups, needed_groups  # imports numba

        groups = []
        for version in versions if isinstance(self.registry, LocalRegistry) else ():
            int8 = self.device == "cpu" and self._precision_of(version) != FLOAT32
            with contextlib.suppress(DomainError, OSError):  # loading the version reports the error
                groups += needed_groups(self.registry.fetch(version), int8=int8)
        return compile_groups(groups)

    def load(self, version: Version, *, in_use: int, unloadable: Mapping[str, int]) -> HostedModel:
        """Load a version and warm it up.

        Args:
            version: version to load.
            in_use: bytes of other models.
            unloadable: bytes of models that can be unloaded, for the message.

        Raises:
            MemoryBudgetError: the version does not fit into the budget.
            One of LOAD_ERRORS: loading, the golden test or the warm-up failed.
        """
        from models.precompile import compile_group, needed_groups  # imports numba

        started_s, address = self.clock(), version.address
        check = partial(check_budget, address, budget=self.budget, in_use=in_use, others=unloadable)
        manifest = self.registry.manifest(version)
        check(estimate_bytes(manifest).host)  # before the files are fetched
        directory = self.registry.fetch(version)
        checkpoint = self.read(directory, device=self.device, precision=self._precision_of(version))
        # kernels without a warm-up call, such as those that choose tokens
        with contextlib.suppress(DomainError, OSError):  # then compiled at their first call
            for group in needed_groups(directory, int8=checkpoint.precision == INT8):
                compile_group(group)
        size = loaded_bytes(checkpoint.model, manifest)
        check(size.host)
        if self.num_threads is not None:
            THREADS.limit = self.num_threads
            torch = sys.modules.get("torch")  # only networks in float32 import it
            # now: a thread keeps the setting of its first computation
            if torch is not None:
                torch.set_num_threads(self.num_threads)
        next_token_bytes = self.prefix_cache_bytes // NEXT_TOKEN_CACHE_DIVISOR
        prefix_bytes = self.prefix_cache_bytes - next_token_bytes
        reads_fast = is_lookup(checkpoint.model)  # faster than a cache lookup
        prefix_cache = PrefixCache(prefix_bytes) if prefix_bytes and not reads_fast else None
        loaded = LoadedModel.of(
            address,
            checkpoint,
            prefix_cache=prefix_cache,
            next_token_cache=NextTokenCache(next_token_bytes),
        )
        loaded_s = self.clock()
        warm_up(checkpoint.model)
        trie, any_case = loaded.token_trie, loaded.tokenizer.normaliser.changes_case
        orders = trie.exact, trie.folded  # now, not in the first autocomplete
        if (texts := loaded.ngram_texts) is not None:
            texts.read("")  # indexes words
            texts.rank(orders[any_case].ids)
        elif not trie.whole_words:
            from models.completion.pieces import PieceTables  # on demand: compiled code

            PieceTables.of(trie)
        ready_s = self.clock()
        load_s, warm_up_s = ready_s - started_s, ready_s - loaded_s
        _log.info(
            "model loaded",
            model=address,
            family=checkpoint.manifest.family,
            precision=checkpoint.precision,
            seconds=round(load_s, 3),
            warm_up_s=round(warm_up_s, 3),
            bytes=size.host,
        )
        return HostedModel(
            address,
            version,
            loaded=loaded,
            size=size,
            load_s=load_s,
            warm_up_s=warm_up_s,
        )
