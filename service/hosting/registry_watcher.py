"""Registry watcher: new versions and moved aliases of served addresses.

A model has changed if its stamp in the registry's listing differs from its last snapshot's. If the
registry cannot be read, the error is logged and nothing changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from models.checkpoint.manifest import Version
from models.checkpoint.registry_interface import ModelSnapshot, Registry
from models.checkpoint.stores import ModelStamp
from models.errors import CheckpointError, ModelNotFoundError, RegistryError

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class WatchedAddress:
    """Served address and its version.

    Attributes:
        address: `name`, `name@7`, `name@champion`.
        version: its version in the registry; None if it was never resolved.
        serving: `name@number` of the model that serves it; None until one is loaded.
        problem: error of the last resolution; None if it succeeded.
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
        """`name@number` to serve; the address itself if never resolved."""
        return self.address if self.version is None else self.version.address

    @property
    def serving_or_target(self) -> str:
        """`name@number` of the serving model, else of the version to serve."""
        return self.serving or self.target


class RegistryWatcher:
    """Watcher of served addresses, their aliases and the default; for a thread at a time.

    Args:
        registry: source of the models.
        addresses: addresses to serve; empty for every model of the registry, later ones too.

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
            try:
                self.watch(address)
            except (CheckpointError, ModelNotFoundError) as error:
                # damaged or dangling aliases of one model must not block others
                if isinstance(error, ModelNotFoundError) and address not in self._names:
                    raise
                problem = registry.redact_location(str(error))
                self.watched[address] = WatchedAddress(address, problem=problem)
                _log.error("model failed", model=address, reason=problem)

    def watch(self, address: str) -> WatchedAddress:
        """Resolve an address and start watching it.

        Raises:
            ModelNotFoundError, CheckpointError, RegistryError: the registry cannot resolve it.
        """
        watched = self.watched.get(address) or WatchedAddress(address)
        seen = self._registry.snapshot(watched.name)
        watched.version, watched.problem = self._registry.resolve(address, seen), None
        self.aliases[watched.name] = seen.aliases
        self._stamps.pop(watched.name, None)  # its other addresses were not resolved
        self.watched[address] = watched
        return watched

    def resolved_address(self, address: str) -> str | None:
        """Return `name@number` of an address; None if it cannot be resolved."""
        try:
            return self._registry.resolve(address).address
        except (CheckpointError, ModelNotFoundError, RegistryError):
            return None

    def poll(self) -> bool:
        """Resolve addresses of changed models again; watch new models if all are served.

        Addresses that cannot be resolved are logged and stay.

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

    def _resolve_all(self, name: str) -> None:
        """Resolve all addresses of a model from a snapshot, whose stamp is stored."""
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
