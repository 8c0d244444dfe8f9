"""Progress and result tables of `gramophone bench`."""

import sys
import time

from rich.console import Console
from rich.text import Text

from service.bench.plan import Load, OpenLoop
from service.bench.results import LoadSummary, Percentiles, Recording
from service.console.tables import result_table

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
        terms = recording.terms
        if terms.duration_s is not None:
            left_s = max(recording.window_start_s + terms.duration_s - now_s, 0.0)
            share, left = 1 - left_s / (terms.warmup_s + terms.duration_s), f", {left_s:.0f} s left"
        else:
            share, left = recording.num_due / (terms.num_requests or 1), ""
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


def print_load(summary: LoadSummary, load: Load) -> None:
    """Print rates and latency, for streams also the times of tokens, then errors and warnings."""
    console, name = Console(), load_name(load)
    failed = summary.requests - summary.answered
    latency = {"answers/s": _rate(summary.achieved_per_s), **_percentiles(summary.latency_ms)}
    latency["errors"] = f"{failed / summary.requests:.1%}" if failed else ""
    if summary.items_per_s > summary.achieved_per_s:
        latency["items/s"] = _rate(summary.items_per_s)
    tables = {"load": latency}
    if summary.ttft_ms:
        gaps = _percentiles(summary.itl_ms)
        gaps["per token ms"] = _ms(summary.tpot_ms.mean if summary.tpot_ms else None)
        gaps["tokens/s"] = _rate(summary.tokens_per_s)
        tables |= {"first token": _percentiles(summary.ttft_ms), "between tokens": gaps}
    for number, (title, cells) in enumerate(tables.items()):
        if number:
            console.print()
        table = result_table(title, *cells)
        table.add_row(Text(name if summary.valid else f"{name} ✗"), *cells.values())
        console.print(table)
    notes = [f"{error.count:,} {kind}: {error.example}" for kind, error in summary.errors.items()]
    notes += [f"✗ not valid: {reason}" for reason in summary.invalid_because]
    if summary.interrupted:
        notes.append(f"interrupted after {summary.duration_s:.1f} s")
    for note in notes:
        console.print(Text(f"{name}: {note}"))


def _percentiles(spread: Percentiles | None) -> dict[str, str]:
    """Format percentiles by column."""
    names = {"p50 ms": "p50", "p90": "p90", "p99": "p99", "p99.9": "p999"}
    return {column: _ms(getattr(spread, name, None)) for column, name in names.items()}


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.2f}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}"
