"""The plainest service of a torch model: a FastAPI handler that computes one request.

    python tests/benchmarks/peers/fastapi_app.py FOLDER --port 8001 [--threads 1] [--handlers 2]

Handlers are plain functions, which FastAPI runs in threads; `--handlers 0` makes them coroutines, which compute on
the event loop itself, one at a time.
"""

import argparse
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import fastapi
import torch
import uvicorn
from network import Network
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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--handlers", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    app = make_app(Network(given.folder), given.handlers)
    uvicorn.run(app, port=given.port, loop="uvloop", http="httptools", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
