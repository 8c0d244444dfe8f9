"""Progress and result tables of `gramophone bench`."""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.bench.plan import Load, OpenLoop
from service.bench.results import LoadSummary, Percentiles, Recording

_BAR_WIDTH = 20
_LOG_INTERVAL_S = 10.0


def load_name(load: Load) -> str:
    """Name a load briefly, such as `50/s` or `8 clients`."""
    return f"{load.rate_per_s:g}/s" if isinstance(load, OpenLoop) else f"{load.clients} clients"


class LoadProgress:
    """Progress on standard error: a bar with the time left on a terminal, else a line every ten seconds.

    It is written directly, in microseconds: no reply is read while the bar is drawn.
    """

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._printed_s = time.perf_counter()

    def __call__(self, recording: Recording) -> None:
        """Show the progress of a run."""
        now_s = time.perf_counter()
        if not self._on_terminal and now_s - self._printed_s < _LOG_INTERVAL_S:
            return
        self._printed_s = now_s
        share, left = _progress(recording, now_s)
        count = len(recording.observations)
        errors = f", {', '.join(sorted(recording.examples))}" if recording.examples else ""
        line = f"{load_name(recording.load)}: {share:4.0%}{left} · {count:,} answers{errors}"
        if self._on_terminal:
            done = round(share * _BAR_WIDTH)
            sys.stderr.write(f"\r\x1b[K{'━' * done}{'╌' * (_BAR_WIDTH - done)} {line}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def finish(self) -> None:
        """Clear the bar."""
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _progress(recording: Recording, now_s: float) -> tuple[float, str]:
    """Return the completed share, and the time left in words."""
    terms = recording.terms
    if terms.duration_s is not None:
        left_s = max(recording.window_start_s + terms.duration_s - now_s, 0.0)
        return 1 - left_s / (terms.warmup_s + terms.duration_s), f", {left_s:.0f} s left"
    return recording.num_due / (terms.num_requests or 1), ""


def print_load(summary: LoadSummary) -> None:
    """Print rates and latency, for streams also the times of tokens, then errors and warnings."""
    console = Console()
    failed = summary.num_requests - summary.num_answered
    latency = {"answers/s": _rate(summary.achieved_per_s), **_percentiles(summary.latency)}
    latency["errors"] = f"{failed / summary.num_requests:.1%}" if failed else ""
    if summary.items_per_s > summary.achieved_per_s:
        latency["items/s"] = _rate(summary.items_per_s)
    console.print(_table("load", summary, latency))
    if summary.ttft:
        gaps = _percentiles(summary.itl)
        gaps["per token ms"] = _ms(summary.tpot.mean_s if summary.tpot else None)
        gaps["tokens/s"] = _rate(summary.tokens_per_s)
        for title, cells in (("first token", _percentiles(summary.ttft)), ("between tokens", gaps)):
            console.print()
            console.print(_table(title, summary, cells))
    for note in _warnings(summary):
        console.print(Text(f"{load_name(summary.load)}: {note}"))


def _warnings(summary: LoadSummary) -> list[str]:
    notes = [f"{error.count:,} {kind}: {error.example}" for kind, error in summary.errors.items()]
    notes += [f"✗ not valid: {reason}" for reason in summary.invalid_because]
    if summary.interrupted:
        notes.append(f"interrupted after {summary.duration_s:.1f} s")
    return notes


def _table(title: str, summary: LoadSummary, cells: Mapping[str, str]) -> Table:
    """Make a table of one row; it is marked if the figures are not valid."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True)
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(Text(load_name(summary.load) + ("" if summary.valid else " ✗")), *cells.values())
    return table


def _percentiles(spread: Percentiles | None) -> dict[str, str]:
    """Format percentiles in milliseconds, by column."""
    return {
        "p50 ms": _ms(spread.p50_s if spread else None),
        "p90": _ms(spread.p90_s if spread else None),
        "p99": _ms(spread.p99_s if spread else None),
        "p99.9": _ms(spread.p999_s if spread else None),
    }


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}"
