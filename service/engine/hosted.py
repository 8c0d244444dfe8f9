"""What is hosted: a version, how far it has come, and the model once it can answer."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from models.arrays import TokenIds
from models.checkpoint.load import Checkpoint
from models.checkpoint.versions import Version
from models.completion.spelled import TokenTrie
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer
from service.engine.looks import NextTokenCache
from service.engine.memory import ModelBytes
from service.engine.prefixes import PrefixCache


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
