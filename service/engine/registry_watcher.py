"""Registry watcher: new versions and moved aliases of served addresses, default model, retries.

A model has changed if its stamp in the registry's listing differs from the stamp of its last
snapshot. If the registry cannot be read, the error is logged and nothing changes. Failed loads are
retried after 10 s; the delay doubles with each failure, up to 600 s. The classes are for one thread
at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import structlog

from models.checkpoint.manifest import Version, choose_default
from models.checkpoint.registry_interface import ModelSnapshot, Registry
from models.checkpoint.stores import ModelStamp
from models.errors import CheckpointError, ModelNotFoundError, RegistryError
from service.engine.loaded_model import HostedModel

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WatchedAddress:
    """Served address and its version.

    Attributes:
        address: `name`, `name@7`, `name@champion`.
        version: version of the address in the registry; None if the registry has never resolved it.
        serving: `name@number` of the model that serves the address; None until one is loaded.
        problem: error of the last resolution by the registry; None if it succeeded.
        failed_target: `name@number` of a version that `ModelHost.load` failed to load.
    """

    address: str
    version: Version | None = None
    serving: str | None = None
    problem: str | None = None
    failed_target: str | None = None

    @property
    def name(self) -> str:
        """Model name without version or alias."""
        return self.address.partition("@")[0]

    @property
    def target(self) -> str:
        """`name@number` of the version to serve; the address itself if it was never resolved."""
        return self.address if self.version is None else self.version.address

    @property
    def serving_or_target(self) -> str:
        """`name@number` of the serving model, else of the version to serve."""
        return self.serving or self.target


class RegistryWatcher:
    """Watcher of served addresses, their models' aliases and the default model; for one thread at a time.

    Args:
        registry: source of the models.
        addresses: addresses to serve; empty for every model of the registry, including models added later.

    Raises:
        RegistryError: the registry contains no model.
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
        self._stamps: dict[str, ModelStamp] = {}
        for address in addresses:
            self._watch_at_start(address)

    def watch(self, address: str) -> WatchedAddress:
        """Resolve an address and start watching it.

        Raises:
            ModelNotFoundError, CheckpointError, RegistryError: the registry cannot resolve it.
        """
        watched = self.watched.get(address) or WatchedAddress(address)
        seen = self._registry.snapshot(watched.name)
        watched.version, watched.problem = self._registry.resolve(address, seen), None
        self.aliases[watched.name] = seen.aliases
        self._stamps.pop(watched.name, None)  # other addresses of the model were not resolved with it
        self.watched[address] = watched
        return watched

    def resolved_address(self, address: str) -> str | None:
        """Return `name@number` of an address in the registry, or None if the registry cannot resolve it."""
        try:
            return self._registry.resolve(address).address
        except (CheckpointError, ModelNotFoundError, RegistryError):
            return None

    def poll(self) -> bool:
        """Resolve addresses of changed models again, and watch new models if every model is served.

        Addresses that the registry cannot resolve are logged and stay unchanged.

        Returns:
            True if the registry could be read.
        """
        names = None if self._watches_all else {watched.name for watched in self.watched.values()}
        try:
            stamps = self._registry.change_stamps(names)
            self.default = self._registry.default()
        except RegistryError as error:
            _log.warning("registry poll failed", reason=str(error))
            return False
        if self._watches_all:
            for name, stamp in sorted(stamps.items()):
                if stamp.versions and name not in self._names:
                    self._names.append(name)
                    self.watched.setdefault(name, WatchedAddress(name))
        changed = {name for name, stamp in stamps.items() if self._stamps.get(name) != stamp}
        changed |= {watched.name for watched in self.watched.values() if watched.problem is not None}
        for name in sorted(changed):
            self._resolve_all(name)
        return self._registry.is_reachable

    def _watch_at_start(self, address: str) -> None:
        try:
            self.watch(address)
        except (CheckpointError, ModelNotFoundError) as error:
            # damaged or dangling aliases of one model must not block the other models
            if isinstance(error, ModelNotFoundError) and address not in self._names:
                raise
            self.watched[address] = WatchedAddress(
                address, problem=self._registry.redact_location(str(error))
            )
            _log.error("model failed", model=address, reason=self.watched[address].problem)

    def _resolve_all(self, name: str) -> None:
        """Resolve all addresses of a model from one snapshot, and store its stamp."""
        seen: ModelSnapshot | CheckpointError | RegistryError
        try:
            seen = self._registry.snapshot(name)
        except (CheckpointError, RegistryError) as error:
            seen = error
        for watched in [watched for watched in self.watched.values() if watched.name == name]:
            try:
                if isinstance(seen, Exception):
                    raise seen
                watched.version, watched.problem = self._registry.resolve(watched.address, seen), None
            except (CheckpointError, ModelNotFoundError, RegistryError) as error:
                problem = self._registry.redact_location(str(error))
                if problem != watched.problem:
                    _log.warning("address cannot be resolved", model=watched.address, reason=problem)
                watched.problem = problem
        if not isinstance(seen, Exception):
            self.aliases[name], self._stamps[name] = seen.aliases, seen.stamp


FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 600.0


class RetrySchedule:
    """Schedule of retries of failed loads, with exponential backoff.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed: dict[str, tuple[int, float]] = {}  # number of failures, and time of the next attempt

    def record_failure(self, address: str) -> None:
        """Record a failed load; each failure doubles the delay, up to `LONGEST_RETRY_S`."""
        failures, _ = self._failed.get(address, (0, 0.0))
        wait_s = min(FIRST_RETRY_S * 2.0 ** min(failures, 30), LONGEST_RETRY_S)
        self._failed[address] = failures + 1, self._clock() + wait_s

    def make_all_due(self) -> None:
        """Make all retries due now, because the cause of the failures may be gone."""
        self._failed = {address: (failures, -inf) for address, (failures, _) in self._failed.items()}

    def forget(self, address: str) -> None:
        """Drop an address that is loaded or no longer served."""
        self._failed.pop(address, None)

    def is_due(self, address: str) -> bool:
        """Return whether a load of the address may be attempted now."""
        _, due_s = self._failed.get(address, (0, -inf))
        return self._clock() >= due_s


class DefaultModel:
    """Default model of the service; for one thread at a time.

    Args:
        watcher: watcher of at least one address.
        configured: default from the settings; None for the registry's default if it is served, else the choice of
            `choose_default` among the served models.

    Attributes:
        address: the served address of the default.
        reason: reason for the choice.
        is_guess: True if several models are served, and neither the settings nor the registry chooses one.
    """

    def __init__(self, watcher: RegistryWatcher, configured: str | None) -> None:
        self._watcher = watcher
        self._configured = configured
        self._remembered = watcher.default
        self.address = next(iter(watcher.watched))  # until `choose` is called
        self.reason = ""
        self.is_guess = False

    def choose(self, find: Callable[[str], HostedModel]) -> None:
        """Choose the default.

        Args:
            find: function that returns the hosted model of an address.

        Raises:
            ModelNotFoundError: the default of the settings is not served.
        """
        if self._configured:
            address, self.reason = self._configured, f"GRAMOPHONE_DEFAULT_MODEL is {self._configured}"
        else:
            self._remembered = self._watcher.default
            names = sorted({watched.name for watched in self._watcher.watched.values()})
            address, self.reason, self.is_guess = choose_default(names, self._remembered)
        self.address = self._watched_address(address, find)

    def update(self, find: Callable[[str], HostedModel]) -> bool:
        """Choose again if the registry's default has changed to a served, loaded model.

        Returns:
            True if the default address changed.
        """
        remembered = self._watcher.default
        names = {watched.name for watched in self._watcher.watched.values()}
        if (
            self._configured
            or remembered == self._remembered
            or remembered is None
            or remembered not in names
            or find(remembered).loaded is None
        ):
            return False
        before = self.address
        self.choose(find)
        return self.address != before

    def _watched_address(self, address: str, find: Callable[[str], HostedModel]) -> str:
        watched_addresses = self._watcher.watched
        if address in watched_addresses:
            return address
        target = find(address).address
        if self._configured and self._watcher.resolved_address(address) == target:
            return self._watcher.watch(address).address
        # a model name that is not served itself: the served address of its hosted version
        return next(watched.address for watched in watched_addresses.values() if watched.target == target)
