"""Capacity figures: requests per core-second, latency at half of the peak, and memory, by model and endpoint.

    python tests/benchmarks/bench_capacity.py [--registry DIR] [--model mixture] [--text FILE.xz] [--seconds 4]
        [--clients 16]

A closed loop gives the peak. Requests per core-second are divided by the service's own processor time, so the
generator, which shares the cores, and other load on the machine hardly change them. Latency comes from an open loop
at half of the peak, counted from when a request was due. In an empty registry the quickstart's models are trained
first.
"""

import argparse
import itertools
import json
import lzma
import os
import subprocess
from pathlib import Path

from preparation import GRAMOPHONE, QUIET, free_port, quickstart, registry_at, wait_until_ready

from service.bench.driver import run_load
from service.bench.plan import ClosedLoop, LoadSettings, OpenLoop, Request, Target
from service.bench.results import summarise_load
from service.bench.workloads import default_texts, typed_prefixes, workload_requests

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
WORKLOADS = ("next-token", "score", "autocomplete", "rerank", "generate")
MIB = 2**20


def requests(workload, texts, model):
    """Requests of a workload: a rerank request has 100 candidates, a generation 32 tokens."""
    if workload != "autocomplete":
        return workload_requests(workload, texts=texts, model=model)
    prefixes = itertools.islice(typed_prefixes(itertools.cycle(texts)), 2048)
    return [
        Request("/v1/autocomplete", json.dumps({"text": text, "model": model}).encode()) for text in prefixes
    ]


def cpu_s(pid):
    """Processor seconds that a process has used, in user and system mode together."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_bytes(pid):
    """Resident memory of a process, and its private part."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    sizes = {
        line.split(":")[0]: int(line.split()[1]) * 1024 for line in text.splitlines() if line.endswith("kB")
    }
    return sizes["Rss"], sizes["Private_Dirty"] + sizes["Private_Clean"]


def row(target, pid, workload, asked, given):
    """Measure one workload and print its line."""
    warm = LoadSettings(duration_s=1.0, warmup_s=0.0)
    summarise_load(run_load(target, asked, ClosedLoop(given.clients), warm))
    before_s = cpu_s(pid)
    peak = summarise_load(
        run_load(
            target, asked, ClosedLoop(given.clients), LoadSettings(duration_s=given.seconds, warmup_s=0.0)
        )
    )
    used_s = cpu_s(pid) - before_s
    half = summarise_load(
        run_load(
            target,
            asked,
            OpenLoop(peak.achieved_per_s / 2),
            LoadSettings(duration_s=given.seconds, warmup_s=1.0),
        )
    )
    assert not {**peak.errors, **half.errors}, (peak.errors, half.errors)
    p99 = "     -" if half.latency_ms.p99 is None else f"{half.latency_ms.p99:6.1f}"
    print(
        f"{workload:13}{peak.achieved_per_s:9,.0f}/s{peak.answered / used_s:11,.0f}/core-s"
        f"{1e3 * used_s / peak.answered:9.2f} ms CPU{half.latency_ms.p50:9.1f} ms{p99} ms"
        f"{'' if peak.valid and half.valid else '  (generator fell behind)'}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--registry", type=Path, default=None)
    parser.add_argument("--model", default="mixture")
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--clients", type=int, default=16)
    given = parser.parse_args()
    texts = default_texts()
    if given.text is not None:
        with lzma.open(given.text, "rt", encoding="utf-8") as lines:
            texts = [line.strip() for line in itertools.islice(lines, 2000) if 8 < len(line.split()) < 26]
    with registry_at(given.registry) as registry:
        quickstart(registry)
        port = free_port()
        command = [*GRAMOPHONE, "serve", "--registry", str(registry), "--port", str(port)]
        environment = {**os.environ, "GRAMOPHONE_MODELS": given.model}  # noqa: TID251 - a benchmark, not the service
        server = subprocess.Popen(command, env=environment, **QUIET)
        try:
            wait_until_ready(port)
            target = Target.parse(f"http://127.0.0.1:{port}")
            print(f"{given.model}: {memory_bytes(server.pid)[0] / MIB:,.0f} MiB resident when ready")
            print(f"{'':13}{'peak':>11}{'by CPU':>17}{'a request':>16}{'p50, half':>12}{'p99':>9}")
            for workload in WORKLOADS:
                row(target, server.pid, workload, requests(workload, texts, given.model), given)
            resident, private = (size / MIB for size in memory_bytes(server.pid))
            print(f"memory after it: {resident:,.0f} MiB resident, {private:,.0f} MiB private")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
