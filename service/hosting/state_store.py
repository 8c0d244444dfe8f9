"""Store of model states by handle, which outlive requests.

States are immutable, so forks need no copy. A handle is `process.version.secret`: the process that
stores the state, the version that read the text, and 96 random bits. States expire after a time
without use, or if another owner needs its share of the store.
"""

import asyncio
import re
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from models.arrays import TokenIds
from models.errors import ModelNotFoundError, StateElsewhereError, StatesFullError, UnknownStateError
from models.phrases import NO_TOKEN_PHRASES, PhraseAutomaton
from models.prefix_cache import state_bytes
from service.engine.job import Shares
from service.hosting.loaded_model import LoadedModel

OVERHEAD_BYTES = 1000
"""Estimated bytes of a state besides its arrays: handle, objects, table entries."""

_SECRET_BYTES = 12
_HANDLE = re.compile(r"(?P<process>[\w-]{1,63})\.(?P<tag>[0-9a-f]{6})\.[\w-]{16}", re.ASCII)
_MAX_UNLOADED_TAGS = 1000
"""Maximum unloaded versions recorded for error messages."""

_SWEEP_S = 5.0


@dataclass(frozen=True, eq=False)
class StoredState:
    """State of a model after one text (immutable).

    Attributes:
        loaded: version that read the text, in memory as long as the state.
        state: model state, one row.
        num_tokens: tokens read, not counting `<s>`.
        last_token: id of the last token; None if none was read.
        phrases: spellings of the phrases whose value is reported; shared by continuing states.
        node: node of the phrases after the text.
    """

    loaded: LoadedModel
    state: Any
    num_tokens: int = 0
    last_token: int | None = None
    phrases: PhraseAutomaton[int] = NO_TOKEN_PHRASES
    node: int = PhraseAutomaton.START

    @cached_property
    def num_bytes(self) -> int:
        """Memory of the state without the loaded version and the phrases."""
        return state_bytes(self.state) + OVERHEAD_BYTES

    def read_phrases(self, ids: TokenIds) -> tuple[int, float]:
        """Return the phrases' node after further tokens [T], and the value that they add, with credit."""
        phrases = self.phrases
        if not phrases.num_bytes:
            return self.node, 0.0
        node, found = phrases.read(self.node, ids.tolist())
        credit, before = (phrases.worth(*phrases.credit(end)) for end in (node, self.node))
        return node, phrases.worth(found) + credit - before


@dataclass(kw_only=True, eq=False)
class StateStore:
    """Store of states by handle and owner until freed, expired or evicted; thread-safe.

    An owner may fill the store. If another needs its share, the least recently used states of the largest are evicted.

    Attributes:
        process: name of this process in handles.
        max_states: maximum states.
        max_bytes: maximum bytes of all states together.
        ttl_s: time without use after which a state expires.
        clock: monotonic clock in seconds.
    """

    process: str
    max_states: int
    max_bytes: int
    ttl_s: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        # by owner and handle, with the last use, oldest first
        self._owned: dict[str, OrderedDict[str, tuple[StoredState, float]]] = {}
        self._counts, self._sizes = Shares[str](self.max_states), Shares[str](self.max_bytes)
        # addresses by tag; None for versions without states
        self._unloaded: dict[str, str | None] = {}
        self._num_sharing: Counter[tuple[str, PhraseAutomaton[int]]] = Counter()

    def __len__(self) -> int:
        """Return the number of stored states."""
        return self._counts.used

    @property
    def num_bytes(self) -> int:
        """Bytes of all stored states and their phrases."""
        return self._sizes.used

    def find(self, owner: str, handles: Sequence[str], *, param: str) -> list[StoredState]:
        """Return handles' states, and renew their expiry.

        Args:
            owner: client of the request; others' states count as unknown.
            handles: handles; duplicates are allowed.
            param: parameter for error messages; `states[]` becomes `states[3]`.

        Raises:
            UnknownStateError: a handle has no state of this owner.
            StateElsewhereError: a handle belongs to another process.
        """
        with self._lock:
            self.expire()
            entries = self._owned.get(owner, OrderedDict())
            for index, handle in enumerate(handles):
                if handle not in entries:
                    raise self._unknown_state(handle, _indexed_name(param, index))
            now_s = self.clock()
            states = [entries[handle][0] for handle in handles]
            for handle, stored in zip(handles, states, strict=True):
                entries[handle] = stored, now_s
                entries.move_to_end(handle)
            return states

    def check_capacity(self, owner: str, count: int, size: int = 0) -> None:
        """Reject `count` new states of `size` bytes together if `keep` would.

        Raises:
            StatesFullError: a limit on states or bytes, and the owner's share of it, would be exceeded.
        """
        with self._lock:
            self.expire()
            stored = f"{len(self)} states are stored and {count} are to be added"
            taken = f"the stored states take {self.num_bytes} bytes and the {count} to be added take {size}"
            for shares, amount, message in ((self._counts, count, stored), (self._sizes, size, taken)):
                if refusal := shares.refusal(owner, amount):
                    raise StatesFullError(f"{message}; {refusal}: free unused states")

    def keep(self, owner: str, states: Sequence[StoredState]) -> list[str]:
        """Store all states or none; they must not share memory with other rows (see `materialize`).

        States of other owners beyond their shares are evicted if necessary.

        Returns:
            A handle for each state.

        Raises:
            StatesFullError: a limit on states or bytes, and the owner's share of it, would be exceeded.
            ModelNotFoundError: a version was unloaded while it read the text.
        """
        with self._lock:
            for stored in states:
                if stored.loaded.tag in self._unloaded:
                    raise ModelNotFoundError(f"{stored.loaded.address} was unloaded while the text was read")
            phrases = {new.phrases for new in states if (owner, new.phrases) not in self._num_sharing}
            size = sum(stored.num_bytes for stored in states) + sum(new.num_bytes for new in phrases)
            self.check_capacity(owner, len(states), size)
            for shares, amount in ((self._counts, len(states)), (self._sizes, size)):
                while shares.used + amount > shares.total:
                    largest = shares.largest(owner)
                    self._remove(largest, next(iter(self._owned[largest])))
            return [self._insert(owner, stored) for stored in states]

    def free(self, owner: str, handles: Sequence[str]) -> int:
        """Delete states of an owner, ignoring handles without one.

        Returns:
            The number of deleted states.
        """
        with self._lock:
            self.expire()
            owned = self._owned.get(owner, {}).keys() & handles
            for handle in owned:
                self._remove(owner, handle)
            return len(owned)

    def check_process(self, handles: Sequence[str], *, param: str) -> None:
        """Reject handles of other processes; see `find` for the arguments.

        Raises:
            StateElsewhereError: a handle belongs to another process.
        """
        for index, handle in enumerate(handles):
            form = _HANDLE.fullmatch(handle)
            if form is not None and form["process"] != self.process:
                name = _indexed_name(param, index)
                raise StateElsewhereError.of(
                    name,
                    f"is stored by the process {form['process']}, and this is {self.process}: send "
                    "requests with this state to the process that its handle names",
                )

    def free_version(self, loaded: LoadedModel) -> None:
        """Delete an unloaded version's states and accept no more; errors for its handles name it."""
        with self._lock:
            unloaded = [
                (owner, handle)
                for owner, entries in self._owned.items()
                for handle, (stored, _) in entries.items()
                if stored.loaded is loaded
            ]
            self._unloaded[loaded.tag] = loaded.address if unloaded else None
            if len(self._unloaded) > _MAX_UNLOADED_TAGS:
                del self._unloaded[next(iter(self._unloaded))]
            for owner, handle in unloaded:
                self._remove(owner, handle)

    def expire(self) -> None:
        """Delete expired states."""
        oldest_s = self.clock() - self.ttl_s
        with self._lock:
            for owner, entries in list(self._owned.items()):
                while entries and next(iter(entries.values()))[1] < oldest_s:
                    self._remove(owner, next(iter(entries)))

    async def sweep(self) -> None:
        """Delete expired states regularly, even without requests, until cancelled."""
        while True:
            await asyncio.sleep(min(self.ttl_s / 4, _SWEEP_S))
            self.expire()

    def _insert(self, owner: str, stored: StoredState) -> str:
        handle = f"{self.process}.{stored.loaded.tag}.{secrets.token_urlsafe(_SECRET_BYTES)}"
        self._owned.setdefault(owner, OrderedDict())[handle] = (stored, self.clock())
        self._count(owner, stored, 1)
        return handle

    def _remove(self, owner: str, handle: str) -> None:
        self._count(owner, self._owned[owner].pop(handle)[0], -1)
        if not self._owned[owner]:
            del self._owned[owner]

    def _count(self, owner: str, stored: StoredState, sign: int) -> None:
        """Count a stored state, or the end of one with the sign −1.

        Phrases count once for the states of an owner.
        """
        shared = owner, stored.phrases
        before, after = self._num_sharing[shared], self._num_sharing[shared] + sign
        is_only = not (before and after)
        self._num_sharing[shared] = after
        if not after:
            del self._num_sharing[shared]
        self._counts.add(owner, sign)
        self._sizes.add(owner, sign * (stored.num_bytes + is_only * stored.phrases.num_bytes))

    def _unknown_state(self, handle: str, param: str) -> UnknownStateError:
        self.check_process([handle], param=param)
        form = _HANDLE.fullmatch(handle)
        address = self._unloaded.get(form["tag"]) if form is not None else None
        gave_way = " gave way to another key's," if len(self._counts.held) > 1 else ""
        what = (
            f"is no stored state: it was freed, was not used for {self.ttl_s:g} s,{gave_way} or never existed"
        )
        if address is not None:
            what = f"was a state of {address}, which has been unloaded"
        return UnknownStateError.of(param, what)


def _indexed_name(param: str, index: int) -> str:
    return param.replace("[]", f"[{index}]", 1)


class OwnedStateStore(NamedTuple):
    """State store of a request.

    Attributes:
        store: the service's store.
        owner: owner of the states.
    """

    store: StateStore
    owner: str
