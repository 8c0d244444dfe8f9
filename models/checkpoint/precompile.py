"""Compilation of kernels before their first use, by several processes at once.

Kernels of a group are compiled by one process, because they share functions.
"""

import gc
import importlib
import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.manifest import MANIFEST_FILE, read_manifest
from models.kernels.compilation import COMPILED_ELSEWHERE, DECLARED, Kernel, can_store_kernels
from models.ngram.automaton import AUTOMATON_FILE, Automaton

_log = logging.getLogger(__name__)

EXACT, QUANTISED = 0, 1
"""Versions of the kernels of n-gram models."""


class KernelGroup(NamedTuple):
    """Kernels that one process compiles.

    Attributes:
        names: modules, or `module:function` for one kernel.
        version: number of the only declared version to compile; None for all versions.
    """

    names: tuple[str, ...]
    version: int | None = None


_INT8 = "models.neural.int8"
_DECODING = KernelGroup(("models.decoding.sampling", "models.decoding.beam_search", "models.decoding.batch"))
_OUTPUT = (f"{_INT8}.softmax", f"{_INT8}.matrix")
_RECURRENT = KernelGroup((f"{_INT8}.layers:run_recurrent_layer", *_OUTPUT))
_FEED_FORWARD = KernelGroup((f"{_INT8}.layers:run_dense_layer", *_OUTPUT))
_NGRAM = (("models.ngram.top_k",), ("models.ngram.scoring", "models.ngram.build", "models.ngram.model"))
_CACHE = KernelGroup(("models.cache.kernels",))

ALL_GROUPS = (
    *(KernelGroup(names) for names in _NGRAM),
    KernelGroup((f"{_INT8}.layers", *_OUTPUT, f"{_INT8}.attention", "models.neural.softmax")),
    _DECODING,
    KernelGroup(
        (*_CACHE.names, "models.reranking.metrics.ngram_overlap", "models.reranking.tuning.envelope")
    ),
)
"""Groups of all kernels of declared types for serving."""

_GROUPS_OF_FAMILIES = {
    "feed-forward": _FEED_FORWARD,
    **dict.fromkeys(("elman", "gru", "lstm", "mingru"), _RECURRENT),
    "cache": _CACHE,
}


def needed_groups(directory: Path, *, int8: bool) -> list[KernelGroup]:
    """Return the groups of kernels that a checkpoint needs, but for layer normalisation and attention.

    Args:
        directory: a checkpoint; parts of a mixture or a cache are in its folders.
        int8: whether its networks may compute in int8.

    Raises:
        CheckpointError: a manifest or an n-gram file is damaged.
    """
    groups = list[KernelGroup]()
    for path in directory.rglob(MANIFEST_FILE):
        family = read_manifest(path.parent).family
        if family == "ngram":
            quantised = Automaton.load(path.with_name(AUTOMATON_FILE)).quantised
            groups += [KernelGroup(names, QUANTISED if quantised else EXACT) for names in _NGRAM]
        elif family in _GROUPS_OF_FAMILIES and (int8 or family == "cache"):
            groups.append(_GROUPS_OF_FAMILIES[family])
    return [*groups, _DECODING]


def compile_groups(groups: Iterable[KernelGroup]) -> list[Future[None]]:
    """Start to compile the kernels of groups that are not stored yet, in as many processes as there are processors.

    The first call of such a kernel in this process waits for the other process. If processes cannot start or code
    cannot be stored, each kernel is compiled at its first call instead.

    Returns:
        The end of each group's compilation.
    """
    versions = {group: _versions(group) for group in groups}
    missing = {
        group: kernels
        for group, kernels in versions.items()
        if not all(kernel.is_stored(signature) for kernel, signature in kernels)
    }
    if not missing or not can_store_kernels():
        return []
    _log.info("compiling kernels, once: %s", ", ".join(name for group in missing for name in group.names))
    started_s = time.monotonic()
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=_ignore_interrupts)
        futures = [pool.submit(_compile_group, group) for group in missing]
    except (OSError, BrokenProcessPool) as error:
        _log.warning("each kernel is compiled at its first call: %s", error)
        return []
    for future, kernels in zip(futures, missing.values(), strict=True):
        COMPILED_ELSEWHERE.update({(kernel.module, kernel.function): future for kernel, _ in kernels})
    futures[-1].add_done_callback(
        lambda _: _log.info("kernels compiled in %.1f s", time.monotonic() - started_s)
    )
    pool.shutdown(wait=False)
    return futures


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to these processes too


def _compile_group(group: KernelGroup) -> None:
    gc.disable()  # collection of numba's objects takes a tenth of the time
    for kernel, version in _versions(group):
        kernel.compile([version])


def _versions(group: KernelGroup) -> list[tuple[Kernel, Any]]:
    """Return the kernels of a group, each with the signature of a version to compile; import their modules."""
    found = []
    for name in group.names:
        module, _, function = name.partition(":")
        importlib.import_module(module)
        for kernel in DECLARED:
            if kernel.module == module and function in {"", kernel.function}:
                last = len(kernel.signatures) - 1
                chosen = range(last + 1) if group.version is None else [min(group.version, last)]
                found += [(kernel, kernel.signatures[number]) for number in chosen]
    return found
