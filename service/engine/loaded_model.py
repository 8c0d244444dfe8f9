"""Models in memory: loaded and hosted models, their addresses, and models being unloaded.

An `AddressTable` is immutable and replaced as a whole: a request sees either the old version or the
new one. An unloaded model is freed by the last request that uses it.
"""

import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Self

from models.arrays import TokenIds
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import CHAMPION, Version
from models.completion.token_trie import TokenTrie
from models.language_model import LanguageModel
from models.tokenizers import Tokenizer
from service.engine.memory import ModelBytes
from service.engine.prefix_cache import NextTokenCache, PrefixCache


class LoadState(StrEnum):
    """How far a model has come."""

    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(slots=True)
class ModelUse:
    """Who uses a model; written by the event loop alone.

    Attributes:
        in_flight: requests that have it and are not done.
        last_s: when the last of them began, in seconds since 1970; None before the first.
    """

    in_flight: int = 0
    last_s: float | None = None

    def begin(self) -> None:
        """A request takes the model."""
        self.in_flight += 1
        self.last_s = time.time()

    def end(self) -> None:
        """A request that took it is done."""
        self.in_flight -= 1


@dataclass(frozen=True)
class LoadedModel:
    """A model that can answer. Requests that have it keep it, whatever its address means by then.

    Attributes:
        address: `name@number`.
        checkpoint: what was loaded.
        prefix_cache: states after texts that were read lately; None where none are kept.
        next_token_cache: what it said after texts that people are typing after; None where nothing is kept.
        use: by whom it is used.
    """

    address: str
    checkpoint: Checkpoint
    prefix_cache: PrefixCache | None = None
    next_token_cache: NextTokenCache | None = field(default=None, compare=False, repr=False)
    use: ModelUse = field(default_factory=ModelUse, compare=False, repr=False)

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

    @cached_property
    def token_trie(self) -> TokenTrie:
        """Its tokens by what they spell; slow to make, so that it is done when the model is warmed up."""
        return TokenTrie(self.tokenizer)

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


@dataclass(frozen=True, slots=True)
class HostedModel:
    """A version's place among the models of the service. A value: a change makes another.

    Attributes:
        address: `name@number`; what was asked for if not even the number could be found out.
        version: where it lies; None if that could not be found out.
        aliases: names that lead to it.
        loaded: the model, once it can answer.
        failure: why it cannot; beside a loaded model, why its successor cannot.
        size: what it takes.
        load_s: how long loading took, warm-up included.
        warm_up_s: how long the warm-up took.
    """

    address: str
    version: Version | None
    aliases: tuple[str, ...] = ()
    loaded: LoadedModel | None = None
    failure: str | None = None
    size: ModelBytes | None = None
    load_s: float | None = None
    warm_up_s: float | None = None

    @property
    def state(self) -> LoadState:
        """How far it has come."""
        if self.loaded is not None:
            return LoadState.LOADED
        return LoadState.LOADING if self.failure is None else LoadState.FAILED

    @property
    def name(self) -> str:
        """The model's, without its version."""
        return self.address.partition("@")[0]


@dataclass(frozen=True, slots=True)
class AddressTable:
    """What every address means at one moment.

    Attributes:
        models: by their own addresses.
        by_address: by every address that leads to them: `name`, `name@7`, `name@champion`.
        default: meant by requests that name none.
    """

    models: Mapping[str, HostedModel]
    by_address: Mapping[str, HostedModel]
    default: HostedModel


def build_address_table(
    models: Mapping[str, HostedModel],
    *,
    followed: Mapping[str, str],
    aliases: Mapping[str, Mapping[str, int]],
    default: str,
    before: AddressTable | None,
) -> AddressTable:
    """The table in which every model's aliases are those that lead to it.

    Args:
        models: by their own addresses.
        followed: the model's own address for each address that the service was told to serve.
        aliases: of the registry, by model name; those of other versions than these lead nowhere.
        default: a followed address.
        before: the table that this one replaces.
    """
    leads = {address: address for address in models}
    leads |= _alias_targets(models, aliases, before)
    leads |= followed
    for address in models:
        name = address.partition("@")[0]
        if name not in leads:
            leads[name] = leads.get(f"{name}@{CHAMPION}") or _newest_address(name, models)
    shown = {
        own: replace(
            model, aliases=tuple(sorted(_alias(at) for at, to in leads.items() if to == own and _alias(at)))
        )
        for own, model in models.items()
    }
    by_address = {address: shown[own] for address, own in leads.items()}
    return AddressTable(shown, by_address, by_address[default])


def _alias_targets(
    models: Mapping[str, HostedModel], aliases: Mapping[str, Mapping[str, int]], before: AddressTable | None
) -> dict[str, str]:
    """Where aliases that nobody asked to follow lead: to what is here anyway."""
    leads = {}
    for name, pointing in aliases.items():
        for alias, number in pointing.items():
            address, own = f"{name}@{alias}", f"{name}@{number}"
            if own not in models:
                continue
            old = before.by_address.get(address) if before is not None else None
            if (
                models[own].loaded is None
                and old is not None
                and old.loaded is not None
                and old.address in models
            ):
                own = old.address  # until the new one can answer
            leads[address] = own
    return leads


def _newest_address(name: str, models: Mapping[str, HostedModel]) -> str:
    """The version with the highest number of those that are here, those that can answer first."""
    of_name = [model for model in models.values() if model.name == name]
    best = max(of_name, key=lambda m: (m.loaded is not None, m.version.number if m.version else 0))
    return best.address


def _alias(address: str) -> str:
    """The alias in an address, or nothing."""
    which = address.partition("@")[2]
    return "" if which.isdecimal() else which


class UnloadingModel(NamedTuple):
    """What is left of a model that nothing leads to; the last request that has it frees it.

    Attributes:
        address: `name@number`.
        model: gone once its memory is free.
        use: by whom it is used.
        size: what it takes until then.
    """

    address: str
    model: "weakref.ref[Any]"
    use: ModelUse
    size: ModelBytes

    @classmethod
    def of(cls, loaded: LoadedModel, size: ModelBytes) -> Self:
        """What is left of a model from now on."""
        return cls(loaded.address, weakref.ref(loaded.model), loaded.use, size)

    @property
    def in_memory(self) -> bool:
        """Whether it is still in memory."""
        return self.model() is not None
