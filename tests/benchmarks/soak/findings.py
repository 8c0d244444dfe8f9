"""Process resources, version changes during a soak, and its tables, verdicts and plot."""

import os
import shutil
import time
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np

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
    """Return one sample: memory in MiB, files, threads, and the service's own metrics."""
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
    """Count the sockets among the open files; they come and go with clients."""
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(path.readlink()).startswith("socket:")
        except FileNotFoundError:  # closed since the listing
            continue
    return count


def _figures(port):
    """Return the sums of metric samples by name."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    sums = {}
    for line in lines:
        if not line.startswith("#"):
            labels, value = line.rsplit(" ", 1)
            name = labels.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


_KEPT_VERSIONS = 3


class Swaps:
    """Alternating changes: publish a copy of a model as its next version, or move an alias between two versions.

    Create it before the service starts: the service serves by that alias and follows both.

    Args:
        registry: registry of the service.
        published: model that gets new versions.
        aliased: model whose alias `champion` moves.
    """

    def __init__(self, registry, published, aliased):
        self._registry = registry
        self._published, self._aliased = published, aliased
        self._count = 0
        if len(registry.versions(aliased)) < 2:
            self._publish(aliased)
        registry.set_alias(aliased, "champion", registry.versions(aliased)[0])

    def swap(self):
        """Make the next change."""
        self._count += 1
        if self._count % 2:
            self._publish(self._published)
            for number in self._registry.versions(self._published)[:-_KEPT_VERSIONS]:
                self._registry.delete(self._published, number)
        else:
            first, second = self._registry.versions(self._aliased)[:2]
            now = self._registry.aliases(self._aliased)["champion"]
            self._registry.set_alias(self._aliased, "champion", second if now == first else first)

    def _publish(self, name):
        newest = self._registry.version(name, self._registry.versions(name)[-1])
        self._registry.publish(name, lambda folder: shutil.copytree(newest.path, folder, dirs_exist_ok=True))


P99_RATIO = 1.3
MEMORY_GROWTH = 0.03
"""Maximum growth as a share of memory, over the second half of a soak of ten minutes or more."""

SHORT_MEMORY_GROWTH = 0.15
"""The same of a shorter soak, which may end before all models and caches were used: then 10 % were seen, and none in
15 minutes."""

MORE_THREADS = 4 + (os.cpu_count() or 1)
"""Number of threads that an event loop starts for blocking work when it first needs that many."""

_SHOWN = ("rss_mib", "pss_mib", "anonymous_mib", "files", "threads", "running", "states", "cache_bytes")


class Soak:
    """Samples and requests of a soak.

    Args:
        samples: samples in order.
        requests: (time_s, kind, latency_s, outcome) of each request; time_s is when it was due.
        window_s: length of the first and the last window, which are compared.
        at_rest: a sample from before the load and one from after it.
    """

    def __init__(self, samples, requests, window_s, at_rest):
        self.samples, self.requests, self.window_s = samples, requests, window_s
        self.before, self.after = at_rest
        self._began_s = samples[0]["time_s"]
        self._ended_s = max(time_s for time_s, _, _, _ in requests)

    def outcomes(self):
        """Count the outcomes other than success."""
        return Counter(outcome for _, _, _, outcome in self.requests if outcome not in {"ok", "hung_up"})

    def latencies_s(self, kind=None, *, last=False):
        """Return the latencies of a kind, or of all, in the first or last window."""
        low_s = self._ended_s - self.window_s if last else self._began_s
        return np.array(
            [
                latency_s
                for time_s, of, latency_s, outcome in self.requests
                if outcome == "ok" and kind in {None, of} and low_s <= time_s <= low_s + self.window_s
            ]
        )

    def figures(self, name, *, last=False):
        """Return a sampled figure in the first or last window."""
        low_s = self._ended_s - self.window_s if last else self._began_s
        return np.array(
            [one[name] for one in self.samples if low_s <= one["time_s"] <= low_s + self.window_s]
        )

    def memory_growth(self):
        """Return memory growth over the second half, from the minima of its two parts: as a share, and in MiB per hour.

        Minima are used because loading or unloading a version, or one long request, changes memory by more than a
        minute of a leak would. File pages do not count: their private share depends on other processes that map them.
        """
        half = self.samples[len(self.samples) // 2 :]
        middle = len(half) // 2
        memory = np.array([one["anonymous_mib"] for one in half])
        growth = 2 * (memory[middle:].min() - memory[:middle].min())  # of one part over the last
        return float(growth / memory.mean()), float(3600 * growth / (half[-1]["time_s"] - half[0]["time_s"]))

    def p99_ratio(self, kind=None):
        """Return the last window's 99th percentile over the first's; NaN if either has too few requests."""
        first, last = self.latencies_s(kind), self.latencies_s(kind, last=True)
        if min(len(first), len(last)) < 100:
            return float("nan")
        return float(np.percentile(last, 99) / np.percentile(first, 99))

    def leaks(self):
        """Return verdicts on resources, by name: True if all is well, and the figures."""
        growth, mib_per_hour = self.memory_growth()
        is_short = self._ended_s - self._began_s < 590
        files = self.after["files"] - self.after["sockets"], self.before["files"] - self.before["sockets"]
        return {
            "memory": (
                growth <= (SHORT_MEMORY_GROWTH if is_short else MEMORY_GROWTH),
                f"{100 * growth:+.1f} % over the second half ({mib_per_hour:+.0f} MiB an hour)",
            ),
            "files": (
                files[0] <= files[1] + 2,
                f"{files[1]} at rest before, {files[0]} after, without sockets",
            ),
            "sockets": (
                self.after["sockets"] <= self.before["sockets"] + 2,
                f"{self.before['sockets']} at rest before, {self.after['sockets']} after",
            ),
            "threads": (
                self.after["threads"] <= self.before["threads"] + MORE_THREADS,
                f"{self.before['threads']} at rest before, {self.after['threads']} after",
            ),
            "slots": (
                self.after["running"] + self.after["waiting"] == 0,
                f"{self.after['running']:.0f} running, {self.after['waiting']:.0f} waiting after",
            ),
            "states": (self.after["states"] == 0, f"{self.after['states']:.0f} after"),
            "answers": (
                not self.outcomes(),
                f"{sum(self.outcomes().values())} wrong of {len(self.requests)}",
            ),
        }

    def verdicts(self):
        """Return the verdicts on resources and on latency."""
        ratio = self.p99_ratio()
        return {**self.leaks(), "p99": (ratio <= P99_RATIO, f"last over first: {ratio:.2f}")}


def table(soak):
    """Yield lines that compare the first window with the last."""
    yield f"{'':16}{'first':>12}{'last':>12}{'ratio':>8}   ({soak.window_s:.0f} s each)"
    for name in _SHOWN:
        first, last = (np.median(soak.figures(name, last=last)) for last in (False, True))
        yield f"{name:16}{first:12,.0f}{last:12,.0f}{last / first if first else float('nan'):8.2f}"
    for kind in [*sorted({kind for _, kind, _, _ in soak.requests}), None]:
        first, last = soak.latencies_s(kind), soak.latencies_s(kind, last=True)
        if not (len(first) and len(last)):
            continue
        for q in (50, 99):
            before, after = 1e3 * np.percentile(first, q), 1e3 * np.percentile(last, q)
            told = f"{kind or 'all'} p{q}, ms"
            yield f"{told:20}{before:8.1f}{after:12.1f}{after / before:8.2f}   of {len(first)}, {len(last)}"


def draw(soak, swaps_s, path):
    """Plot the curves to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 10), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    began_s = soak.samples[0]["time_s"]
    minutes = [(one["time_s"] - began_s) / 60 for one in soak.samples]
    _memory(axes[0], minutes, soak.samples)
    for name in ("files", "threads", "running"):
        axes[1].plot(minutes, [one[name] for one in soak.samples], label=name)
    axes[1].set_ylabel("at once")
    axes[2].plot(minutes, [one["states"] for one in soak.samples], label="states")
    axes[2].plot(minutes, [one["cache_bytes"] / (1 << 18) for one in soak.samples], label="cache, 256 KiB")
    axes[2].set_ylabel("kept")
    _latency(axes[3], soak, began_s)
    for axis in axes:
        for swap_s in swaps_s:
            axis.axvline((swap_s - began_s) / 60, color="0.85", linewidth=0.8, zorder=0)
        axis.grid(visible=True, alpha=0.25)
        axis.legend(frameon=False, ncols=4, loc="upper right", fontsize=8)
    axes[3].set_xlabel("minutes (grey: a new version, or an alias moved)")
    figure.savefig(path, dpi=130)


def _memory(axis, minutes, samples):
    for name, label in (
        ("rss_mib", "resident"),
        ("pss_mib", "proportional (Pss)"),
        ("anonymous_mib", "of no file"),
    ):
        axis.plot(minutes, [one[name] for one in samples], label=label)
    axis.set_ylabel("memory, MiB")
    axis.set_ylim(0, 1.2 * max(one["rss_mib"] for one in samples))  # space for the legend


def _latency(axis, soak, began_s):
    """Plot the percentiles of all requests per half minute."""
    times = np.array([time_s for time_s, _, _, outcome in soak.requests if outcome == "ok"])
    latencies = np.array([latency for _, _, latency, outcome in soak.requests if outcome == "ok"])
    step_s = max(5.0, min(30.0, (times.max() - began_s) / 20))
    edges = np.arange(began_s, times.max(), step_s)
    for q in (50, 99):
        values = [
            1e3 * np.percentile(chosen, q)
            if (chosen := latencies[(times >= low) & (times < low + step_s)]).size
            else np.nan
            for low in edges
        ]
        axis.plot((edges + step_s / 2 - began_s) / 60, values, label=f"p{q} of all requests")
    axis.set_yscale("log")
    axis.set_ylabel("latency, ms")
