"""A soak: mixed traffic at 70 % of capacity while versions change and clients disconnect; resource growth is checked.

    python tests/benchmarks/bench_soak.py [--minutes 20] [--registry FOLDER] [--out FOLDER]

A short ramp of closed loops with the same mixed traffic measures the capacity. An open loop from a separate process
follows; every half minute a version is published or an alias moved, a tenth of the streams are abandoned halfway,
and some requests are invalid on purpose. The plot (soak.png) and all figures (soak.json) go to --out; the exit code
is 1 if something leaks or a reply is wrong. The registry's models `mixture` and `ngram` are trained if missing.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from preparation import free_port, wait_until_ready
from soak.findings import Soak, Swaps, draw, sample, table

from models.checkpoint.registry import LocalRegistry

SHARE = 0.7
RAMP = (8, 16)
RAMP_S = 40.0  # re-ranking is a hundredth of the requests and half of the work: a shorter ramp has too little
SAMPLE_S = 5.0
STATE_TTL_S = 20
SWAP_S = 30.0
MODELS = "mixture,ngram@champion"
HERE = Path(__file__).parent
SERVE = "from service.app import serve; from service.settings import read_settings; serve(read_settings())"
LEAK = """
from service.middleware.guard import Guard
kept, answer = [], Guard.__call__
async def leaking(self, *given):
    kept.append(b"x" * {num_bytes})
    await answer(self, *given)
Guard.__call__ = leaking
"""


def train(folder):
    """Train the models unless they exist."""
    if not (folder / "mixture").exists():
        command = [sys.executable, "-m", "service.cli", "quickstart", "--registry", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def service(folder, log, leak_kib, minutes):
    """Run a service; yield its process and port. It leaks the given memory with every request."""
    port = free_port()
    settings = {
        "GRAMOPHONE_REGISTRY": str(folder),
        "GRAMOPHONE_PORT": str(port),
        "GRAMOPHONE_MODELS": MODELS,
        "GRAMOPHONE_STATE_TTL_S": str(STATE_TTL_S),
        "GRAMOPHONE_PREFIX_CACHE_BYTES": str(int(minutes * 2**20)),  # soon full
        "GRAMOPHONE_LOG_LEVEL": "warning",
    }
    program = LEAK.format(num_bytes=1024 * leak_kib) + SERVE if leak_kib else SERVE
    with log.open("wb") as file:
        environment = {**os.environ, **settings}  # noqa: TID251
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=file)
        try:
            wait_until_ready(port)
            yield process, port
        finally:
            process.terminate()
            process.wait()


def load(port, file, seconds, *options):
    """Start the process that generates load."""
    command = [sys.executable, "-m", "soak.clients", str(port), str(file), "--seconds", str(seconds)]
    return subprocess.Popen([*command, "--models", MODELS, *map(str, options)], cwd=HERE)


def read(file):
    """Return the due time, kind, latency in seconds and outcome of each request."""
    lines = (line.rstrip("\n").split("\t", 3) for line in file.read_text(encoding="utf-8").splitlines())
    return [
        (float(ended_s) - float(latency_s), kind, float(latency_s), outcome)
        for ended_s, kind, latency_s, outcome in lines
    ]


def capacity_per_s(port, folder, seconds):
    """Return the scenes per second at the best number of clients."""
    rates = {}
    for clients in RAMP:
        file = folder / f"ramp-{clients}"
        assert load(port, file, seconds, "--clients", clients, "--seed", clients).wait() == 0
        rates[clients] = len(read(file)) / seconds
        print(f"{clients:2} clients: {rates[clients]:,.0f}/s", flush=True)
    return max(rates.values())


def soak(pid, port, swaps, given, rate, file):
    """Run the load; return the samples and the times of changes."""
    seconds = 60 * given.minutes
    samples, swapped_s = [], []
    clients = load(port, file, seconds, "--rate", rate)
    began_s = time.monotonic()
    while clients.poll() is None:
        samples.append(sample(pid, port))
        if time.monotonic() - began_s > (len(swapped_s) + 1) * min(SWAP_S, seconds / 8):
            swapped_s.append(time.time())
            swaps.swap()
        due_s = began_s + len(samples) * min(SAMPLE_S, seconds / 20)
        time.sleep(max(0.0, due_s - time.monotonic()))
    assert clients.returncode == 0
    return samples, swapped_s


def at_rest(pid, port):
    """Return a sample once no request is under way and states have expired; after a limit, the last one."""
    until_s = time.monotonic() + STATE_TTL_S + 60
    while True:
        time.sleep(1)
        found = sample(pid, port)
        if found["running"] + found["waiting"] + found["states"] == 0 or time.monotonic() > until_s:
            time.sleep(2)
            return sample(pid, port)


def report(result, swapped_s, rate, out, log):
    """Print and write the results; return True if nothing leaks."""
    print("\n".join(table(result)))
    verdicts = result.verdicts()
    for name, (is_well, told) in verdicts.items():
        print(f"{'well ' if is_well else 'WRONG'}  {name}: {told}")
    for outcome, count in result.outcomes().most_common(10):
        print(f"  {count} times: {outcome}")
    logged = Counter(line for line in log.read_text(encoding="utf-8").splitlines() if "error" in line.lower())
    print(f"log: {logged.total()} lines with errors", *list(logged)[:5], sep="\n  ")
    draw(result, swapped_s, out / "soak.png")
    found = {
        "rate_per_s": rate,
        "requests": Counter(kind for _, kind, _, _ in result.requests),
        "swaps": len(swapped_s),
        "p99_ratios": {kind: result.p99_ratio(kind) for kind in {kind for _, kind, _, _ in result.requests}},
        "verdicts": {name: [bool(is_well), told] for name, (is_well, told) in verdicts.items()},
        "leaks": [name for name, (is_well, _) in result.leaks().items() if not is_well],
        "at_rest": [result.before, result.after],
        "samples": result.samples,
    }
    (out / "soak.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return not found["leaks"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--registry", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rate", type=float, help="scenes per second; 70 %% of capacity by default")
    parser.add_argument(
        "--leak-kib", type=int, default=0, help="KiB leaked per request, to check the detection"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # exits normally, which also stops the service
    with tempfile.TemporaryDirectory() as name:
        folder = given.registry or Path(name) / "registry"
        out = given.out or Path(name)
        out.mkdir(parents=True, exist_ok=True)
        train(folder)
        swaps = Swaps(LocalRegistry(folder), "mixture", "ngram")
        log, file = out / "service.log", out / "requests.tsv"
        with service(folder, log, given.leak_kib, given.minutes) as (process, port):
            ramp_s = min(RAMP_S, 6 * given.minutes)
            rate = given.rate or SHARE * capacity_per_s(port, Path(name), ramp_s)
            before = at_rest(process.pid, port)
            print(f"soaking for {given.minutes:g} minutes at {rate:,.0f}/s", flush=True)
            samples, swapped_s = soak(process.pid, port, swaps, given, rate, file)
            after = at_rest(process.pid, port)
        window_s = min(300.0, 60 * given.minutes / 3)
        result = Soak(samples, read(file), window_s, (before, after))
        sys.exit(0 if report(result, swapped_s, rate, out, log) else 1)


if __name__ == "__main__":
    main()
