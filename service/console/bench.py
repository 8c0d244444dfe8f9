"""Progress and result tables of `gramophone bench`."""

import time

from rich.console import Console
from rich.text import Text

from service.bench.plan import Load, OpenLoop
from service.bench.results import LoadSummary, Percentiles, Recording
from service.console.tables import ProgressLine, format_number, print_table

_BAR_WIDTH = 20


def load_name(load: Load) -> str:
    """Name a load briefly, such as `50/s`, `200 typists` or `8 clients`."""
    if isinstance(load, OpenLoop) and load.typists:
        return f"{load.typists} typists"
    return f"{load.rate_per_s:g}/s" if isinstance(load, OpenLoop) else f"{load.clients} clients"


class LoadProgress(ProgressLine):
    """Progress bar of a load, with the time left; drawing it blocks reading replies."""

    def __call__(self, recording: Recording) -> None:
        """Show the progress of a run."""
        if not self.is_due:
            return
        terms = recording.terms
        if terms.duration_s is not None:
            left_s = max(recording.window_start_s + terms.duration_s - time.perf_counter(), 0.0)
            share, left = 1 - left_s / (terms.warmup_s + terms.duration_s), f", {left_s:.0f} s left"
        else:
            share, left = recording.num_due / (terms.num_requests or 1), ""
        count = len(recording.observations)
        errors = f", {', '.join(sorted(recording.examples))}" if recording.examples else ""
        done = round(share * _BAR_WIDTH)
        bar = f"{'━' * done}{'╌' * (_BAR_WIDTH - done)} " if self.on_terminal else ""
        self.write(f"{bar}{load_name(recording.load)}: {share:4.0%}{left} · {count:,} replies{errors}")


def print_load(summary: LoadSummary, load: Load) -> None:
    """Print rates, latency, token times of streams, errors and warnings."""
    console, name = Console(), load_name(load)
    failed = summary.requests - summary.answered
    latency = {"answers/s": format_number(summary.achieved_per_s, 1), **_percentiles(summary.latency_ms)}
    latency["errors"] = f"{failed / summary.requests:.1%}" if failed else ""
    if summary.items_per_s > summary.achieved_per_s:
        latency["items/s"] = format_number(summary.items_per_s, 1)
    tables = {"load": latency}
    if summary.ttft_ms:
        gaps = _percentiles(summary.itl_ms)
        gaps["per token ms"] = _ms(summary.tpot_ms.mean if summary.tpot_ms else None)
        gaps["tokens/s"] = format_number(summary.tokens_per_s, 1)
        tables |= {"first token": _percentiles(summary.ttft_ms), "between tokens": gaps}
    for number, (title, cells) in enumerate(tables.items()):
        if number:
            console.print()
        print_table([title, *cells], [[name if summary.valid else f"{name} ✗", *cells.values()]])
    notes = [f"{error.count:,} {kind}: {error.example}" for kind, error in summary.errors.items()]
    notes += [f"✗ not valid: {reason}" for reason in summary.invalid_because]
    if summary.interrupted:
        notes.append(f"interrupted after {summary.duration_s:.1f} s")
    for note in notes:
        console.print(Text(f"{name}: {note}"))


def _percentiles(spread: Percentiles | None) -> dict[str, str]:
    names = {"p50 ms": "p50", "p90": "p90", "p99": "p99", "p99.9": "p999"}
    return {column: _ms(getattr(spread, name, None)) for column, name in names.items()}


def _ms(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:,.2f}"
