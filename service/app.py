"""Composition root: builds the application from the settings and runs its server."""

import asyncio
import faulthandler
import importlib.metadata
import secrets
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from fastapi import FastAPI
from prometheus_client.core import CounterMetricFamily
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from models.checking.error_model import CalibrationStore, ErrorTableStore
from models.checking.lexicon import HunspellDictionary
from models.checkpoint import folders
from models.checkpoint.copies import Copies
from models.checkpoint.load import load_checkpoint
from models.checkpoint.precision import FLOAT32
from models.checkpoint.registry import open_registry, registry_folder
from models.completion.user_model import UserModelLimits
from models.errors import FormatError, RegistryError, UserStoreError
from models.reranking.ranking import ProfileStore
from models.text_model import Limits
from service import logs
from service.api_errors import install_error_handlers
from service.api_keys import KeyStore
from service.engine.engine import Engine
from service.engine.job import Shares
from service.engine.metrics import Metrics
from service.engine.scheduler import Scheduler, SchedulerLimits
from service.hosting.loading import MEMINFO, Loader, system_memory
from service.hosting.model_host import READY, ModelHost, ModelReloader, readiness
from service.hosting.state_store import StateStore
from service.hosting.user_store import IN_MEMORY, UserStore
from service.hosting.word_list_store import WordListStore
from service.http_server import DrainingServer, listen, tls_context, url_of
from service.middleware.authentication import AccessTable, Authentication
from service.middleware.cross_origin import CrossOriginGuard, CrossOriginReplies
from service.middleware.guard import Answer, Guard
from service.middleware.guarded_request import BodyLimit, HeldBodies
from service.middleware.tracing import Tracing, make_tracer_provider
from service.operations.operation import Dictionaries
from service.routes import endpoints, models, operations, playground, word_lists
from service.routes.replies import answer
from service.routes.request import AutocompleteSessions, Services
from service.settings import Settings, otel_variables
from service.workers.broadcast import Broadcast
from service.workers.peers import AffinityRelay, Peer, peer_endpoints
from service.workers.pool import WorkerPool
from service.workers.supervisor import Supervisor, preload, prepare, probe_in_child
from service.workers.worker import WorkerServer

_log = structlog.get_logger(__name__)
_SWITCH_INTERVAL_S = 0.0005
"""Thread switch interval of event loop and model thread, a tenth of Python's default."""

_STOP_GRACE_S = 10.0
"""Seconds after the drain timeout until a running worker is killed."""

_PREFIX_CACHE_GAUGES = {
    "queries": "Prefix-cache lookups since the model was loaded",
    "hits": "Prefix-cache lookups that found a prefix, since the model was loaded",
    "num_bytes": "Bytes of model states in the prefix cache",
}


_ROUTERS = (
    operations.router,
    word_lists.router,
    playground.router,
    models.router,
    endpoints.router,
)
ENDPOINTS = tuple(endpoint for router in _ROUTERS for endpoint in router.endpoints)
"""All endpoints, in matching order."""


def access_table() -> AccessTable:
    """Return the access rules of all endpoints."""
    return AccessTable({endpoint.path: endpoint.scope for endpoint in ENDPOINTS})


def answers(services: Services) -> dict[tuple[str, str], Answer]:
    """Return the functions that answer operations, by method and path."""
    return {
        (endpoint.method, endpoint.path): partial(answer, endpoint, services)
        for endpoint in ENDPOINTS
        if endpoint.operation is not None
    }


def include_endpoints(app: FastAPI) -> None:
    """Add the routes of all endpoints to an application."""
    app.state.endpoints = ENDPOINTS
    for router in _ROUTERS:
        app.include_router(router)


class GuardedApplication(FastAPI):
    """Framework's application behind a guard, which has operations answered without it.

    Attributes:
        entry: guard of all requests.
    """

    entry: ASGIApp

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["app"] = self
            await self.entry(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    @override
    def build_middleware_stack(self) -> ASGIApp:
        """Return the stack without its outermost layer, which would answer unexpected errors before the guard."""
        layers: Any = super().build_middleware_stack()
        inner: ASGIApp = layers.app
        return inner


def create_app(settings: Settings, pool: WorkerPool | None = None) -> FastAPI:
    """Build the application; models are loaded at startup.

    Args:
        settings: settings of the service.
        pool: worker pool as seen by this worker; None for a single process.

    Raises:
        RegistryError: the registry does not exist or contains no model.
        ModelNotFoundError: the settings name a model not in the registry.
    """
    copies = _model_copies(settings)
    services = _compose(settings, pool, copies)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        services.engine.start()
        # not awaited: the application answers /health while models are loaded
        services.reloader.start()
        sweeping = asyncio.create_task(services.states.sweep())
        try:
            await asyncio.to_thread(services.users.open)
        except UserStoreError as error:
            _log.warning("users' words are unavailable", reason=str(error))
        yield
        sweeping.cancel()
        await services.engine.close(drain_timeout_s=settings.drain_timeout_s)
        await services.reloader.close(timeout_s=settings.drain_timeout_s)
        services.users.close()
        if copies is not None:  # a signal may end the process without exit handlers
            copies.release()
        if app.state.tracing is not None:
            await asyncio.to_thread(app.state.tracing.shutdown)  # sends the remaining spans

    app = GuardedApplication(
        title="Gramophone",
        summary="Small language models over HTTP",
        version=importlib.metadata.version("gramophone-lm"),
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,  # served by service.routes.endpoints
        docs_url=None,  # the page would load scripts from another origin
        redoc_url=None,
        # the framework's telemetry would quote exceptions; Tracing and Metrics replace it
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = services
    include_endpoints(app)
    install_error_handlers(app)
    app.entry = _guarded(app, settings, services.metrics, pool)
    return app


def serve(settings: Settings) -> None:
    """Serve requests until a stop signal, then finish the running ones.

    Raises:
        RegistryError: the registry does not exist or contains no model.
        ModelNotFoundError: the settings name a model not in the registry.
        InputError: listening on the address failed, or a setting cannot be applied.
        FormatError: the file of API keys is missing or damaged.
    """
    log = partial(
        logs.configure_logs, level=settings.log_level, form=settings.log_format, texts=settings.log_texts
    )
    log()
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)  # inherited by workers
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    tls_context(settings)  # reports errors before anything is loaded
    if settings.workers > 1:
        supervisor = Supervisor(
            settings.workers,
            name=settings.process_name,
            patience_s=settings.drain_timeout_s + _STOP_GRACE_S,
            hang_timeout_s=settings.hang_timeout_s,
        )
        preload(
            networks=probe_in_child(lambda: prepare(create_app(settings).state.services.host)),
            float32=settings.device != "cpu" or FLOAT32 in settings.precision,
        )
        listening = listen(settings)
        pool = supervisor.run(listening)  # returns in each worker
        log(worker=pool.number)
        if settings.pin_workers:
            pool.pin()
        app = create_app(settings, pool)
        pool.status.composed[pool.number] = 1
        server: DrainingServer = WorkerServer(app, settings, pool)
    else:
        app = create_app(settings)
        listening = listen(settings)
        server = DrainingServer(app, settings)

    def reload(*_: object) -> None:
        app.state.keys.force_reload()
        server.reload_certificate()

    signal.signal(signal.SIGHUP, reload)
    default = app.state.services.host.default_choice
    (_log.warning if default.is_guess else _log.info)(
        "serving",
        url=url_of(listening, settings),
        default=app.state.services.host.default.address,
        reason=default.reason,
    )
    server.run(sockets=[listening])


def _guarded(
    app: GuardedApplication, settings: Settings, metrics: Metrics, pool: WorkerPool | None
) -> ASGIApp:
    """Return the application behind its guard."""
    app.state.keys = keys = KeyStore(entries=settings.api_keys, file=settings.api_keys_file)
    held = HeldBodies(settings.max_held_body_bytes)
    shared: dict[str, Any] = {}
    entry: ASGIApp = app.build_middleware_stack()
    if pool is not None:
        app.state.peers = peers = {
            number: Peer(pool.socket_of(number)) for number in range(pool.size) if number != pool.number
        }
        shared |= {"pool": pool, "peers": peers, "metrics": metrics, "held": held}
        shared["max_body_bytes"] = settings.max_body_bytes
        entry = Broadcast(entry, **shared)
    app.state.tracing = make_tracer_provider(settings.otlp_endpoint, otel_variables())
    entry = Guard(
        entry,
        operations=answers(app.state.services),
        authentication=Authentication(keys=keys, metrics=metrics, table=access_table()),
        origins=CrossOriginGuard(
            keys=keys,
            metrics=metrics,
            host=settings.host,
            allowed_hosts=settings.allowed_hosts,
            origins=settings.cors_origins,
        ),
        cors=CrossOriginReplies(origins=settings.cors_origins),
        body_limit=BodyLimit(settings.max_body_bytes, held, log_bodies=settings.log_texts),
        metrics=metrics,
        tracing=None if app.state.tracing is None else Tracing(app.state.tracing),
    )
    if pool is None:
        return entry
    return AffinityRelay(entry, peer_endpoints=peer_endpoints(app.state.services), keys=keys, **shared)


def _model_copies(settings: Settings) -> Copies | None:
    """Return the folder for copies of local models; remote ones are in the registry cache."""
    if not settings.copy_models or registry_folder(settings.registry) is None:
        return None
    try:
        return Copies(folders.cache_folder(settings.registry_cache) / "copies")
    except RegistryError as error:
        _log.warning("models are served without copies", reason=str(error))
        return None


def _users_file(settings: Settings, pool: WorkerPool | None) -> Path | None:
    """Return the file of users' words; None to keep them in memory."""
    if settings.users != IN_MEMORY:
        return folders.data_folder() / "users.sqlite" if settings.users is None else Path(settings.users)
    # a folder that the workers share and then remove
    return None if pool is None else pool.folder / "users.sqlite"


def _read_dictionaries(settings: Settings) -> Dictionaries:
    """Read the Hunspell dictionaries; damaged ones are logged."""
    read: dict[str, HunspellDictionary | FormatError] = {}
    for name, _, file in (setting.partition("=") for setting in settings.dictionaries):
        try:
            read[name] = HunspellDictionary(Path(file))
        except FormatError as error:
            _log.warning("dictionary not read", name=name, reason=str(error))
            read[name] = error
    return read


def _compose(settings: Settings, pool: WorkerPool | None, copies: Copies | None) -> Services:
    metrics = Metrics(None if pool is None else pool.number)
    loader = Loader(
        registry=open_registry(settings.registry, cache=settings.registry_cache),
        read=partial(load_checkpoint, shared=None if pool is None else pool.weights, copies=copies),
        device=settings.device,
        precision=settings.precision,
        budget=settings.memory_budget,
        num_threads=settings.num_threads or (None if pool is None else pool.num_threads),
        prefix_cache_bytes=settings.prefix_cache_bytes,
    )
    host = ModelHost(
        loader,
        addresses=settings.models,
        default=settings.default_model,
        report_load=metrics.model_load,
    )
    reloader = ModelReloader(
        host,
        interval_s=settings.watch_interval_s,
        peers_started=(lambda: True) if pool is None else (lambda: all(pool.status.started)),
    )
    scheduler = Scheduler(
        clock=time.monotonic,
        limits=SchedulerLimits(
            max_jobs=settings.max_queued_requests,
            max_tokens=settings.max_queued_tokens,
            max_pending_bytes=settings.max_unsent_bytes,
        ),
        metrics=metrics,
    )
    engine = Engine(
        scheduler,
        request_timeout_s=settings.request_timeout_ms / 1000,
        hang_timeout_s=settings.hang_timeout_s,
    )
    limits = Limits(
        max_texts=settings.max_texts_per_request,
        max_tokens_per_sequence=settings.max_tokens_per_sequence,
        max_new_tokens=settings.max_new_tokens,
        max_top_k=settings.max_top_k,
    )
    states = StateStore(
        process=pool.process_names[pool.number] if pool else settings.process_name or secrets.token_hex(4),
        max_states=settings.max_states,
        max_bytes=settings.max_state_bytes,
        ttl_s=settings.state_ttl_s,
    )
    services = Services(
        host=host,
        reloader=reloader,
        engine=engine,
        states=states,
        profiles=ProfileStore(settings.registry),
        calibrations=CalibrationStore(settings.registry),
        errors=ErrorTableStore(settings.registry),
        users=UserStore(
            _users_file(settings, pool),
            max_users=settings.max_users,
            ttl_s=settings.user_ttl_s,
            bounds=UserModelLimits(max_words=settings.max_user_words),
        ),
        word_lists=WordListStore(
            settings.wordlists or folders.data_folder() / "wordlists",
            max_lists=settings.max_wordlists,
            max_bytes=settings.max_wordlist_bytes,
        ),
        uploads=Shares(word_lists.MAX_UPLOADS),
        sessions=AutocompleteSessions(),
        metrics=metrics,
        limits=limits,
        languages=dict(language.split("=", 1) for language in settings.languages) or {"en-US": None},
        dictionaries=_read_dictionaries(settings),
        parsing=defaultdict(asyncio.Lock),
    )
    _add_gauges(services, follows=settings.watch_interval_s > 0)
    return services


def _add_gauges(services: Services, *, follows: bool) -> None:
    """Add the gauges of the services; each scrape reads them."""
    metrics, host, scheduler = services.metrics, services.host, services.engine.scheduler
    ready = partial(readiness, host, services.reloader, scheduler)
    gauges: dict[str, tuple[str, Callable[[], float]]] = {
        "models_loaded": ("Loaded models", lambda: host.num_loaded),
        "num_requests_waiting": (
            "Requests waiting for their first step",
            lambda: scheduler.admission.num_waiting,
        ),
        "num_requests_running": (
            "Unfinished requests that have taken their first step",
            lambda: len(scheduler) - scheduler.admission.num_waiting,
        ),
        "ready": ("1 if the service is ready for requests, else 0", lambda: ready() == READY),
        "draining": ("1 during shutdown, else 0", lambda: scheduler.admission.draining),
        "autocomplete_users": ("Autocomplete users with a personal model", services.users.count),
        "wordlists": ("Stored word lists of all keys", services.word_lists.count),
        "wordlist_bytes": ("Bytes of the files of stored word lists", services.word_lists.num_bytes),
        "states": ("Model states stored for decoders", lambda: len(services.states)),
        "states_bytes": ("Bytes of model states stored for decoders", lambda: services.states.num_bytes),
    }
    if follows:
        gauges["registry_look_age_seconds"] = (
            "Seconds since the last successful read of the registry",
            lambda: host.registry_look_age_s,
        )
    if MEMINFO.exists():  # on Linux
        gauges["memory_working_set_bytes"] = (
            "Memory in use by all processes of the container or machine, in bytes",
            lambda: system_memory().used,
        )
        gauges["memory_limit_bytes"] = "Container or machine memory, in bytes", lambda: system_memory().limit
    metrics.describe(version=importlib.metadata.version("gramophone-lm"))
    for name, (description, read) in gauges.items():
        metrics.add_gauge(name, description, read)
    description = "Log lines that standard error did not take"
    metrics.add_gauge("log_lines_dropped", description, lambda: logs.writer.num_dropped, CounterMetricFamily)
    metrics.add_gauge("model_memory_bytes", "Memory of a loaded model, in bytes", host.bytes_by_model)
    for figure, description in _PREFIX_CACHE_GAUGES.items():
        name = f"prefix_cache_{figure.removeprefix('num_')}"
        metrics.add_gauge(name, description, partial(host.prefix_cache_figures, figure))
