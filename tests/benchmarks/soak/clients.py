"""Clients of a soak test in a process of their own, and the requests that they send.

python -m soak.clients PORT FILE --seconds S (--rate R | --clients N) --models a,b

Each finished request is a line of the file: the end time by `time.time`, the kind, the latency in
seconds since it was due, and the outcome: `ok`, `hung_up`, or the error.
"""

import argparse
import asyncio
import gc
import itertools
import json
import random
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import uvloop

from service.bench.connection import Connection, Reply, error_message
from service.bench.driver import PreciseClock
from service.bench.plan import OpenLoop, Request, Target
from service.bench.workloads import candidate_variants, default_texts, shuffled, typed_prefixes
from service.http_client import ConnectionPool, ExchangeError

_LISTS, _CANDIDATES = 4, 50


class Scene(NamedTuple):
    """One arrival.

    Attributes:
        kind: kind, for the statistics.
        request: request to send; the first of several for states.
        hangs_up: True if the client disconnects before the end of the reply.
        statuses: expected statuses.
    """

    kind: str
    request: Request
    hangs_up: bool = False
    statuses: frozenset[int] = frozenset({200})


KINDS = {
    "next-token": 30,
    "score": 20,
    "autocomplete": 20,
    "check": 6,
    "stream": 8,
    "generate": 5,
    "states": 6,
    "rerank": 2,
    "bad": 3,
}
"""Kinds of scenes, and their percentages."""

_BAD = (
    (Request("/v1/score", b'{"texts": ['), {400}),
    (Request("/v1/score", b'{"texts": ["a"], "model": "nobody"}'), {404}),
    (Request("/v1/next-token", b'{"context": 5}'), {400}),
    (Request("/v1/generate", b'{"prompt": "a", "max_tokens": -1}'), {400}),
    (Request("/v1/states/next", b'{"states": ["a.000000.0000000000000000"]}'), {409}),
    (Request("/nowhere"), {404}),
    (Request("/v1/score", json.dumps({"texts": ["a b " * 40_000]}).encode()), {400}),
    (Request("/v1/models", b"{}"), {405}),
)


def scenes(seed: int, models: list[str]) -> Iterator[Scene]:
    """Yield scenes endlessly; each uses one of the models."""
    generator = random.Random(seed)
    texts = shuffled(default_texts(), seed)
    words = [word for text in texts[:200] for word in text.split()]
    sources = {
        kind: _bodies(kind, itertools.cycle(texts), words, generator) for kind in KINDS if kind != "bad"
    }
    names, weights = list(KINDS), list(KINDS.values())
    while True:
        kind = generator.choices(names, weights)[0]
        if kind == "bad":
            request, statuses = generator.choice(_BAD)
            yield Scene(kind, request, statuses=frozenset(statuses))
            continue
        path, body = next(sources[kind])
        request = Request(path, json.dumps(body | {"model": generator.choice(models)}).encode())
        hangs_up = kind == "stream" and generator.random() < 0.1
        # a newer keystroke of a session cancels the older ones
        statuses = frozenset({200, 409}) if kind == "autocomplete" else frozenset({200})
        yield Scene(kind, request, hangs_up, statuses)


def _bodies(
    kind: str, texts: Iterator[str], words: list[str], generator: random.Random
) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield paths and bodies of one kind, endlessly."""
    typists = [typed_prefixes(texts) for _ in range(20)]
    while True:
        if kind == "next-token":
            yield "/v1/next-token", {"context": next(texts), "top_k": 10}
        elif kind == "score":
            yield "/v1/score", {"texts": [next(texts)]}
        elif kind == "check":
            yield "/v1/check", {"text": " ".join(next(texts).split()[:12])}
        elif kind == "states":
            yield "/v1/states", {"context": [next(texts), "the"]}
        elif kind == "rerank":
            lists = [candidate_variants(next(texts), words, _CANDIDATES, generator) for _ in range(_LISTS)]
            yield "/v1/rerank", {"lists": [{"candidates": [{"text": text} for text in one]} for one in lists]}
        elif kind == "autocomplete":
            typist = generator.randrange(len(typists))
            typed = next(typists[typist]).rstrip()
            yield "/v1/autocomplete", {"text": typed, "session": f"typist-{typist}", "limit": 5}
        else:
            body = {"prompt": next(texts), "max_tokens": 24, "seed": generator.randrange(1 << 30)}
            yield "/v1/generate", {**body, "stream": kind == "stream"}


TIMEOUT_S = 60.0
STEPS = 3


class Clients:
    """Players of scenes that write the outcomes.

    Args:
        target: the service.
        out: file for the lines.
    """

    def __init__(self, target, out):
        self._target, self._out = target, out
        self._pool = ConnectionPool(partial(Connection.open, target), 512)

    async def play(self, scene: Scene, due_s: float) -> None:
        """Play one scene that was due at `due_s`, by `time.perf_counter`."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if scene.hangs_up:
                    outcome = await self._hang_up(scene.request)
                elif scene.kind == "states":
                    outcome = await self._decode(scene.request)
                else:
                    outcome = _judged(await self._asked(scene.request), scene)
        except TimeoutError:
            outcome = "timeout"
        except (ExchangeError, OSError) as error:
            outcome = f"{type(error).__name__}: {error}"
        ended_s = time.perf_counter()
        self._out.write(f"{time.time():.3f}\t{scene.kind}\t{ended_s - due_s:.6f}\t{outcome}\n")

    async def _asked(self, request: Request) -> Reply:
        async with self._pool.connection() as connection:
            return await connection.send(request)

    async def _hang_up(self, request: Request) -> str:
        """Disconnect while the reply arrives."""
        connection = await Connection.open(self._target)
        try:
            async with asyncio.timeout(0.02):
                await connection.send(request)
        except TimeoutError:
            pass
        finally:
            connection.close()
        return "hung_up"

    async def _decode(self, opening: Request) -> str:
        """Open states, advance them some steps, and free three quarters; the others expire."""
        reply = await self._asked(opening)
        if reply.status != 200:
            return _told(reply)
        handles = [state["state"] for state in json.loads(reply.body)["states"]]
        for _ in range(STEPS):
            continuations = [{"state": handle, "text": "of the"} for handle in handles]
            body = {"continuations": continuations, "free": handles}
            reply = await self._asked(Request("/v1/states/advance", json.dumps(body).encode()))
            if reply.status != 200:
                # the model's version was replaced and its states were dropped
                return "ok" if b"unknown_state" in reply.body or b"unloaded" in reply.body else _told(reply)
            handles = [one["state"] for one in json.loads(reply.body)["results"]]
        if hash(handles[0]) % 4:
            await self._asked(Request("/v1/states/free", json.dumps({"states": handles}).encode()))
        return "ok"

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def _judged(reply: Reply, scene: Scene) -> str:
    if reply.status not in scene.statuses:
        return _told(reply)
    return "ok" if reply.error is None else f"stream: {reply.error}"


def _told(reply: Reply) -> str:
    return f"http_{reply.status}: {error_message(reply.body)[:120]}"


async def open_loop(clients, source, given):
    """Play scenes at a rate that does not depend on the replies."""
    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        with PreciseClock() as clock:
            for offset_s in OpenLoop(given.rate, seed=given.seed).arrival_times():
                if offset_s > given.seconds:
                    return
                await clock.sleep_until(started_s + offset_s)
                tasks.create_task(clients.play(next(source), started_s + offset_s))


async def closed_loop(clients, source, given):
    """Run clients that each play the next scene when the last has ended."""
    until_s = time.perf_counter() + given.seconds

    async def client():
        while (now_s := time.perf_counter()) < until_s:
            await clients.play(next(source), now_s)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(given.clients):
            tasks.create_task(client())


async def run(given, out):
    """Generate the load."""
    clients = Clients(Target.parse(f"http://127.0.0.1:{given.port}"), out)
    source = scenes(given.seed, given.models.split(","))
    try:
        await (closed_loop if given.rate is None else open_loop)(clients, source, given)
    finally:
        clients.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("file")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--clients", type=int, default=1)
    parser.add_argument("--models", required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    gc.freeze()
    with (
        Path(given.file).open("w", buffering=1 << 13, encoding="utf-8") as out,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(run(given, out))


if __name__ == "__main__":
    main()
