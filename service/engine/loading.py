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
    is_lookup,
    prefill_sequences,
    score_sequences,
    supports,
)
from models.vocabulary import EOS
from service.engine.constants import NEXT_TOKEN_CACHE_DIVISOR
from service.engine.loaded_model import LoadedModel
from service.engine.memory import ModelBytes, UnloadableModel, check_budget, estimate_bytes, measure_bytes
from service.engine.prefix_cache import NextTokenCache, PrefixCache


class Precisions(NamedTuple):
    """Precision by model or version, with a default.

    Attributes:
        common: precision of all models not named.
        named: precision by model name or `name@number`.
    """

    common: Precision
    named: Mapping[str, Precision]

    def of(self, version: Version) -> Precision:
        """Return the precision of a version: that of its address, else of its model name, else the default."""
        return self.named.get(version.address, self.named.get(version.name, self.common))

    def check_names(self, registry: Registry) -> None:
        """Reject precisions of models that are not in the registry, and of aliases, which `of` would ignore.

        Raises:
            InvalidInputError: a name is unknown or an alias.
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
                continue  # the model exists; loading it will report what is wrong
            if address not in {version.name, version.address}:
                raise InvalidInputError(
                    f"precision names {address!r}; name the model, {version.name}, or a version of it by its number, "
                    f"such as {version.address}",
                    parameter="precision",
                )


def read_precisions(text: str) -> Precisions:
    """Parse `int8`, `lstm=int8,gru@3=float32` or `int8,gru=float32`; the default is `auto` unless given.

    Raises:
        InvalidInputError: a part is no precision, or two parts are for the same models.
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
"""Batch sizes: single; smallest batch; an odd number above a vector's width; large."""

_WIDTH = 5
_TOP = 10


def warm_up(model: LanguageModel[Any]) -> None:
    """Run all operations of a model at several batch sizes; errors of the model propagate."""
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
        import_module(name)  # compiles or loads the kernels that choose tokens


def _tokens(count: int, vocab_size: int) -> Any:
    """Return ordinary ids [count] spread over the vocabulary, or `</s>` if it has no ordinary tokens."""
    ordinary = vocab_size - EOS - 1
    if ordinary == 0:
        return np.full(count, EOS, dtype=np.int64)
    return EOS + 1 + np.arange(count, dtype=np.int64) * 7919 % ordinary


LOAD_ERRORS = (
    LanguageModelError,
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
"""Errors that a damaged or unsupported version may raise while it is loaded and warmed up."""


class LoadResult(NamedTuple):
    """Result of loading a version.

    Attributes:
        loaded: the model.
        size: memory that it takes.
        load_s: loading time in seconds, including warm-up.
        warm_up_s: warm-up time in seconds.
    """

    loaded: LoadedModel
    size: ModelBytes
    load_s: float
    warm_up_s: float


class LoadObserver(Protocol):
    """Callback for metrics of model loads."""

    def model_load(self, outcome: str, seconds: float) -> None:
        """Record the end of a load: `loaded`, `failed`, or `refused` for lack of memory."""
        ...


class NullLoadObserver:
    """No-op observer."""

    def model_load(self, outcome: str, seconds: float) -> None:
        """Do nothing."""


class Loader:
    """Loader of model versions on one device.

    Args:
        registry: source of the versions.
        load: function that reads a checkpoint.
        device: `cpu`, `cuda`, `cuda:1` or `auto`.
        precisions: precision of each model.
        budget: maximum bytes of all models together; None is no bound.
        num_threads: of torch, if a model has imported it; None leaves torch's default.
        prefix_cache_bytes: maximum bytes of the caches of each model; 0 is no caches.
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

    def load(self, version: Version, *, in_use: int, unloadable: Iterable[UnloadableModel]) -> LoadResult:
        """Load a version and warm it up.

        Args:
            version: to load.
            in_use: bytes that other models take.
            unloadable: models that could be unloaded, for the message.

        Raises:
            MemoryBudgetError: it does not fit into the budget.
            One of LOAD_ERRORS: it cannot be loaded, fails its golden test, or fails in the warm-up.
        """
        started_s = self._clock()
        unloadable = list(unloadable)

        def check(size: ModelBytes) -> None:
            check_budget(version.address, size.host, budget=self.budget, in_use=in_use, others=unloadable)

        check(estimate_bytes(self._registry.manifest(version)))  # before its files are fetched
        directory = self._registry.fetch(version)
        checkpoint = self._read(directory, device=self._device, precision=self._precisions.of(version))
        size = measure_bytes(checkpoint.model, checkpoint.tokenizer)
        check(size)
        _limit_threads(self._num_threads)  # before the warm-up: a thread that has computed keeps its setting
        loaded = self._with_caches(version, checkpoint)
        loaded_s = self._clock()
        warm_up(checkpoint.model)
        loaded.token_trie.folded  # noqa: B018 - built now, not during the first autocomplete request
        ready_s = self._clock()
        return LoadResult(loaded, size, ready_s - started_s, ready_s - loaded_s)

    def _with_caches(self, version: Version, checkpoint: Checkpoint) -> LoadedModel:
        """Return the model with empty prefix and next-token caches."""
        next_token_bytes = self._prefix_cache_bytes // NEXT_TOKEN_CACHE_DIVISOR
        prefix_bytes = self._prefix_cache_bytes - next_token_bytes
        reads_fast = is_lookup(checkpoint.model)  # reading again is faster than a cache lookup
        prefix_cache = PrefixCache(prefix_bytes) if prefix_bytes and not reads_fast else None
        next_token_cache = NextTokenCache(next_token_bytes) if next_token_bytes else None
        return LoadedModel(version.address, checkpoint, prefix_cache, next_token_cache)


def _limit_threads(num_threads: int | None) -> None:
    """Set torch's number of threads if torch is imported; an n-gram server does not import it."""
    torch = sys.modules.get("torch")
    if torch is not None and num_threads is not None:
        torch.set_num_threads(num_threads)
