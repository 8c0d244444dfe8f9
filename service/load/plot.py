"""A picture of a sweep: latency by load."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

from models.errors import InvalidInputError
from models.packed_files import atomic_writer
from service.load.loads import OpenLoop
from service.load.spread import Percentiles
from service.load.summary import LoadSummary

_SUFFIXES = frozenset({".png", ".svg", ".pdf"})
_PERCENTILES: dict[str, Callable[[Percentiles], float | None]] = {
    "p50": lambda spread: spread.p50_s,
    "p90": lambda spread: spread.p90_s,
    "p99": lambda spread: spread.p99_s,
    "p99.9": lambda spread: spread.p999_s,
}


def check_plot_path(path: Path) -> None:
    """See that a picture can be written there, before minutes are spent on it.

    Raises:
        InvalidInputError: it is no kind of picture that is drawn, or its folder is not there.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise InvalidInputError(
            f"plot is {str(path)!r}; its name must end in {', '.join(sorted(_SUFFIXES))}", parameter="plot"
        )
    if not path.parent.is_dir():
        raise InvalidInputError(f"plot is {str(path)!r}; there is no folder {path.parent}", parameter="plot")


def plot_sweep(summaries: Sequence[LoadSummary], path: Path) -> None:
    """Draw the percentiles of latency over the load, and write the picture; invalid points are hollow.

    Raises:
        FormatError: the file system refuses.
    """
    from matplotlib.figure import Figure  # slow to import; no global state: not pyplot

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, percentile in _PERCENTILES.items():
        points = [
            (_load_size(summary), 1e3 * value, summary.valid)
            for summary in summaries
            if summary.latency is not None and (value := percentile(summary.latency)) is not None
        ]
        if points:
            loads, times_ms, _ = zip(*sorted(points), strict=True)
            (line,) = axes.plot(loads, times_ms, marker="o", label=name)
            for load, time_ms, valid in points:
                if not valid:
                    axes.plot(load, time_ms, "o", color="white", markeredgecolor=line.get_color())
    is_open = any(isinstance(summary.load, OpenLoop) for summary in summaries)
    axes.set_xlabel("requests offered a second" if is_open else "clients")
    axes.set_ylabel("latency, ms")
    axes.set_yscale("log")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:].lower(), dpi=150)
    with atomic_writer(path) as write:
        write(picture.getvalue())


def _load_size(summary: LoadSummary) -> float:
    return summary.load.rate_per_s if isinstance(summary.load, OpenLoop) else summary.load.clients
