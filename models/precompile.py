"""Compilation of kernels before their first use, by several processes at once.

Kernels of a group are compiled by one process, because they share functions.
`python -m models.precompile` compiles all kernels of serving for its environment's level.
"""

import gc
import importlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.load import NGRAM_FAMILY
from models.checkpoint.manifest import MANIFEST_FILE, read_manifest
from models.checkpoint.precision import NEURAL_FAMILIES, PRETRAINED_FAMILY, QUANTISABLE_FAMILIES
from models.cores import usable_threads
from models.errors import DomainError, InputError
from models.files import read_config
from models.kernels.compilation import COMPILED_ELSEWHERE, DECLARED, Kernel, can_store_kernels
from models.kernels.target import HOST, supported_levels
from models.ngram.automaton import AUTOMATON_FILE, Automaton
from models.tokenizers import TOKENIZER_FILE, WordTokenizer

_log = logging.getLogger(__name__)

_INT8 = "models.neural.int8"

_OUTPUT = (f"{_INT8}.output", f"{_INT8}.matrix")

_NGRAM = (
    ("models.ngram.top_k",),
    ("models.ngram.scoring", "models.ngram.build"),
)
_NGRAM_TEXTS = ("models.ngram.texts",)


class KernelGroup(NamedTuple):
    """Kernels that one process compiles.

    Attributes:
        names: modules, or `module:function` for one kernel.
        version: number of the only declared version to compile; None for all.
    """

    names: tuple[str, ...]
    version: int | None = None


DECODING = KernelGroup(("models.decoding.sampling", "models.decoding.beam_search", "models.decoding.batch"))
"""Kernels of generation, for models of every family."""

_RECURRENT = KernelGroup((f"{_INT8}.layers:run_recurrent_layer", *_OUTPUT))
_FEED_FORWARD = KernelGroup((f"{_INT8}.layers:activate", *_OUTPUT))
_CACHE = KernelGroup(("models.cache.kernels",))
WORDS = KernelGroup(("models.word_kernels",))
"""Kernels that map the words of many lines to ids."""
PIECES = KernelGroup(("models.completion.text_hashes", "models.completion.frontier"))
"""Kernels that complete words by pieces or characters."""

ALL_GROUPS = (
    *(KernelGroup(names) for names in (*_NGRAM, _NGRAM_TEXTS)),
    KernelGroup((f"{_INT8}.layers", *_OUTPUT, "models.neural.output")),
    KernelGroup(
        tuple(f"models.lattices.{name}" for name in ("lattice", "graph", "ngram_passing", "posteriors"))
    ),
    DECODING,
    KernelGroup(
        (
            *_CACHE.names,
            *WORDS.names,
            *PIECES.names,
            "models.completion.beginnings",
            "models.reranking.metrics.ngram_overlap",
            "models.reranking.similar_phrases",
            "models.reranking.tuning.envelope",
        )
    ),
)
"""Groups of all kernels of declared types for serving."""

_GROUPS_OF_FAMILIES = {
    **dict.fromkeys(NEURAL_FAMILIES, _RECURRENT),
    "feed-forward": _FEED_FORWARD,
    PRETRAINED_FAMILY: KernelGroup(_OUTPUT),
    "cache": _CACHE,
}


def groups_of(family: str, *, quantised: bool = False, of_words: bool = True) -> list[KernelGroup]:
    """Return the kernels of a family, without a model's parts, layer normalisation and attention.

    Args:
        family: of the model; networks compute in int8.
        quantised: whether an n-gram model's values have eight bits.
        of_words: whether its tokens are words.
    """
    if family == NGRAM_FAMILY:
        names_of_groups = (*_NGRAM, *((_NGRAM_TEXTS,) if of_words else ()))
        return [KernelGroup(names, version=int(quantised)) for names in names_of_groups]
    return [_GROUPS_OF_FAMILIES[family]] if family in _GROUPS_OF_FAMILIES else []


def needed_groups(directory: Path, *, int8: bool) -> list[KernelGroup]:
    """Return the groups of kernels that a checkpoint needs; see `groups_of`.

    Args:
        directory: a checkpoint, with the parts of a mixture or cache.
        int8: whether its networks may compute in int8.

    Raises:
        CheckpointError: a file is damaged.
    """
    groups = list[KernelGroup]()
    of_words = read_config(directory / TOKENIZER_FILE).get("kind") == WordTokenizer.kind
    for path in directory.rglob(MANIFEST_FILE):
        family = read_manifest(path.parent).family
        if family == NGRAM_FAMILY:
            automaton = Automaton.load(path.with_name(AUTOMATON_FILE))
            groups += groups_of(family, quantised=automaton.quantised, of_words=of_words)
        elif int8 or family not in QUANTISABLE_FAMILIES:
            groups += groups_of(family)
    return [*groups, WORDS if of_words else PIECES, DECODING]


def compile_groups(groups: Iterable[KernelGroup]) -> list[Future[None]]:
    """Start to compile kernels of groups that are not stored yet, one process per usable core.

    The first call of such a kernel here waits for the other process. If processes cannot start or
    code cannot be stored, each kernel is compiled at its first call instead.

    Returns:
        The end of each group's compilation.
    """
    found = {group: kernels_of(group) for group in groups}
    missing = {
        group: kernels
        for group, kernels in found.items()
        if not all(kernel.is_stored(signature) for kernel, signature in kernels)
    }
    if not missing or not can_store_kernels():
        return []
    _log.info("compiling kernels, once: %s", ", ".join(name for group in missing for name in group.names))
    started_s = time.monotonic()
    context = multiprocessing.get_context("spawn")
    try:
        pool = ProcessPoolExecutor(usable_threads(), mp_context=context, initializer=_prepare_process)
        futures = [pool.submit(compile_group, group) for group in missing]
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


def precompile_levels(names: Sequence[str] | None, folder: Path) -> Iterator[str]:
    """Compile all kernels of serving for processor levels; yield the name of each level when it is done.

    Args:
        names: names of levels; None for all that this host has.
        folder: where to write.

    Raises:
        InputError: a level is unknown, or this host's processor lacks it.
        DomainError: the folder is not writable, or compilation failed.
    """
    present = [level.name for level in supported_levels()] or [HOST.name]
    for name in names or present:
        if name not in present:
            raise InputError.of("target", f"is {name!r}; this processor has {', '.join(present)}")
    for name in names or present:
        level = {} if name == HOST.name else {"NUMBA_CPU_NAME": name}
        environment = {**os.environ, **level, "NUMBA_CACHE_DIR": str(folder)}  # noqa: TID251 - of the child process
        # without the working folder on its path, whose modules could be named like libraries
        command = [sys.executable, "-P", "-m", "models.precompile"]
        done = subprocess.run(command, env=environment, check=False)  # noqa: S603 - constant
        if done.returncode:
            raise DomainError(f"kernels of {name} could not be compiled; the reason is above")
        yield name


def _prepare_process() -> None:
    # a terminal sends it to these processes too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # collection of numba's objects takes a tenth of the time


def compile_group(group: KernelGroup) -> None:
    """Compile the kernels of a group in this process, or read them from files."""
    for kernel, signature in kernels_of(group):
        kernel.compile([signature])


def kernels_of(group: KernelGroup) -> list[tuple[Kernel, Any]]:
    """Return a group's kernels, each with the signature of a version to compile; import their modules."""
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


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if not can_store_kernels():
        sys.exit(1)
    for compiled in compile_groups(ALL_GROUPS):
        compiled.result()
