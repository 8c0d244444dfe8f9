"""Models in memory: loaded, hosted and unloading ones, and their addresses.

An `AddressTable` is immutable and replaced atomically: a request sees the old version or the new
one. An unloaded model's memory is freed with the last request that uses it.
"""

import itertools
import math
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple, Self

from models.arrays import ModelBytes
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import CHAMPION, Version
from models.text_model import TextModel

_MAX_TAGS = 1 << 24
_TAGS = itertools.count(secrets.randbelow(_MAX_TAGS))


class LoadState(StrEnum):
    """Loading state of a model."""

    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(slots=True)
class ModelUse:
    """Use of a model by requests; written on the event loop only.

    Attributes:
        in_flight: unfinished requests that use the model.
        last_s: start of the latest request, seconds since 1970; None before the first.
    """

    in_flight: int = 0
    last_s: float | None = None


@dataclass(frozen=True, eq=False)
class LoadedModel(TextModel):
    """Loaded version; a request uses one to its end, even if the address moves.

    Attributes:
        checkpoint: the loaded checkpoint.
        use: use of the model by requests.
        tag: id of this load, unlike those of earlier loads; the first is random.
    """

    checkpoint: Checkpoint = field(kw_only=True, repr=False)
    use: ModelUse = field(default_factory=ModelUse, kw_only=True, repr=False)
    tag: str = field(default_factory=lambda: f"{next(_TAGS) % _MAX_TAGS:06x}", kw_only=True, repr=False)

    @classmethod
    def of(cls, address: str, checkpoint: Checkpoint, **caches: Any) -> Self:
        """Return a checkpoint's model, with the caches given."""
        backward = checkpoint.manifest.direction == "backward"
        return cls(address, checkpoint.model, checkpoint.tokenizer, backward, checkpoint=checkpoint, **caches)


@dataclass(frozen=True, slots=True)
class HostedModel:
    """Hosted model version and its loading state (immutable).

    Attributes:
        address: `name@number`; the served address if the registry could not resolve it.
        version: the registry's version; None if it could not be resolved.
        aliases: aliases of the version.
        loaded: the model, once loaded.
        failure: error of a failed load; if `loaded` is set, of its successor's.
        failures: failed loads.
        retry_s: time of the next load after a failed one.
        size: memory of the loaded model.
        load_s: loading time in seconds, including warm-up.
        warm_up_s: warm-up time in seconds.
    """

    address: str
    version: Version | None
    aliases: tuple[str, ...] = ()
    loaded: LoadedModel | None = None
    failure: str | None = None
    failures: int = 0
    retry_s: float = -math.inf
    size: ModelBytes | None = None
    load_s: float | None = None
    warm_up_s: float | None = None

    @property
    def state(self) -> LoadState:
        """Loading state of the model."""
        if self.loaded is not None:
            return LoadState.LOADED
        return LoadState.LOADING if self.failure is None else LoadState.FAILED

    @property
    def name(self) -> str:
        """Model name without the version."""
        return self.address.partition("@")[0]


@dataclass(frozen=True, slots=True)
class AddressTable:
    """Hosted models by address at one moment (immutable).

    Attributes:
        models: models by `name@number`.
        by_address: models by each of their addresses: `name`, `name@7`, `name@champion`.
        default: model of requests that name no model.
    """

    models: Mapping[str, HostedModel]
    by_address: Mapping[str, HostedModel]
    default: HostedModel


def build_address_table(
    models: Mapping[str, HostedModel],
    *,
    served: Mapping[str, str],
    aliases: Mapping[str, Mapping[str, int]],
    default: str,
    before: AddressTable,
) -> AddressTable:
    """Build the address table, with the aliases of each hosted model filled in.

    Args:
        models: models by `name@number`.
        served: `name@number` of the serving model, by served address.
        aliases: version numbers by model name and alias; versions not hosted are ignored.
        default: address of the default model; a key of `served`.
        before: table to replace.
    """
    targets = {address: address for address in models}
    for name, numbers in aliases.items():
        for alias, number in numbers.items():
            address, target = f"{name}@{alias}", f"{name}@{number}"
            if target in models:
                old = before.by_address.get(address)
                if models[target].loaded is None and old and old.loaded and old.address in models:
                    target = old.address  # it serves until the new one is loaded
                targets[address] = target
    targets |= served
    for address in models:
        name = address.partition("@")[0]
        if name not in targets:
            of_name = [model for model in models.values() if model.name == name]
            newest = max(of_name, key=lambda m: (m.loaded is not None, m.version.number if m.version else 0))
            targets[name] = targets.get(f"{name}@{CHAMPION}", newest.address)
    selectors = [(address.partition("@")[2], target) for address, target in targets.items()]
    named = sorted((alias, target) for alias, target in selectors if alias and not alias.isdecimal())
    hosted = {
        target: replace(model, aliases=tuple(alias for alias, aliased in named if aliased == target))
        for target, model in models.items()
    }
    by_address = {address: hosted[target] for address, target in targets.items()}
    return AddressTable(hosted, by_address, by_address[default])


class UnloadingModel(NamedTuple):
    """Model without an address; its memory is freed with its last request.

    Attributes:
        address: `name@number`.
        model: weak reference, dead once the memory is free.
        use: use of the model by requests.
        size: memory of the model until then.
    """

    address: str
    model: "weakref.ref[Any]"
    use: ModelUse
    size: ModelBytes
