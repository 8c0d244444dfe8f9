"""The plainest service of a model: a FastAPI handler that computes one request.

    python tests/benchmarks/peers/fastapi_app.py FOLDER --port 8001 [--runtime torch] [--workers 1] [--handlers 2]

Handlers are plain functions, which FastAPI runs in threads; `--handlers 0` makes them coroutines, which compute on
the event loop itself, one at a time.
"""

import argparse
import os
from contextlib import asynccontextmanager

import anyio.to_thread
import fastapi
import uvicorn
from network import add_model_options, load_network
from pydantic import BaseModel


class ScoreRequest(BaseModel):
    ids: list[int]


class GenerateRequest(BaseModel):
    ids: list[int]
    max_tokens: int
    seed: int


def make_app(network, handlers):
    """Return an app with the two endpoints and a maximum number of concurrent handlers."""

    @asynccontextmanager
    async def lifespan(_app):
        if handlers:
            anyio.to_thread.current_default_thread_limiter().total_tokens = handlers
        yield

    def score(request: ScoreRequest):
        return {"logprob": network.score([request.ids])[0]}

    def generate(request: GenerateRequest):
        return {"ids": network.generate([request.ids], request.max_tokens, [request.seed])[0]}

    async def score_on_the_loop(request: ScoreRequest):
        return score(request)

    async def generate_on_the_loop(request: GenerateRequest):
        return generate(request)

    def ready():
        return {}

    app = fastapi.FastAPI(lifespan=lifespan)
    app.post("/score")(score if handlers else score_on_the_loop)
    app.post("/generate")(generate if handlers else generate_on_the_loop)
    app.get("/health/ready")(ready)
    return app


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--workers", type=int, default=1, help="processes, which share the port")
    parser.add_argument("--handlers", type=int, default=2)
    given = parser.parse_args()
    listening = uvicorn.Config(app="", port=given.port).bind_socket()
    for _ in range(given.workers - 1):
        if os.fork() == 0:  # before torch has threads
            break
    app = make_app(load_network(given), given.handlers)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
