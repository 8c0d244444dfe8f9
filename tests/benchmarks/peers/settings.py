"""Settings of the peers' servers to choose from."""

import os

from peers.setup import LITSERVE

_CORES = os.cpu_count() or 1
_PROCESSES = (f"--workers={_CORES}", "--threads=1")
_THREADS = ("--workers=1", f"--threads={_CORES}")
_SINGLE = ("--workers=1", "--threads=1")


def choices(framework, clients):
    """Return independent choices for a number of clients: for each the options to try, the usual ones first."""
    if framework != LITSERVE:
        return [[_PROCESSES, _THREADS, _SINGLE], [("--handlers=2",), ("--handlers=0",), ("--handlers=40",)]]
    share = -(-clients // _CORES)
    sizes = dict.fromkeys([share, clients, -(-share // 2), 1])  # without repetitions
    waits = ("0.005", "0.001", "0") if clients > 1 else ("0",)
    return [
        [_PROCESSES, _THREADS, _SINGLE],
        [(f"--batch-size={size}",) for size in sizes],
        [(f"--batch-timeout={seconds}",) for seconds in waits],
        [(), ("--api-servers=1",)],
        [(), ("--fast-queue",)],
    ]
