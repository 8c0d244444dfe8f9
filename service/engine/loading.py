"""Loading of one model version: memory check, golden test, precision, caches and warm-up.

The warm-up runs all operations of a model at several batch sizes, so that kernels are compiled and
selected before the first request.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Version
from models.checkpoint.precision import Precision, check_precision
from models.checkpoint.registry_interface import Registry
from models.errors import CheckpointError, InvalidInputError, LanguageModelError, ModelNotFoundError
from models.language_model import (
    BlockSampler,
    LanguageModel,
    TopKPredictor,
    prefill_sequences,
    score_sequences,
    supports,
)
from models.vocabulary import EOS
from service.engine.loaded_model import LoadedModel
from service.engine.memory import ModelBytes, UnloadableModel, check_budget, estimate_bytes, measure_bytes
from service.engine.prefix_cache import NextTokenCache, PrefixCache


class Precisions(NamedTuple):
    """One precision for all models, and others for some.

    Attributes:
        common: of models that are not named.
        named: of some, by name or by `name@number`.
    """

    common: Precision
    named: Mapping[str, Precision]

    def of(self, version: Version) -> Precision:
        """That of one version; what is said of the version goes before what is said of the model."""
        return self.named.get(version.address, self.named.get(version.name, self.common))

    def check_names(self, registry: Registry) -> None:
        """Refuse a precision of a model that is not there, as it is misspelt, and of an alias, which counts for none.

        Raises:
            InvalidInputError: it is of the one or the other.
            RegistryError: the registry cannot be read.
        """
        for address in self.named:
            try:
                version = registry.resolve(address)
            except ModelNotFoundError as error:
                raise InvalidInputError(
                    f"precision names {address!r}: {error}", parameter="precision"
                ) from None
            except CheckpointError:
                continue  # it is there; what is wrong with it is told when it is to be loaded
            if address not in {version.name, version.address}:
                raise InvalidInputError(
                    f"precision names {address!r}; name the model, {version.name}, or a version of it by its number, "
                    f"such as {version.address}",
                    parameter="precision",
                )


def read_precisions(text: str) -> Precisions:
    """Read `int8`, or `lstm=int8,gru@3=float32`, or `int8,gru=float32`; models not named are `auto`, or the first.

    Raises:
        InvalidInputError: a part is no precision, or two parts speak of the same models.
    """
    common: Precision | None = None
    named: dict[str, Precision] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.rpartition("="))
        precision = check_precision(value)
        if name in named or (not equals and common is not None) or (equals and not name):
            raise InvalidInputError(
                f"precision is {text!r}: {part.strip()!r} says again what was said, or names no model",
                parameter="precision",
            )
        if equals:
            named[name] = precision
        else:
            common = precision
    return Precisions(common or "auto", named)


BATCHES = (1, 2, 17, 64)
"""Rows: alone; fewest together; an odd number past a vector's width; many."""

_WIDTH = 5
_TOP = 10


def warm_up(model: LanguageModel[Any]) -> None:
    """Let a model do all that requests will ask of it, at several batch sizes.

    Raises:
        Whatever the model raises.
    """
    vocab_size = len(model.vocabulary)
    for batch in BATCHES:
        tokens = _tokens(batch * _WIDTH, vocab_size).reshape(batch, _WIDTH)
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
    for name in ("models.decoding.beam_search", "models.decoding.sampling"):
        import_module(name)  # and with them all kernels that choose tokens


def _tokens(count: int, vocab_size: int) -> Any:
    """Ordinary ids [count] from across the vocabulary; `</s>` where it has none."""
    ordinary = vocab_size - EOS - 1
    if ordinary == 0:
        return np.full(count, EOS, dtype=np.int64)
    return EOS + 1 + np.arange(count, dtype=np.int64) * 7919 % ordinary


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
