"""The models in memory: loads those the service was told to, and finds them by address."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

import structlog

from models.arrays import TokenIds
from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry import Registry, Version
from models.errors import (
    CheckpointError,
    LanguageModelError,
    ModelNotFoundError,
    NotReadyError,
    RegistryError,
)
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer

_log = structlog.get_logger(__name__)
PREFERRED_DEFAULT = "mixture"


class LoadState(StrEnum):
    """How far a model has come."""

    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(frozen=True)
class LoadedModel:
    """A model that can answer.

    Attributes:
        address: `name@number`.
        checkpoint: what was loaded.
    """

    address: str
    checkpoint: Checkpoint

    @property
    def model(self) -> LanguageModel[Any]:
        """The model."""
        return self.checkpoint.model

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.checkpoint.tokenizer

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.checkpoint.manifest.vocab_size

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """How each token is shown [V]."""
        return tuple(self.tokenizer.surface(i) for i in range(self.vocab_size))

    @property
    def reads_backward(self) -> bool:
        """Whether the model reads a text from its end to its start."""
        return self.checkpoint.manifest.direction == "backward"

    def check_ids(self, ids: Sequence[int], *, parameter: str) -> TokenIds:
        """The ids as an array [T].

        Raises:
            InvalidInputError: an id is outside [0, V).
        """
        return self.model.vocabulary.check_ids(ids, parameter=parameter)


@dataclass(slots=True)
class HostedModel:
    """A place in memory for one version.

    Attributes:
        address: `name@number`; the bare name if not even the number could be found out.
        version: where it lies; None if that could not be found out.
        aliases: names that pointed to it at start.
        loaded: set once it can answer.
        failure: set if it cannot, with the reason.
    """

    address: str
    version: Version | None
    aliases: tuple[str, ...] = ()
    loaded: LoadedModel | None = None
    failure: str | None = None

    @property
    def state(self) -> LoadState:
        """How far it has come."""
        if self.loaded is not None:
            return LoadState.LOADED
        return LoadState.LOADING if self.failure is None else LoadState.FAILED


class ModelHost:
    """Loads models once and hands them out.

    Args:
        registry: where they are published.
        addresses: which to load; none means every model of the registry.
        default: the address meant by a request that names none; None means the model
            `mixture` if there is one, else the first by name.
        device: `cpu`, `cuda` or `cuda:1`.
        precision: `auto`, `float32` or `int8`.
        load: reads a checkpoint.

    Raises:
        RegistryError: the registry holds no model.
        ModelNotFoundError: an address is not in the registry, or the default is not to be loaded.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        addresses: Sequence[str] = (),
        default: str | None = None,
        device: str = "cpu",
        precision: str = "auto",
        load: Callable[..., Checkpoint] = load_checkpoint,
    ) -> None:
        self._registry = registry
        self._device = device
        self._precision = precision
        self._load = load
        addresses = list(addresses) or registry.models()
        if not addresses:
            raise RegistryError(f"the registry {registry.root} holds no model: train or import one first")
        self.models: dict[str, HostedModel] = {}
        self._by_address: dict[str, HostedModel] = {}
        for address in addresses:
            self._plan(address)
        names = sorted(self._by_address)
        fallback = PREFERRED_DEFAULT if PREFERRED_DEFAULT in self._by_address else names[0]
        self._default = self._find(default or fallback)

    @property
    def default(self) -> HostedModel:
        """The one meant by a request that names none."""
        return self._default

    @property
    def num_loaded(self) -> int:
        """Models that can answer."""
        return sum(model.loaded is not None for model in self.models.values())

    def load_all(self, *, num_threads: int | None = None) -> None:
        """Load every model, the default first; what cannot be loaded is logged and kept as failed.

        Args:
            num_threads: of torch, if a model has brought it in; None leaves its choice.
        """
        for hosted in sorted(self.models.values(), key=lambda m: m is not self._default):
            if hosted.version is not None:
                self._load_one(hosted, hosted.version, num_threads)

    def resolve(self, address: str | None) -> LoadedModel:
        """The loaded model that an address means.

        Args:
            address: `name`, `name@7`, `name@champion`; None for the default.

        Raises:
            ModelNotFoundError: it is not loaded, and was not to be.
            NotReadyError: it is still being loaded, or could not be.
        """
        hosted = self._default if address is None else self._find(address)
        if hosted.loaded is not None:
            return hosted.loaded
        if hosted.failure is None:
            raise NotReadyError(f"model {hosted.address} is still being loaded")
        raise NotReadyError(f"model {hosted.address} could not be loaded: {hosted.failure}")

    def find(self, address: str) -> HostedModel:
        """The place of the model that an address means, loaded or not.

        Raises:
            ModelNotFoundError: there is none.
        """
        return self._find(address)

    def _plan(self, address: str) -> None:
        name = address.partition("@")[0]
        try:
            version = self._registry.resolve(address)
            aliases = self._registry.aliases(name)
            bare = self._registry.resolve(name)
        except (CheckpointError, ModelNotFoundError) as error:
            # one whose aliases are damaged, or point to nothing, must not stop the others
            if isinstance(error, ModelNotFoundError) and not self._listed(address):
                raise
            hosted = HostedModel(address, None, failure=self._without_root(error))
            self.models[address] = self._by_address[address] = hosted
            _log.error("model failed", model=address, reason=hosted.failure)
            return
        pointing = tuple(sorted(alias for alias, number in aliases.items() if number == version.number))
        hosted = self.models.setdefault(version.address, HostedModel(version.address, version, pointing))
        self._by_address[version.address] = hosted
        for alias in pointing:
            self._by_address[f"{name}@{alias}"] = hosted
        # a bare name means what the registry means by it, or else what of it is here
        if bare.number == version.number:
            self._by_address[name] = hosted
        else:
            self._by_address.setdefault(name, hosted)

    def _listed(self, address: str) -> bool:
        """Whether an address is the bare name of a model that the registry holds."""
        return address in self._registry.models()

    def _load_one(self, hosted: HostedModel, version: Version, num_threads: int | None) -> None:
        try:
            checkpoint = self._load(version.path, device=self._device, precision=self._precision)
        except (LanguageModelError, ImportError, OSError, MemoryError, RuntimeError) as error:
            hosted.failure = self._without_root(error)
            _log.error("model failed", model=hosted.address, reason=str(error))
        else:
            _limit_threads(num_threads)  # first: a thread that has computed before keeps its number
            hosted.loaded = LoadedModel(hosted.address, checkpoint)
            _log.info(
                "model loaded",
                model=hosted.address,
                family=checkpoint.manifest.family,
                precision=checkpoint.precision,
            )

    def _find(self, address: str) -> HostedModel:
        hosted = self._by_address.get(address)
        if hosted is not None:
            return hosted
        here = ", ".join(sorted(self.models))
        try:
            published = self._registry.resolve(address)
        except LanguageModelError:
            raise ModelNotFoundError(
                f"there is no model {address[:200]!r}; this service has: {here}"
            ) from None
        raise ModelNotFoundError(f"{published.address} is published but not loaded; this service has: {here}")

    def _without_root(self, error: Exception) -> str:
        """The reason as clients may see it: where the registry lies is no business of theirs."""
        return str(error).replace(f"{self._registry.root}/", "").replace(str(self._registry.root), "registry")


def _limit_threads(num_threads: int | None) -> None:
    """Tell torch; an n-gram server never imports it, and is not made to for the sake of a limit."""
    torch = sys.modules.get("torch")
    if torch is not None and num_threads is not None:
        torch.set_num_threads(num_threads)
