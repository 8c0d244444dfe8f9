"""Model host: loads models, resolves addresses, and replaces versions while the service runs.

Only the loader thread changes the set of hosted models (`ModelReloader`). All other threads read
one immutable address table, which is replaced as a whole. `readiness` is the one answer for the
readiness probe and the metrics.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import structlog

from models.checkpoint.load import Checkpoint, load_checkpoint
from models.checkpoint.registry_interface import Registry
from models.errors import (
    InvalidInputError,
    LanguageModelError,
    MemoryBudgetError,
    ModelNotFoundError,
    NotReadyError,
    RegistryError,
)
from service.engine.loaded_model import (
    AddressTable,
    HostedModel,
    LoadedModel,
    LoadState,
    UnloadingModel,
    build_address_table,
)
from service.engine.loading import LOAD_ERRORS, Loader, LoadObserver, NullLoadObserver, read_precisions
from service.engine.memory import UnloadableModel, freeze_garbage_collector, trim_heap
from service.engine.registry_watcher import DefaultModel, RegistryWatcher, RetrySchedule
from service.engine.scheduler import Scheduler

_log = structlog.get_logger(__name__)


class ModelHost:
    """Loads models, hands them out, and follows addresses to new versions.

    Args:
        registry: where models are published.
        addresses: which to serve; none means every model of the registry.
        default: the address meant by a request that names none; None means what the registry remembers, if that
            is served, else as `models.checkpoint.manifest` chooses.
        device: `cpu`, `cuda`, `cuda:1` or `auto`.
        precision: as `read_precisions` reads it.
        num_threads: of torch; None leaves its choice.
        memory_budget: bytes that all models together may take; None is no bound.
        prefix_cache_bytes: what each model may keep of states after texts it has read, beside; 0 is none.
        load: reads a checkpoint.
        clock: seconds, monotonic.
        observer: told how loads go.

    Raises:
        RegistryError: the registry holds no model.
        ModelNotFoundError: an address is not in the registry, or the default is not to be loaded.
        InvalidInputError: the precision is none, or of a model that the registry does not hold.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        addresses: Sequence[str] = (),
        default: str | None = None,
        device: str = "cpu",
        precision: str = "auto",
        num_threads: int | None = None,
        memory_budget: int | None = None,
        prefix_cache_bytes: int = 0,
        load: Callable[..., Checkpoint] = load_checkpoint,
        clock: Callable[[], float] = time.monotonic,
        observer: LoadObserver | None = None,
    ) -> None:
        self.registry = registry
        self._clock = clock
        self._observer = observer or NullLoadObserver()
        precisions = read_precisions(precision)
        precisions.check_names(registry)
        self._loader = Loader(
            registry,
            load,
            device=device,
            precisions=precisions,
            budget=memory_budget,
            num_threads=num_threads,
            prefix_cache_bytes=prefix_cache_bytes,
            clock=clock,
        )
        self._watcher = RegistryWatcher(registry, addresses)
        self._last_read_s = clock()
        self._was_reachable = True
        self._retries = RetrySchedule(clock)
        self._models: dict[str, HostedModel] = {}
        self._unloading: tuple[UnloadingModel, ...] = ()
        self._stopping = False
        self.default_model = DefaultModel(self._watcher, default)
        self._address_table: AddressTable | None = None
        self._reconcile()
        self.default_model.choose(self.find)
        self._reconcile()

    # --- what any thread may ask --------------------------------------------------------------------

    @property
    def address_table(self) -> AddressTable:
        """What addresses mean now."""
        assert self._address_table is not None  # noqa: S101 - made with the host
        return self._address_table

    @property
    def models(self) -> Mapping[str, HostedModel]:
        """All that is hosted, by `name@number`."""
        return self.address_table.models

    @property
    def default(self) -> HostedModel:
        """The one meant by a request that names none."""
        return self.address_table.default

    @property
    def num_loaded(self) -> int:
        """Models that can answer."""
        return sum(model.loaded is not None for model in self.models.values())

    @property
    def budget(self) -> int | None:
        """Bytes that all models together may take; None is no bound."""
        return self._loader.budget

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the host's memory that models take, those that are leaving included."""
        hosted = sum(model.size.host for model in self.models.values() if model.size is not None)
        return hosted + sum(leaving.size.host for leaving in self.unloading)

    @property
    def unloading(self) -> list[UnloadingModel]:
        """Models that were unloaded while requests still had them."""
        return [leaving for leaving in self._unloading if leaving.in_memory]

    @property
    def needs_reaping(self) -> bool:
        """Whether models were unloaded whose memory has not been given back."""
        return bool(self._unloading)

    @property
    def registry_look_age_s(self) -> float:
        """How long ago the registry could last be read; it grows while that is out of reach, or does not answer."""
        return self._clock() - self._last_read_s

    def prefix_cache_figures(self) -> dict[str, tuple[int, int, int]]:
        """Of each loaded model that keeps states of texts: how often it was asked, how often it knew one, and bytes."""
        kept = {m.address: m.loaded.prefix_cache for m in self.models.values() if m.loaded is not None}
        return {
            name: (prefixes.queries, prefixes.hits, prefixes.num_bytes)
            for name, prefixes in kept.items()
            if prefixes is not None
        }

    def bytes_by_model(self) -> dict[str, float]:
        """Bytes that each loaded model takes, of the host's memory and of a device's."""
        sizes = {own: model.size for own, model in self.models.items()}
        return {own: size.host + size.device for own, size in sizes.items() if size is not None}

    def resolve(self, address: str | None) -> LoadedModel:
        """The loaded model that an address means.

        Args:
            address: `name`, `name@7`, `name@champion`; None for the default.

        Raises:
            ModelNotFoundError: it is not loaded, and was not to be.
            NotReadyError: it is still being loaded, or could not be.
        """
        hosted = self.default if address is None else self.find(address)
        if hosted.loaded is not None:
            return hosted.loaded
        if hosted.failure is None:
            raise NotReadyError(f"model {hosted.address} is still being loaded")
        raise NotReadyError(f"model {hosted.address} could not be loaded: {hosted.failure}")

    def find(self, address: str) -> HostedModel:
        """The place of the model that an address means, loaded or not.

        Raises:
            ModelNotFoundError: there is none.
            RegistryError: it is not here, and the registry cannot be asked.
        """
        now = self.address_table
        hosted = now.by_address.get(address)
        if hosted is not None:
            return hosted
        here = ", ".join(sorted(now.models))
        try:
            published = self.registry.resolve_cached(address)  # on the event loop: no time to ask far away
        except RegistryError:
            raise
        except LanguageModelError:
            raise ModelNotFoundError(
                f"there is no model {address[:200]!r}; this service has: {here}"
            ) from None
        raise ModelNotFoundError(f"{published.address} is published but not loaded; this service has: {here}")

    def followed_addresses(self, model: HostedModel) -> list[str]:
        """The addresses that the service was told to serve and for which a model answers."""
        return self._watcher.addresses_of(model.address)

    def redact_root(self, error: BaseException) -> str:
        """A reason as clients may see it: where the registry lies is no business of theirs."""
        return self._watcher.redact_root(error)

    def stop(self) -> None:
        """Load nothing more."""
        self._stopping = True

    # --- what the loading thread does ---------------------------------------------------------------

    def load_all(self) -> None:
        """Load every model, the default first; what cannot be loaded is logged and kept as failed."""
        first = self.default.address
        for own in sorted(self._models, key=lambda address: address != first):
            model = self._models.get(own)  # one that was loaded may have made it superfluous
            if model is not None and model.state is LoadState.LOADING:
                self._load(model)

    def load(self, address: str) -> HostedModel:
        """Serve an address from now on; nothing happens if it is served already.

        Returns:
            What it means in the registry, loaded or failed. A load that fails is not tried again by itself,
            unless the address was served before.

        Raises:
            ModelNotFoundError: the registry does not hold it.
            CheckpointError: the registry cannot say what it means.
        """
        known = address in self._watcher.watched
        followed = self._watcher.watch(address)
        target = followed.target
        self._reconcile()
        if self._models[target].loaded is None:
            self._load(self._models[target])
            if not known and self._models[target].loaded is None:
                followed.failed_target = target
        return self.models[target]

    def unload(self, address: str) -> HostedModel:
        """Serve a model no longer, by whatever address; requests that have it keep it until they end.

        Raises:
            ModelNotFoundError: it is not hosted.
            InvalidInputError: it is the default, or an address is about to move to it.
        """
        model = self.find(address)
        if model.address == self.default.address:
            raise InvalidInputError(
                f"{model.address} is the default, which answers requests that name no model: point its alias to "
                "another version, or name another by `gramophone models default` or GRAMOPHONE_DEFAULT_MODEL",
                parameter="model",
            )
        ending = self.followed_addresses(model)
        if not ending:
            followed = self._watcher.watched.values()
            moving = next((one.address for one in followed if one.target == model.address), address)
            raise InvalidInputError(
                f"{model.address} is what {moving} is to mean: point the alias elsewhere, or unload {moving}",
                parameter="model",
            )
        for gone in ending:
            del self._watcher.watched[gone]
        self._reconcile()
        return model

    def refresh(self) -> None:
        """Look at the registry, and load what the served addresses mean by now.

        What answered before goes on answering until the new version can. Loads that failed are tried again,
        less and less often.
        """
        reached = self._watcher.poll()
        if reached:
            self._last_read_s = self._clock()
            if not self._was_reachable:
                self._retries.make_all_due()  # its absence may be what they failed for
        self._was_reachable = reached
        self._reconcile()
        followed = self._watcher.watched.values()
        for own in {one.target for one in followed if one.target != one.failed_target}:
            model = self._models[own]
            if model.version is not None and model.loaded is None and self._retries.is_due(own):
                self._load(model)
        if self.default_model.update(self.find):
            self._publish()
            _log.info("default model changed", model=self.default.address, reason=self.default_model.reason)

    def reap(self) -> bool:
        """Give the memory of models back that no request has any more.

        Returns:
            Whether some are still leaving.
        """
        staying = tuple(self.unloading)
        if len(staying) < len(self._unloading):
            self._unloading = staying
            trim_heap()
        return bool(staying)

    # ------------------------------------------------------------------------------------------------

    def _load(self, model: HostedModel) -> None:
        if self._stopping or model.version is None:
            return
        own = model.address
        self._models[own] = replace(model, failure=None)
        self._publish()
        started_s = self._clock()
        try:
            arrival = self._loader.load(
                model.version, in_use=self.bytes_in_use, unloadable=self._unloadable()
            )
        except LOAD_ERRORS as error:
            outcome = "refused" if isinstance(error, MemoryBudgetError) else "failed"
            self._models[own] = replace(model, failure=self.redact_root(error))
            self._retries.record_failure(own)
            _log.error("model failed", model=own, reason=self.redact_root(error))
        else:
            outcome = "loaded"
            self._models[own] = replace(
                model,
                loaded=arrival.loaded,
                failure=None,
                size=arrival.size,
                load_s=arrival.load_s,
                warm_up_s=arrival.warm_up_s,
            )
            self._retries.forget(own)
            _log.info(
                "model loaded",
                model=own,
                family=arrival.loaded.checkpoint.manifest.family,
                precision=arrival.loaded.checkpoint.precision,
                seconds=round(arrival.load_s, 3),
                warm_up_s=round(arrival.warm_up_s, 3),
                bytes=arrival.size.host,
            )
        self._observer.model_load(outcome, self._clock() - started_s)
        self._reconcile()

    def _reconcile(self) -> None:
        """Let addresses lead to what is there by now, drop what none leads to any more, and publish that."""
        needed = set()
        for followed in self._watcher.watched.values():
            if followed.version is not None:
                place = HostedModel(followed.target, followed.version)
                if self._models.setdefault(followed.target, place).loaded is not None:
                    followed.serving, followed.failed_target = followed.target, None
            elif followed.serving is None:
                self._models[followed.address] = HostedModel(followed.address, None, failure=followed.problem)
            needed |= {followed.target, followed.serving_or_target}
        gone = [self._models.pop(own) for own in list(self._models) if own not in needed]
        self._publish()
        for model in gone:
            self._retries.forget(model.address)
            if model.loaded is not None and model.size is not None:
                self._unloading = (*self._unloading, UnloadingModel.of(model.loaded, model.size))
                _log.info("model unloaded", model=model.address, requests=model.loaded.use.in_flight)

    def _publish(self) -> None:
        self._address_table = build_address_table(
            {own: replace(model, failure=self._problem(model)) for own, model in self._models.items()},
            followed=self._watcher.targets(),
            aliases=self._watcher.aliases,
            default=self.default_model.address,
            before=self._address_table,
        )

    def _problem(self, model: HostedModel) -> str | None:
        """Why a model cannot answer, or, of one that does, why it is not another that does."""
        if model.loaded is None:
            return model.failure
        for followed in self._watcher.watched.values():
            if followed.serving == model.address:
                after = self._models.get(followed.target)
                if followed.problem is not None:
                    return followed.problem
                if after is not None and after.loaded is None and after.failure is not None:
                    return f"{followed.address} means {after.address}, which could not be loaded: {after.failure}"
        return None

    def _unloadable(self) -> Iterator[UnloadableModel]:
        for model in self.models.values():
            if model.size is not None and model.address != self.default.address:
                yield UnloadableModel(model.address, model.size.host)


R = TypeVar("R")
_REAP_S = 0.1


class ModelReloader:
    """Has the host's changes made on one thread of its own: never the event loop's, never the model's.

    Args:
        host: what it keeps.
        interval_s: how often it looks at the registry; 0 is never.
        peers_started: whether the same can be said of all other processes that serve on the same port.
    """

    def __init__(
        self, host: ModelHost, *, interval_s: float, peers_started: Callable[[], bool] = lambda: True
    ) -> None:
        self._host = host
        self._others_started = peers_started
        self._interval_s = interval_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="loader")
        self._tasks: set[asyncio.Task[None]] = set()
        self._reaping = False
        self._closing = False
        self.queued: tuple[str, ...] = ()
        """Addresses that are to be loaded and were not yet begun with, or are being loaded."""
        self.initial_load_done = False
        """Whether every model that was named at start has been loaded here, or has failed to."""

    @property
    def started(self) -> bool:
        """Whether that is so in every process that serves on the same port."""
        return self.initial_load_done and self._others_started()

    def start(self) -> None:
        """Load all models, then watch."""
        self._spawn(self._watch())

    async def close(self, *, timeout_s: float) -> None:
        """Stop watching; a load under way is waited for, no longer than this."""
        self._host.stop()
        self._closing = True
        for task in self._tasks:
            task.cancel()
        ended = asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
        await asyncio.wait([asyncio.create_task(ended)], timeout=timeout_s)

    def load(self, address: str) -> asyncio.Future[HostedModel]:
        """Serve an address from now on.

        Returns:
            What it means, loaded or failed, to come; or the errors of `ModelHost.load`. Nobody need wait.
        """
        self.queued = (*self.queued, address)
        future = self._submit(partial(self._host.load, address))

        def forget(ended: asyncio.Future[HostedModel]) -> None:
            left = list(self.queued)
            left.remove(address)
            self.queued = tuple(left)
            if not ended.cancelled():
                ended.exception()  # seen: whoever did not wait did not want to know

        future.add_done_callback(forget)
        return future

    def unload(self, address: str) -> asyncio.Future[HostedModel]:
        """Serve a model no longer; see `ModelHost.unload`."""
        return self._submit(partial(self._host.unload, address))

    def refresh(self) -> asyncio.Future[None]:
        """Look at the registry now; see `ModelHost.refresh`."""
        return self._submit(self._host.refresh)

    def _submit(self, change: Callable[[], R]) -> asyncio.Future[R]:
        future = asyncio.wrap_future(self._thread.submit(change))
        future.add_done_callback(lambda _: self._reap())
        return future

    async def _watch(self) -> None:
        await self._log_failure(self._submit(self._load_all))
        while self._interval_s > 0:
            await asyncio.sleep(self._interval_s)
            await self._log_failure(self.refresh())

    async def _log_failure(self, change: asyncio.Future[None]) -> None:
        """Wait for a change; a fault of ours in one is told, and the next may go well."""
        await asyncio.wait([change])
        error = change.exception()
        if error is not None:
            _log.error("the models could not be kept", exc_info=error)

    def _load_all(self) -> None:
        self._host.load_all()
        freeze_garbage_collector()
        self.initial_load_done = True

    def _reap(self) -> None:
        if self._host.needs_reaping and not self._reaping and not self._closing:
            self._spawn(self._reap_all())

    async def _reap_all(self) -> None:
        self._reaping = True
        try:
            while await asyncio.wrap_future(self._thread.submit(self._host.reap)):  # noqa: ASYNC110 - nobody tells when memory is freed
                await asyncio.sleep(_REAP_S)
        finally:
            self._reaping = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


READY = "ok"


def readiness(host: ModelHost, keeper: ModelReloader, scheduler: Scheduler) -> str:
    """READY; or else why not: `loading`, `failed` (of the default model) or `draining`.

    It is READY once every model named at start is loaded or has failed, and the default is loaded, until shutting
    down. Later versions that are loaded, or fail to, change nothing: the old ones answer.
    """
    state = host.default.state
    if scheduler.draining:
        return "draining"
    if state is not LoadState.LOADED:
        return state.value
    return READY if keeper.started else LoadState.LOADING.value
