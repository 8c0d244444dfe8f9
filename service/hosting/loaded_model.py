"""Models in memory: loaded and hosted models, their addresses, and models being unloaded.

An `AddressTable` is immutable and replaced atomically: a request sees the old version or the new
one. An unloaded model's memory is freed when the last request that uses it ends.
"""

import itertools
import json
import math
import secrets
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from models.arrays import ModelBytes
from models.checking.checker import Checker
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import CHAMPION, Version
from models.completion.token_trie import TokenTrie
from models.language_model import LanguageModel
from models.ngram.lines import LineScorer
from models.slot_model import with_slots
from models.tokenizers import Tokenizer
from models.vocabulary import CONTROL_TOKENS
from service.engine.prefix_cache import LimitedCache, NextTokenCache, PrefixCache


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
        last_s: start of the latest request, in seconds since 1970; None before the first.
    """

    in_flight: int = 0
    last_s: float | None = None


_MAX_SLOTTED = 16
"""Maximum models with members from requests that are kept for each loaded model."""

_MAX_SLOTTED_BYTES = 1 << 30
"""Maximum memory of these models together."""

_TOKEN_BYTES = 1 << 10
"""Maximum memory of a token of these models."""

_SLOTTED_CACHE_BYTES = 1 << 22
_MAX_TAGS = 1 << 24
_TAGS = itertools.count(secrets.randbelow(_MAX_TAGS))


@dataclass(frozen=True)
class LoadedModel:
    """Loaded model; a request uses one version to its end, even if the address moves.

    Attributes:
        address: `name@number`.
        checkpoint: the loaded checkpoint.
        prefix_cache: states after recently read texts; None if the cache is disabled.
        next_token_cache: next-token distributions after recently typed texts.
        use: use of the model by requests.
        tag: id of this load, unlike those of earlier loads; the first is random.
    """

    address: str
    checkpoint: Checkpoint
    prefix_cache: PrefixCache | None = None
    next_token_cache: NextTokenCache = field(
        default_factory=lambda: NextTokenCache(0), compare=False, repr=False
    )
    use: ModelUse = field(default_factory=ModelUse, compare=False, repr=False)
    tag: str = field(default_factory=lambda: f"{next(_TAGS) % _MAX_TAGS:06x}", compare=False, repr=False)
    _slotted: "LimitedCache[str, LoadedModel]" = field(
        default_factory=lambda: LimitedCache(_MAX_SLOTTED_BYTES), init=False, compare=False, repr=False
    )

    @property
    def model(self) -> LanguageModel[Any]:
        """The checkpoint's model."""
        return self.checkpoint.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer."""
        return self.checkpoint.tokenizer

    @property
    def vocab_size(self) -> int:
        """Vocabulary size V, with the members of classes."""
        return len(self.model.vocabulary)

    @cached_property
    def token_texts(self) -> tuple[str, ...]:
        """Display text of each token [V]."""
        return tuple(self.tokenizer.surface(i) for i in range(self.vocab_size))

    @cached_property
    def token_names(self) -> tuple[str, ...]:
        """Distinct name of each token [V]: the text it adds, else its bytes as in OpenAI's API."""
        added, controls = self.tokenizer.token_bytes, self.token_texts[: len(CONTROL_TOKENS)]
        spaced = (b" " + text.encode() == own for text, own in zip(self.token_texts, added, strict=True))
        texts = [" " * space + text for text, space in zip(self.token_texts, spaced, strict=True)]
        texts[: len(controls)] = controls
        owners = {text: i for i, text in enumerate(texts)} | {text: i for i, text in enumerate(controls)}
        names: dict[str, int] = {}
        for i, text in enumerate(texts):
            is_named = owners[text] == i and ("\ufffd" not in text or added[i] == text.encode())
            spelled = text if is_named else "bytes:" + "".join(f"\\x{byte:02x}" for byte in added[i])
            names[f"token_id:{i}" if spelled in names else spelled] = i
        return tuple(names)

    @cached_property
    def token_trie(self) -> TokenTrie:
        """Trie of the tokens by spelling; built during loading because it is slow."""
        return TokenTrie(self.tokenizer)

    @cached_property
    def line_scorer(self) -> LineScorer | None:
        """Scorer of texts in one kernel call; None unless an n-gram model reads words forward."""
        return None if self.reads_backward else LineScorer.of(self.model, self.tokenizer)

    @cached_property
    def checker(self) -> Checker:
        """Checker of texts; building it takes up to a few tenths of a second."""
        return Checker(self.tokenizer)

    def with_slots(self, slots: Mapping[str, Any] | None) -> "LoadedModel":
        """Return this model with other members of its classes; those of recent requests are kept.

        Raises:
            InvalidInputError: a class is unknown, or a member is invalid.
        """
        if not slots:
            return self
        key = json.dumps(slots)
        slotted = self._slotted.find(key)
        if slotted is None:
            model, tokenizer = with_slots(self.model, self.tokenizer, slots)
            checkpoint = self.checkpoint._replace(model=model, tokenizer=tokenizer)
            cache = NextTokenCache(_SLOTTED_CACHE_BYTES)
            slotted = replace(self, checkpoint=checkpoint, prefix_cache=None, next_token_cache=cache)
            size = max(_TOKEN_BYTES * slotted.vocab_size, _MAX_SLOTTED_BYTES // _MAX_SLOTTED)
            self._slotted.insert(key, slotted, min(size, _MAX_SLOTTED_BYTES))  # the latest is always kept
        return slotted

    @property
    def reads_backward(self) -> bool:
        """True if the model reads texts from end to start."""
        return self.checkpoint.manifest.direction == "backward"


@dataclass(frozen=True, slots=True)
class HostedModel:
    """Hosted model version and its loading state (immutable).

    Attributes:
        address: `name@number`; the served address if the registry could not resolve it.
        version: the registry's version; None if the registry could not resolve it.
        aliases: aliases of the version.
        loaded: the model, once loaded.
        failure: error of a failed load; if `loaded` is set, the error of its successor.
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
        aliases: version numbers by model name and alias in the registry; versions not hosted are ignored.
        default: address of the default model; a key of `served`.
        before: table to replace.
    """
    targets = {address: address for address in models}
    targets |= _alias_targets(models, aliases, before)
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


def _alias_targets(
    models: Mapping[str, HostedModel], aliases: Mapping[str, Mapping[str, int]], before: AddressTable
) -> dict[str, str]:
    """Return `name@number` by `name@alias` for the registry's aliases of hosted versions."""
    targets = {}
    for name, numbers in aliases.items():
        for alias, number in numbers.items():
            address, target = f"{name}@{alias}", f"{name}@{number}"
            if target not in models:
                continue
            old = before.by_address.get(address)
            if models[target].loaded is None and old and old.loaded and old.address in models:
                target = old.address  # the old version serves until the new one is loaded
            targets[address] = target
    return targets


class UnloadingModel(NamedTuple):
    """Model without an address, whose memory is freed with the last request that uses it.

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
