"""The real application under uvicorn on a free port, in a thread of the tests' process."""

import contextlib
import threading
import time
from typing import NamedTuple

import uvicorn
from fastapi import FastAPI

from service.app import DrainingServer, create_app
from service.engine.host import LoadState


class Server(NamedTuple):
    """A running service."""

    url: str
    app: FastAPI


@contextlib.contextmanager
def serving(app):
    """Serve an application on a free port while the block runs."""
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        lifespan="on",
    )
    server = DrainingServer(config, on_signal=app.state.services.engine.scheduler.drain)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextlib.contextmanager
def running(settings):
    """Serve what the settings say on a free port, once all models are loaded, while the block runs."""
    app = create_app(settings)
    with serving(app) as url:
        while any(model.state == LoadState.LOADING for model in app.state.services.host.models.values()):
            time.sleep(0.005)
        yield Server(url, app)
