"""The real application under uvicorn on a free port, in a thread of the tests' process."""

import contextlib
import threading
import time
from typing import NamedTuple

from fastapi import FastAPI

from service.app import create_app
from service.engine.loaded_model import LoadState
from service.http_server import make_server
from service.settings import Settings


class Server(NamedTuple):
    """A running service."""

    url: str
    app: FastAPI


@contextlib.contextmanager
def serving(app, settings=None):
    """Serve an application on a free port while the block runs."""
    server = make_server(app, (settings or Settings()).model_copy(update={"port": 0}))
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
    with serving(app, settings) as url:
        while any(model.state == LoadState.LOADING for model in app.state.services.host.models.values()):
            time.sleep(0.005)
        yield Server(url, app)
