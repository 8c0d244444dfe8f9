"""Loading one version: room for it, its bytes, its golden test, its first answers."""

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from models.checkpoint.load import Checkpoint
from models.checkpoint.registry import Registry
from models.checkpoint.versions import Version
from models.errors import LanguageModelError
from service.engine.hosted import LoadedModel
from service.engine.looks import NextTokenCache
from service.engine.measuring import measure_bytes
from service.engine.memory import ModelBytes, UnloadableModel, check_budget, estimate_bytes
from service.engine.precisions import Precisions
from service.engine.prefixes import PrefixCache
from service.engine.warming import warm_up

_NEXT_TOKEN_CACHE_DIVISOR = 4
"""Of the memory for what was read before, the fourth part is for what models said while people typed."""

LOAD_ERRORS = (
    LanguageModelError,
    ImportError,
    OSError,
    MemoryError,
    RuntimeError,  # among them those of torch, a device's memory that ran out included
    ArithmeticError,
    LookupError,
    AttributeError,
    TypeError,
    ValueError,
)
"""What a damaged or strange version may raise while it is loaded and warmed up."""


class LoadResult(NamedTuple):
    """A version that has been loaded.

    Attributes:
        loaded: it.
        size: what it takes.
        load_s: how long it took, warm-up included.
        warm_up_s: how long the warm-up took.
    """

    loaded: LoadedModel
    size: ModelBytes
    load_s: float
    warm_up_s: float


class LoadObserver(Protocol):
    """Told how loads go."""

    def model_load(self, outcome: str, seconds: float) -> None:
        """A load has ended: `loaded`, `failed`, or `refused` for want of memory."""
        ...


class NullLoadObserver:
    """For a host whose loads nobody counts."""

    def model_load(self, outcome: str, seconds: float) -> None:
        """Do nothing."""


class Loader:
    """Loads versions on one device.

    Args:
        registry: where they are published.
        load: reads a checkpoint.
        device: `cpu`, `cuda`, `cuda:1` or `auto`.
        precisions: what each computes in.
        budget: bytes that all models together may take; None is no bound.
        num_threads: of torch, if a model has brought it in; None leaves its choice.
        prefix_cache_bytes: what each model may keep of states after texts it has read; 0 is none.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        registry: Registry,
        load: Callable[..., Checkpoint],
        *,
        device: str,
        precisions: Precisions,
        budget: int | None,
        num_threads: int | None,
        prefix_cache_bytes: int,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._read = load
        self._device = device
        self._precisions = precisions
        self.budget = budget
        self._num_threads = num_threads
        self._prefix_cache_bytes = prefix_cache_bytes
        self._clock = clock

    def load(self, version: Version, *, in_use: int, others: Iterable[UnloadableModel]) -> LoadResult:
        """Load a version until it can answer.

        Args:
            version: to load.
            in_use: bytes that other models take.
            others: models that could be unloaded, for the message.

        Raises:
            MemoryBudgetError: there is no room for it.
            One of FAILURES: it cannot be loaded, fails its golden test, or cannot answer.
        """
        started_s = self._clock()
        others = list(others)

        def check(size: ModelBytes) -> None:
            check_budget(version.address, size.host, budget=self.budget, in_use=in_use, others=others)

        check(estimate_bytes(self._registry.manifest(version)))  # before its files are fetched
        directory = self._registry.fetch(version)
        checkpoint = self._read(directory, device=self._device, precision=self._precisions.of(version))
        size = measure_bytes(checkpoint.model, checkpoint.tokenizer)
        check(size)
        _limit_threads(self._num_threads)  # first: a thread that has computed before keeps its number
        loaded = self._with_caches(version, checkpoint)
        loaded_s = self._clock()
        warm_up(checkpoint.model)
        loaded.token_trie.folded  # noqa: B018 - made now, not when somebody types
        ready_s = self._clock()
        return LoadResult(loaded, size, ready_s - started_s, ready_s - loaded_s)

    def _with_caches(self, version: Version, checkpoint: Checkpoint) -> LoadedModel:
        """A model with empty caches: of states after texts, and of what it said while people typed."""
        looks_bytes = self._prefix_cache_bytes // _NEXT_TOKEN_CACHE_DIVISOR
        states_bytes = self._prefix_cache_bytes - looks_bytes
        reads_fast = checkpoint.model.family == "ngram"  # sooner than it is asked what was read
        prefixes = PrefixCache(states_bytes) if states_bytes and not reads_fast else None
        looks = NextTokenCache(looks_bytes) if looks_bytes else None
        return LoadedModel(version.address, checkpoint, prefixes, looks)


def _limit_threads(num_threads: int | None) -> None:
    """Tell torch; an n-gram server never imports it, and is not made to for the sake of a limit."""
    torch = sys.modules.get("torch")
    if torch is not None and num_threads is not None:
        torch.set_num_threads(num_threads)
