"""Registry watcher: new versions and moved aliases of served addresses, default model, retries.

Changed models are found by stamps. What the registry cannot answer is logged and stays as it was.
Loads that failed are retried after 10 s, then after twice the delay each time, up to 600 s. For one
thread at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from models.checkpoint.manifest import ChangeStamp, Version, choose_default
from models.checkpoint.registry_interface import Registry
from models.errors import CheckpointError, ModelNotFoundError, RegistryError
from service.engine.loaded_model import HostedModel

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WatchedAddress:
    """An address that the service was told to serve.

    Attributes:
        address: `name`, `name@7`, `name@champion`.
        version: what it means in the registry; None as long as that could never be found out.
        serving: the own address of the model that answers for it; None until one does.
        problem: why the registry cannot say what it means now.
        failed_target: the own address of what it meant when that was to be loaded by hand and could not be.
    """

    address: str
    version: Version | None = None
    serving: str | None = None
    problem: str | None = None
    failed_target: str | None = None

    @property
    def name(self) -> str:
        """The model's, without a version or an alias."""
        return self.address.partition("@")[0]

    @property
    def target(self) -> str:
        """The own address of what is to answer for it."""
        return self.address if self.version is None else self.version.address

    @property
    def serving_or_target(self) -> str:
        """The own address of what does, or else will."""
        return self.serving or self.target


class RegistryWatcher:
    """The followed addresses, the registry's aliases of their models and its default. For one thread at a time.

    Args:
        registry: where models are published.
        addresses: which to follow; none means every model of the registry, later ones too.

    Raises:
        RegistryError: the registry holds no model.
        ModelNotFoundError: an address is not in the registry.
    """

    def __init__(self, registry: Registry, addresses: Sequence[str]) -> None:
        self._registry = registry
        self._watches_all = not addresses
        self._names = registry.models()
        addresses = list(addresses) or self._names
        if not addresses:
            raise RegistryError(f"the registry {registry.location} holds no model: train or import one first")
        self.watched: dict[str, WatchedAddress] = {}
        self.aliases: dict[str, dict[str, int]] = {}
        self.default = registry.default()
        self._stamps: dict[str, ChangeStamp] = {}
        self._recheck: set[str] = set()
        for address in addresses:
            self._watch_at_start(address)

    def watch(self, address: str) -> WatchedAddress:
        """Follow an address from now on, if it is not followed yet.

        Raises:
            ModelNotFoundError, CheckpointError, RegistryError: the registry cannot say what it means.
        """
        followed = self.watched.get(address) or WatchedAddress(address)
        self._resolve(followed)
        self.watched[address] = followed
        return followed

    def resolved_address(self, address: str) -> str | None:
        """The own address of what an address means in the registry; None if that cannot be found out."""
        try:
            return self._registry.resolve(address).address
        except (CheckpointError, ModelNotFoundError, RegistryError):
            return None

    def poll(self) -> bool:
        """Find out what followed addresses mean by now, where anything has changed; with every model, also new ones.

        What the registry cannot say is told in the log, and stays as it was.

        Returns:
            Whether the registry could be read.
        """
        try:
            changed = self._changed()
            names = self._registry.models() if self._watches_all else []
            self.default = self._registry.default()
        except RegistryError as error:
            _log.warning("registry cannot be watched", reason=str(error))
            return False
        for followed in list(self.watched.values()):
            if followed.name in changed or followed.problem is not None:
                self._resolve_or_log(followed)
        for name in names:
            if name not in self._names:
                self._names.append(name)
                self._resolve_or_log(self.watched.setdefault(name, WatchedAddress(name)))
        if not self._registry.is_reachable:
            self._recheck |= changed  # what they mean was known from before: ask again at the next look
        return self._registry.is_reachable

    def addresses_of(self, own: str) -> list[str]:
        """The addresses that lead to a model."""
        return [
            address for address, followed in self.watched.copy().items() if followed.serving_or_target == own
        ]

    def targets(self) -> dict[str, str]:
        """The own address of the model that each address leads to."""
        return {address: followed.serving_or_target for address, followed in self.watched.items()}

    def redact_root(self, error: BaseException) -> str:
        """A reason as clients may see it: where the registry lies is no business of theirs."""
        return self._registry.redact_location(str(error))

    def _watch_at_start(self, address: str) -> None:
        try:
            self.watch(address)
        except (CheckpointError, ModelNotFoundError) as error:
            # one whose aliases are damaged, or point to nothing, must not stop the others
            if isinstance(error, ModelNotFoundError) and address not in self._names:
                raise
            self.watched[address] = WatchedAddress(address, problem=self.redact_root(error))
            _log.error("model failed", model=address, reason=self.watched[address].problem)

    def _resolve(self, followed: WatchedAddress) -> None:
        version = self._registry.resolve(followed.address)
        self.aliases[followed.name] = self._registry.aliases(followed.name)
        followed.version, followed.problem = version, None

    def _resolve_or_log(self, followed: WatchedAddress) -> None:
        try:
            self._resolve(followed)
        except (CheckpointError, ModelNotFoundError, RegistryError) as error:
            problem = self.redact_root(error)
            if problem != followed.problem:
                _log.warning("model cannot be followed", model=followed.address, reason=problem)
            followed.problem = problem

    def _changed(self) -> set[str]:
        """Names of models whose versions or aliases may have changed since the last look."""
        names = None if self._watches_all else {followed.name for followed in self.watched.values()}
        stamps = self._registry.change_stamps(names)
        changed = {name for name, stamp in stamps.items() if self._stamps.get(name) != stamp}
        looked_at = changed | self._recheck  # again: what came within the same tick has the same stamp
        self._stamps, self._recheck = stamps, changed
        return looked_at


FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 600.0


class _Failure(NamedTuple):
    attempts: int
    retry_at_s: float


class RetrySchedule:
    """Remembers what failed, and when it may be tried again.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[str, _Failure] = {}

    def record_failure(self, address: str) -> None:
        """It has failed once more; the wait is twice as long as the last."""
        times = self._failed[address].attempts + 1 if address in self._failed else 1
        wait_s = min(FIRST_RETRY_S * 2.0 ** min(times - 1, 30), LONGEST_RETRY_S)
        self._failed[address] = _Failure(times, self._clock() + wait_s)

    def make_all_due(self) -> None:
        """Whatever waits may be tried now: what it failed for may be over."""
        now_s = self._clock()
        for address, failed in self._failed.items():
            self._failed[address] = failed._replace(retry_at_s=now_s)

    def forget(self, address: str) -> None:
        """It is there, or nobody wants it."""
        self._failed.pop(address, None)

    def is_due(self, address: str) -> bool:
        """Whether it may be tried now."""
        failed = self._failed.get(address)
        return failed is None or self._clock() >= failed.retry_at_s


class DefaultModel:
    """The default of a service. For one thread at a time.

    Args:
        following: the followed addresses; not empty.
        said: the address that the settings say; None means what the registry remembers, if that is followed,
            else what is chosen among what is followed.

    Attributes:
        address: a followed one.
        reason: why it is that one.
        is_guess: whether nobody has said so, and others are followed.
    """

    def __init__(self, following: RegistryWatcher, said: str | None) -> None:
        self._watcher = following
        self._configured = said
        self._remembered = following.default
        self.address = next(iter(following.watched))  # until there is a table to choose from
        self.reason = ""
        self.is_guess = False

    def choose(self, find: Callable[[str], HostedModel]) -> None:
        """Choose.

        Args:
            find: the place of the model that an address means.

        Raises:
            ModelNotFoundError: what the settings say is not served.
        """
        if self._configured:
            address, self.reason = self._configured, f"GRAMOPHONE_DEFAULT_MODEL is {self._configured}"
        else:
            self._remembered = self._watcher.default
            names = sorted({one.name for one in self._watcher.watched.values()})
            address, self.reason, self.is_guess = choose_default(names, self._remembered)
        self.address = self._watched_address(address, find)

    def update(self, find: Callable[[str], HostedModel]) -> bool:
        """Choose again, if the registry remembers another by now and that can answer.

        Returns:
            Whether another was chosen.
        """
        remembered = self._watcher.default
        names = {one.name for one in self._watcher.watched.values()}
        if (
            self._configured
            or remembered == self._remembered
            or remembered is None
            or remembered not in names
        ):
            return False
        if find(remembered).loaded is None:
            return False
        before = self.address
        self.choose(find)
        return self.address != before

    def _watched_address(self, address: str, find: Callable[[str], HostedModel]) -> str:
        followed = self._watcher.watched
        if address in followed:
            return address
        means = find(address).address
        if self._configured and self._watcher.resolved_address(address) == means:
            return self._watcher.watch(address).address
        # a bare name that nobody asked to follow: what of it is here
        return next(one.address for one in followed.values() if one.target == means)
