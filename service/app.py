"""The composition root: settings in, an application out; and the server that runs it."""

import asyncio
import importlib.metadata
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

from models.checkpoint.registry import Registry
from models.errors import InvalidInputError
from service.engine.engine import Engine
from service.engine.host import ModelHost
from service.engine.metrics import Metrics
from service.engine.scheduler import Scheduler, SchedulerLimits
from service.logs import configure_logs
from service.routes import generate, health, models, next_token, rerank, score
from service.routes.errors import install_error_handlers
from service.routes.middleware import BodyLimit, RequestRecord
from service.routes.openapi import install_openapi
from service.routes.serving import Services
from service.settings import Settings
from service.use_cases.limits import Limits

_log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """Build the application; models are loaded when it is started.

    Raises:
        RegistryError: the registry is not there, or holds no model.
        ModelNotFoundError: the settings name a model that it does not hold.
    """
    services = _compose(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        services.engine.start()
        # not awaited: the application answers /health while models are loaded
        loading = asyncio.create_task(
            asyncio.to_thread(services.host.load_all, num_threads=settings.num_threads)
        )
        loading.add_done_callback(_report)
        yield
        await services.engine.close(drain_timeout_s=settings.drain_timeout_s)
        await asyncio.wait([loading])

    app = FastAPI(
        title="Gramophone",
        summary="Small language models over HTTP",
        version=importlib.metadata.version("gramophone-lm"),
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # the page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    for module in (next_token, score, rerank, generate, models, health):
        app.include_router(module.router)
    install_error_handlers(app)
    install_openapi(app)
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    app.add_middleware(RequestRecord, metrics=services.metrics)  # the last added is the outermost
    return app


def serve(settings: Settings) -> None:
    """Serve until told to stop; then finish what is under way.

    Raises:
        RegistryError: the registry is not there, or holds no model.
        ModelNotFoundError: the settings name a model that it does not hold.
        InvalidInputError: the address cannot be listened on; another program may hold the port.
    """
    configure_logs(level=settings.log_level, form=settings.log_format)
    app = create_app(settings)
    listening = _listen(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",  # a request to upgrade is answered like any other
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_timeout_s)),
    )
    services: Services = app.state.services
    DrainingServer(config, on_signal=services.engine.scheduler.drain).run(sockets=[listening])


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror}; "
            "--port or GRAMOPHONE_PORT takes another",
            parameter="port",
        ) from None


class DrainingServer(uvicorn.Server):
    """A server that takes no new work from the moment it is told to stop.

    Args:
        config: as uvicorn's.
        on_signal: called when a signal to stop arrives.
    """

    def __init__(self, config: uvicorn.Config, *, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Tell the engine; uvicorn then waits for the requests under way."""
        self._on_signal()
        super().handle_exit(sig, frame)


def _compose(settings: Settings) -> Services:
    metrics = Metrics()
    host = ModelHost(
        Registry(settings.registry),
        addresses=settings.models,
        default=settings.default_model,
        device=settings.device,
        precision=settings.precision,
    )
    scheduler = Scheduler(
        clock=time.monotonic,
        limits=SchedulerLimits(max_jobs=settings.max_queued_requests),
        on_start=metrics.queue_time.observe,
    )
    engine = Engine(scheduler, clock=time.monotonic, request_timeout_s=settings.request_timeout_ms / 1000)
    metrics.watch("num_requests_waiting", "requests without their first step", lambda: scheduler.num_waiting)
    metrics.watch(
        "num_requests_running",
        "requests that have had their first step",
        lambda: len(scheduler) - scheduler.num_waiting,
    )
    metrics.watch("models_loaded", "models that can answer", lambda: host.num_loaded)
    limits = Limits(
        max_texts=settings.max_texts_per_request,
        max_tokens_per_sequence=settings.max_tokens_per_sequence,
        max_new_tokens=settings.max_new_tokens,
        max_top_k=settings.max_top_k,
    )
    return Services(host, engine, metrics, limits)


def _report(loading: asyncio.Task[None]) -> None:
    """Loading keeps what fails to itself; anything else it raises is a fault of ours, and is told."""
    if not loading.cancelled() and (error := loading.exception()) is not None:
        _log.error("loading models failed", exc_info=error)
