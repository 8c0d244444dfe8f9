"""What a process takes, as the kernel and its own metrics tell."""

import time
import urllib.request
from pathlib import Path

_METRICS = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "states": "states",
    "states_bytes": "states_bytes",
    "cache_bytes": "prefix_cache_bytes",
    "model_bytes": "model_memory_bytes",
    "models": "models_loaded",
}
MIB = 1 << 20


def sample(pid, port):
    """One sample: memory in MiB, files, threads, and the service's own figures."""
    memory = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, value = line.split()[:2]
        memory[name.rstrip(":")] = int(value) / 1024
    figures = _figures(port)
    return {
        "time_s": time.time(),
        "rss_mib": memory["Rss"],
        "pss_mib": memory["Pss"],
        "anonymous_mib": memory["Anonymous"],
        "files": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "sockets": _sockets(pid),
        "threads": sum(1 for _ in Path(f"/proc/{pid}/task").iterdir()),
        **{name: figures.get(f"gramophone_{metric}", 0.0) for name, metric in _METRICS.items()},
    }


def _sockets(pid):
    """Descriptors that are connections, which come and go with clients."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(path.readlink()).startswith("socket:")
        except FileNotFoundError:  # closed since the folder was listed
            continue
    return count


def _figures(port):
    """Sums of samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    sums = {}
    for line in lines:
        if not line.startswith("#"):
            labels, value = line.rsplit(" ", 1)
            name = labels.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums
