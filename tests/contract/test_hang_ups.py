"""Clients that hang up leave nothing behind: no job, no token that is counted, no state."""

import asyncio
import gc
import json
import random
import time

from service.engine.batching import StateView

REQUESTS = 400


def bodies(generator):
    """Requests of every kind, some short, some long."""
    words = " ".join(
        generator.choice(["the", "cat", "a", "dog", "ran"]) for _ in range(generator.randrange(1, 60))
    )
    yield (
        "/v1/generate",
        {"prompt": words, "max_tokens": 200, "stream": True, "model": "chars", "ignore_eos": True},
    )
    yield "/v1/generate", {"prompt": words, "max_tokens": 100, "ignore_eos": True}
    yield "/v1/score", {"texts": [words] * 50, "detail": "token"}
    yield "/v1/rerank", {"lists": [{"candidates": [{"text": words}, {"text": words + " on"}] * 40}]}
    yield "/v1/next-token", {"context": words}


async def ask(url, path, body, patience_s):
    """Send a request and read what comes, for a while."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    try:
        return await asyncio.wait_for(reader.read(), patience_s)
    except TimeoutError:
        return None
    finally:
        writer.close()


async def crowd(url):
    """Many requests, of which three in ten are not waited for; the answers of the others."""
    generator = random.Random(0)
    places = asyncio.Semaphore(24)

    async def one(path, body, patience_s):
        async with places:
            return await ask(url, path, body, patience_s)

    tasks = []
    for _ in range(REQUESTS // 5):
        for path, body in bodies(generator):
            hangs_up = generator.random() < 0.3
            tasks.append(one(path, body, generator.expovariate(200) if hangs_up else 60))
    return await asyncio.gather(*tasks)


def test_nothing_is_left_of_those_who_hang_up(server):
    scheduler = server.app.state.services.engine.scheduler
    answers = asyncio.run(crowd(server.url))
    assert sum(answer is None for answer in answers) > REQUESTS / 10
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers if answer)
    until = time.monotonic() + 10
    while len(scheduler) and time.monotonic() < until:
        time.sleep(0.01)
    assert (len(scheduler), scheduler.num_waiting, scheduler.num_tokens) == (0, 0, 0)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if isinstance(thing, StateView)]
