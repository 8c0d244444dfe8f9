"""Model host: loads models, resolves addresses, replaces versions at run time.

Only the loader thread changes the hosted models (`ModelReloader`). All other threads read an
immutable address table, which is replaced atomically. Failed loads are retried after 10 s; the
delay doubles with each failure, up to 600 s. The readiness probe and the metrics share
`readiness`.
"""

import asyncio
import math
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from models.checkpoint.manifest import DefaultChoice, choose_default
from models.errors import (
    DomainError,
    InputError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    RegistryError,
)
from models.slot_model import without_members
from models.training_status import TrainingStatus, read_statuses
from service.engine.scheduler import Scheduler
from service.hosting.loaded_model import (
    AddressTable,
    HostedModel,
    LoadedModel,
    LoadState,
    UnloadingModel,
    build_address_table,
)
from service.hosting.loading import LOAD_ERRORS, Loader, freeze_garbage_collector, trim_heap
from service.hosting.registry_watcher import RegistryWatcher

READY = "ok"
FIRST_RETRY_S = 10.0
_LONGEST_RETRY_S = 600.0
_REAP_S = 0.1
R = TypeVar("R")
_log = structlog.get_logger(__name__)


class ModelHost:
    """Host of the served models: loads them, resolves addresses, follows these to new versions.

    Args:
        loader: loader of the versions.
        addresses: addresses to serve; empty for every model of the registry.
        default: address of the default model; None for the registry's default if served, else the choice of
            `models.checkpoint.manifest.choose_default`.
        report_load: receives each load's outcome, `loaded`, `failed`, or `refused` for lack of memory,
            and its duration in seconds.

    Attributes:
        registry: source of the models.
        budget: maximum bytes of all models; None for no limit.
        address_table: the current addresses; replaced atomically.
        default_choice: served address of the default model, and why it was chosen.
        training: running trainings of the registry's models, at the last poll.

    Raises:
        RegistryError: the registry contains no model.
        ModelNotFoundError: an address is not in the registry, or the default is not served.
    """

    def __init__(
        self,
        loader: Loader,
        *,
        addresses: Sequence[str] = (),
        default: str | None = None,
        report_load: Callable[[str, float], None] = lambda _outcome, _seconds: None,
    ) -> None:
        self.registry, self.budget = loader.registry, loader.budget
        self._clock = loader.clock
        self._report_load = report_load
        self._loader = loader
        self._watcher = RegistryWatcher(loader.registry, addresses)
        self._last_read_s = loader.clock()
        self._was_reachable = True
        self.training: list[TrainingStatus] = []
        self._models: dict[str, HostedModel] = {}
        self._unloading: tuple[UnloadingModel, ...] = ()
        self._stopping = False
        self._configured, self._remembered = default, self._watcher.default
        self.default_choice = DefaultChoice(next(iter(self._watcher.watched)), "")  # until `_choose_default`
        # until `_reconcile` publishes the first table
        self.address_table = AddressTable({}, {}, HostedModel("", None))
        self._reconcile()
        self._choose_default()
        self._reconcile()

    # --- for any thread ---

    @property
    def models(self) -> Mapping[str, HostedModel]:
        """The hosted models by `name@number`."""
        return self.address_table.models

    @property
    def default(self) -> HostedModel:
        """The model of requests that name no model."""
        return self.address_table.default

    @property
    def num_loaded(self) -> int:
        """Number of loaded models."""
        return sum(model.loaded is not None for model in self.models.values())

    @property
    def bytes_in_use(self) -> int:
        """Bytes of host memory of all models, unloading ones too."""
        hosted = sum(model.size.host for model in self.models.values() if model.size is not None)
        return hosted + sum(model.size.host for model in self.unloading)

    @property
    def unloading(self) -> list[UnloadingModel]:
        """Unloaded models still in memory, because requests use them."""
        return [model for model in self._unloading if model.model() is not None]

    @property
    def registry_look_age_s(self) -> float:
        """Seconds since the last successful read of the registry."""
        return self._clock() - self._last_read_s

    def prefix_cache_figures(self, figure: str) -> dict[str, float]:
        """Return `queries`, `hits` or `num_bytes` of each prefix cache of a loaded model."""
        caches = {m.address: m.loaded.prefix_cache for m in self.models.values() if m.loaded is not None}
        return {name: getattr(cache, figure) for name, cache in caches.items() if cache is not None}

    def bytes_by_model(self) -> dict[str, float]:
        """Return the bytes of each loaded model in host and device memory."""
        sizes = {address: model.size for address, model in self.models.items()}
        return {address: size.host + size.device for address, size in sizes.items() if size is not None}

    def resolve(self, address: str | None, *, any_version: bool = False) -> LoadedModel:
        """Return the loaded model of an address.

        Args:
            address: `name`, `name@7`, `name@champion`; None for the default.
            any_version: return the model's served version if the address is not served.

        Raises:
            ModelNotFoundError: the address is not served.
            NotReadyError: the model is loading, or could not be loaded.
        """
        table = self.address_table  # one: a version may be replaced meanwhile
        hosted = table.default if address is None else table.by_address.get(address)
        if any_version and address is not None and (hosted is None or hosted.loaded is None):
            hosted = table.by_address.get(address.partition("@")[0], hosted)
        hosted = hosted or self.find(str(address))
        if hosted.loaded is not None:
            return hosted.loaded
        if hosted.failure is None:
            raise NotReadyError(f"model {hosted.address} is still being loaded")
        raise NotReadyError(f"model {hosted.address} could not be loaded: {hosted.failure}")

    def find(self, address: str) -> HostedModel:
        """Return the hosted model of an address, loaded or not.

        Raises:
            ModelNotFoundError: no hosted model has this address.
            RegistryError: likewise, and the registry cannot be read.
        """
        table = self.address_table
        hosted = table.by_address.get(address)
        if hosted is not None:
            return hosted
        here = ", ".join(sorted(table.models))
        try:
            published = self.registry.resolve_cached(address)  # without network: on the event loop
        except RegistryError:
            raise
        except DomainError:
            raise ModelNotFoundError(
                f"there is no model {address[:200]!r}; this service has: {here}"
            ) from None
        raise ModelNotFoundError(f"{published.address} is published but not loaded; this service has: {here}")

    def followed_addresses(self, model: HostedModel) -> list[str]:
        """Return the served addresses that resolve to a model."""
        watched = self._watcher.watched.copy()
        return [name for name, address in watched.items() if address.serving_or_target == model.address]

    def stop(self) -> None:
        """Start no more loads."""
        self._stopping = True

    # --- for the loader thread only ---

    def load_all(self) -> None:
        """Load every model, the default first; log those that fail, which stay hosted as failed."""
        first = self.default.address
        _log.info("loading models", models=len(self._models), first=first)
        self.training = read_statuses(self.registry.work_folder)
        self.compile_kernels()
        for address in sorted(self._models, key=lambda address: address != first):
            model = self._models.get(address)  # None if replaced by an earlier load
            if model is not None and model.state is LoadState.LOADING:
                self._load(model)

    def compile_kernels(self) -> list[Future[None]]:
        """Start to compile the models' missing kernels; see `compile_groups`."""
        return self._loader.compile_kernels(m.version for m in self._models.values() if m.version is not None)

    def load(self, address: str) -> HostedModel:
        """Serve an address, and load its model unless it is loaded.

        Returns:
            The model of the address in the registry, loaded or failed. A failed load is retried only if
                the address was served before.

        Raises:
            ModelNotFoundError: the address is not in the registry.
            CheckpointError: the registry cannot resolve the address.
        """
        known = address in self._watcher.watched
        watched = self._watcher.watch(address)
        target = watched.target
        self._reconcile()
        if self._models[target].loaded is None:
            self._load(self._models[target])
            if not known and self._models[target].loaded is None:
                watched.failed_target = target
        return self.models[target]

    def unload(self, address: str) -> HostedModel:
        """Serve a model no longer under any address; running requests still use it.

        Raises:
            ModelNotFoundError: the model is not hosted.
            InputError: the model is the default, or an address is about to move to it.
        """
        model = self.find(address)
        if model.address == self.default.address:
            raise InputError(
                f"{model.address} is the default model: point its alias to another version, or set another default "
                "with `gramophone models default` or GRAMOPHONE_DEFAULT_MODEL",
                param="model",
            )
        ending = self.followed_addresses(model)
        if not ending:
            watched = self._watcher.watched.values()
            moving = next((item.address for item in watched if item.target == model.address), address)
            raise InputError(
                f"{moving} is about to move to {model.address}: point the alias elsewhere, or unload {moving}",
                param="model",
            )
        for ended in ending:
            del self._watcher.watched[ended]
        self._reconcile()
        return model

    def refresh(self) -> None:
        """Poll the registry; load the current versions of served addresses.

        The old version serves until the new one is loaded.
        """
        self.training = read_statuses(self.registry.work_folder)
        reachable = self._watcher.poll()
        if reachable:
            self._last_read_s = self._clock()
            if not self._was_reachable:
                for address, model in self._models.items():
                    # the outage may be the cause
                    self._models[address] = replace(model, retry_s=-math.inf)
        self._was_reachable = reachable
        self._reconcile()
        watched = self._watcher.watched.values()
        for target in {item.target for item in watched if item.target != item.failed_target}:
            model = self._models[target]
            if model.version is not None and model.loaded is None and self._clock() >= model.retry_s:
                self._load(model)
        self._follow_default()

    def reap(self) -> bool:
        """Return the memory of unused unloaded models to the system.

        Returns:
            True if requests still use unloaded models.
        """
        in_use = tuple(self.unloading)
        if len(in_use) < len(self._unloading):
            self._unloading = in_use
            trim_heap()
        return bool(in_use)

    # --- internal ---

    def _choose_default(self) -> None:
        """Choose the default model.

        Raises:
            ModelNotFoundError: the default of the settings is not served.
        """
        watched = self._watcher.watched
        if self._configured:
            choice = DefaultChoice(self._configured, f"GRAMOPHONE_DEFAULT_MODEL is {self._configured}")
        else:
            self._remembered = self._watcher.default
            choice = choose_default(sorted({item.name for item in watched.values()}), self._remembered)
        address = choice.name
        if address not in watched:
            target = self.find(address).address
            if self._configured and self._watcher.resolved_address(address) == target:
                self._watcher.watch(address)
            else:  # a name not served itself: the served address of its version
                address = next(item.address for item in watched.values() if item.target == target)
        self.default_choice = choice._replace(name=address)

    def _follow_default(self) -> None:
        """Choose again if the registry's default is now another served, loaded model."""
        before, remembered = self.default_choice.name, self._watcher.default
        if self._configured or remembered is None or remembered == self._remembered:
            return
        names = {watched.name for watched in self._watcher.watched.values()}
        if remembered in names and self.find(remembered).loaded is not None:
            self._choose_default()
            if self.default_choice.name != before:
                self._publish()
                _log.info(
                    "default model changed", model=self.default.address, reason=self.default_choice.reason
                )

    def _load(self, model: HostedModel) -> None:
        if self._stopping or model.version is None:
            return
        address = model.address
        self._models[address] = replace(model, failure=None)
        self._publish()
        started_s = self._clock()
        sizes = {other: loaded.size.host for other, loaded in self.models.items() if loaded.size is not None}
        sizes.pop(self.default.address, None)  # the default cannot be unloaded
        try:
            hosted = self._loader.load(model.version, in_use=self.bytes_in_use, unloadable=sizes)
        except LOAD_ERRORS as error:
            outcome = "refused" if isinstance(error, MemoryBudgetError) else "failed"
            failure = self.registry.redact_location(str(error))
            wait_s = min(FIRST_RETRY_S * 2.0 ** min(model.failures, 30), _LONGEST_RETRY_S)
            self._models[address] = replace(
                model, failure=failure, failures=model.failures + 1, retry_s=self._clock() + wait_s
            )
            _log.error("model failed", model=address, reason=failure)
        else:
            outcome = "loaded"
            self._models[address] = hosted
        self._report_load(outcome, self._clock() - started_s)
        self._reconcile()

    def _reconcile(self) -> None:
        """Move addresses to newly loaded versions, unload models without any, publish the table."""
        needed = set()
        for watched in self._watcher.watched.values():
            if watched.version is not None:
                hosted = HostedModel(watched.target, watched.version)
                if self._models.setdefault(watched.target, hosted).loaded is not None:
                    watched.serving, watched.failed_target = watched.target, None
            elif watched.serving is None:
                self._models[watched.address] = HostedModel(watched.address, None, failure=watched.problem)
            needed |= {watched.target, watched.serving_or_target}
        unloaded = [self._models.pop(address) for address in list(self._models) if address not in needed]
        self._publish()
        for model in unloaded:
            if model.loaded is not None and model.size is not None:
                use = model.loaded.use
                # models with requests' members, too
                read_by_all = without_members(model.loaded.model)
                ended = UnloadingModel(model.address, weakref.ref(read_by_all), use, model.size)
                self._unloading = (*self._unloading, ended)
                _log.info("model unloaded", model=model.address, requests=use.in_flight)

    def _publish(self) -> None:
        models = {name: replace(model, failure=self._problem(model)) for name, model in self._models.items()}
        self.address_table = build_address_table(
            models,
            served={address: watched.serving_or_target for address, watched in self._watcher.watched.items()},
            aliases=self._watcher.aliases,
            default=self.default_choice.name,
            before=self.address_table,
        )

    def _problem(self, model: HostedModel) -> str | None:
        """Return the error of a model not loaded, or of a loaded one's successor."""
        if model.loaded is None:
            return model.failure
        for watched in self._watcher.watched.values():
            if watched.serving == model.address:
                after = self._models.get(watched.target)
                if watched.problem is not None:
                    return watched.problem
                if after is not None and after.loaded is None and after.failure is not None:
                    return f"{watched.address} is now {after.address}, which could not be loaded: {after.failure}"
        return None


class ModelReloader:
    """Executor of model host changes on a thread of its own, the loader thread.

    Args:
        host: the model host.
        interval_s: time between polls of the registry; 0 disables polling.
        peers_started: returns True once the port's other processes have done their initial loads.
    """

    def __init__(
        self, host: ModelHost, *, interval_s: float, peers_started: Callable[[], bool] = lambda: True
    ) -> None:
        self._host = host
        self._peers_started = peers_started
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaping = False
        self._closing = False
        self.queued: list[str] = []
        """Addresses passed to `load` whose loads have not finished."""
        self.initial_load_done = False
        """True once this process has tried to load every model present at start."""

    @property
    def started(self) -> bool:
        """True if `initial_load_done` is true in every process on the port."""
        return self.initial_load_done and self._peers_started()

    def start(self) -> None:
        """Load all models, then poll the registry."""
        self._spawn(self._watch())

    async def close(self, *, timeout_s: float) -> None:
        """Stop polling, and wait up to `timeout_s` for a running load."""
        self._host.stop()
        self._closing = True
        for task in self._tasks:
            task.cancel()
        ended = asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        await asyncio.wait([asyncio.create_task(ended)], timeout=timeout_s)

    def load(self, address: str) -> asyncio.Future[HostedModel]:
        """Start serving an address; see `ModelHost.load`.

        Returns:
            Future of the model, loaded or failed, or the errors of `ModelHost.load`; need not be awaited.
        """
        self.queued.append(address)
        future = self._submit(partial(self._host.load, address))
        future.add_done_callback(lambda _: self.queued.remove(address))
        # retrieved, so asyncio does not warn if no caller awaits
        future.add_done_callback(lambda ended: None if ended.cancelled() else ended.exception())
        return future

    def unload(self, address: str) -> asyncio.Future[HostedModel]:
        """Stop serving a model; see `ModelHost.unload`."""
        return self._submit(partial(self._host.unload, address))

    def refresh(self) -> asyncio.Future[None]:
        """Poll the registry now; see `ModelHost.refresh`."""
        return self._submit(self._host.refresh)

    def _submit(self, change: Callable[[], R]) -> asyncio.Future[R]:
        future = asyncio.wrap_future(self._thread.submit(change))
        future.add_done_callback(lambda _: self._reap())
        return future

    async def _watch(self) -> None:
        change = self._submit(self._load_all)
        while True:
            await asyncio.wait([change])
            if error := change.exception():  # polling continues
                _log.error("model update failed", exc_info=error)
            if not self._interval_s:
                return
            await asyncio.sleep(self._interval_s)
            change = self.refresh()

    def _load_all(self) -> None:
        started_s = time.monotonic()
        try:
            self._host.load_all()
        finally:
            freeze_garbage_collector()
        self.initial_load_done = True
        if self._host.default.state is LoadState.LOADED:
            seconds = round(time.monotonic() - started_s, 3)
            _log.info("ready", models=self._host.num_loaded, of=len(self._host.models), seconds=seconds)

    def _reap(self) -> None:
        if not self._reaping and not self._closing:
            self._spawn(self._reap_all())

    async def _reap_all(self) -> None:
        self._reaping = True
        try:
            while await asyncio.wrap_future(self._thread.submit(self._host.reap)):  # noqa: ASYNC110 - no signal exists
                await asyncio.sleep(_REAP_S)
        finally:
            self._reaping = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def readiness(host: ModelHost, reloader: ModelReloader, scheduler: Scheduler) -> str:
    """Return READY, else what prevents it: `loading`, `failed` (the default model) or `draining`.

    The service is ready once the default is loaded and every model present at start is loaded or has failed, until
    shutdown. Later loads and failures do not matter: the old versions continue to serve.
    """
    state = host.default.state
    if scheduler.admission.draining:
        return "draining"
    if state is not LoadState.LOADED:
        return state.value
    return READY if reloader.started else LoadState.LOADING.value
