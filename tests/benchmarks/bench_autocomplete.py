"""Keystrokes over HTTP: typists enter lines of the novels letter by letter, alone and several at once.

    GRAMOPHONE_DATA=… python tests/benchmarks/bench_autocomplete.py [--registry DIR] [--model NAME …] [--keys 1500]
        [--typists 4]

Closed loop with a pause: each typist sends the text so far in a session of its own, waits for the reply, and presses
the next key a fixed interval after the last. After a space the model reads one more word; other keys reuse its
cached output. The client measures the times; the server's own, from its metrics, are printed beside them. In an
empty registry the quickstart's models are trained first. Nothing is written outside it, or a temporary folder.
"""

import argparse
import asyncio
import subprocess
import time
from pathlib import Path

import httpx
import numpy as np
from preparation import (
    GRAMOPHONE,
    QUIET,
    data_folder,
    free_port,
    quickstart,
    registry_at,
    typed_texts,
    wait_until_ready,
)


async def typist(client, model, number, lines, keys, pause_s):
    """Type a number of keys; for each, return True if it began a word, and the seconds until its reply."""
    times = []
    for line in lines:
        for end in range(1, len(line) + 1):
            if len(times) == keys:
                return times
            body = {"text": line[:end], "model": model, "session": f"typist-{number}"}
            sent = time.perf_counter()
            response = await client.post("/v1/autocomplete", json=body)
            took = time.perf_counter() - sent
            assert response.status_code == 200, response.text
            times.append((line[end - 1] == " ", took))
            await asyncio.sleep(max(0.0, pause_s - took))
    return times


async def type_together(port, model, lines, *, typists, keys, pause_s):
    """Return the times of all keys of several typists, each with separate lines."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        await typist(client, model, "warm-up", lines[:2], 20, 0)
        tasks = [
            typist(client, model, number, lines[10 + number :: typists], keys // typists, pause_s)
            for number in range(typists)
        ]
        return [time_s for times in await asyncio.gather(*tasks) for time_s in times]


def server_buckets(port):
    """Return the server's cumulative latency histogram: upper bucket bounds in seconds, and completion requests."""
    wanted = 'gramophone_e2e_request_latency_seconds_bucket{handler="/v1/autocomplete",le="'
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    found = [line.removeprefix(wanted).split('"} ') for line in text.splitlines() if line.startswith(wanted)]
    return np.array([(float(end), float(count)) for end, count in found]).reshape(-1, 2)


def at_server(before, after, percent):
    """Return a percentile of the server's times in milliseconds, interpolated linearly within buckets."""
    ends, counts = after[:-1, 0], after[:-1, 1].copy()
    if len(before):
        counts -= before[:-1, 1]
    wanted = percent / 100 * counts[-1]
    return 1e3 * float(np.interp(wanted, np.concatenate([[0], counts]), np.concatenate([[0], ends])))


def show(title, times, before, after):
    """Print the percentiles of all keys and the median of keys that begin a word."""
    every = 1e3 * np.array([took for _, took in times])
    spaces = 1e3 * np.array([took for is_space, took in times if is_space])
    client = "  ".join(f"p{p} {np.percentile(every, p):6.2f}" for p in (50, 90, 99))
    server = "  ".join(f"p{p} {at_server(before, after, p):6.2f}" for p in (50, 90, 99))
    print(
        f"{title:20} ms at the client {client}   after a space p50 {np.percentile(spaces, 50):6.2f}   at the server "
        f"{server}   {len(every)} keys",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--model", action="append", default=None)
    parser.add_argument("--keys", type=int, default=1500)
    parser.add_argument("--typists", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=10)
    given = parser.parse_args()
    lines = typed_texts(data_folder(), longer_than=4)
    with registry_at(given.registry) as registry:
        quickstart(registry)
        port = free_port()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)]
        server = subprocess.Popen(command, **QUIET)
        try:
            wait_until_ready(port)
            for model in given.model or ["mixture"]:
                for typists in (1, given.typists):
                    before = server_buckets(port)
                    options = {"typists": typists, "keys": given.keys, "pause_s": given.pause_ms / 1e3}
                    times = asyncio.run(type_together(port, model, lines, **options))
                    show(f"{model}, {typists} typing", times, before, server_buckets(port))
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
