"""Progress and result tables of `gramophone bench`."""

import sys
import time
from collections.abc import Mapping, Sequence

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


def print_load(summaries: Sequence[LoadSummary], *, with_objectives: bool) -> None:
    """Print a row per load, for streams also the times of tokens, then errors and warnings."""
    console = Console()
    console.print(_latency_table(summaries, with_objectives=with_objectives))
    if any(summary.ttft for summary in summaries):
        console.print()
        console.print(_ttft_table(summaries))
        console.print()
        console.print(_itl_table(summaries))
    for summary in summaries:
        for note in _warnings(summary):
            console.print(Text(f"{load_name(summary.load)}: {note}"))


def _latency_table(summaries: Sequence[LoadSummary], *, with_objectives: bool) -> Table:
    columns = {"answers/s": [_rate(summary.achieved_per_s) for summary in summaries]}
    columns |= _percentiles([summary.latency for summary in summaries])
    columns["errors"] = [_share(s.num_requests - s.num_answered, s.num_requests) for s in summaries]
    if with_objectives:
        columns["good/s"] = [_rate(summary.goodput_per_s) for summary in summaries]
    if any(summary.items_per_s > summary.achieved_per_s for summary in summaries):
        columns["items/s"] = [_rate(summary.items_per_s) for summary in summaries]
    return _table("load", summaries, columns)


def _ttft_table(summaries: Sequence[LoadSummary]) -> Table:
    return _table("first token", summaries, _percentiles([summary.ttft for summary in summaries]))


def _itl_table(summaries: Sequence[LoadSummary]) -> Table:
    columns = _percentiles([summary.itl for summary in summaries])
    columns["per token ms"] = [_ms(summary.tpot.mean_s if summary.tpot else None) for summary in summaries]
    columns["tokens/s"] = [_rate(summary.tokens_per_s) for summary in summaries]
    return _table("between tokens", summaries, columns)


def _warnings(summary: LoadSummary) -> list[str]:
    notes = [f"{error.count:,} {kind}: {error.example}" for kind, error in summary.errors.items()]
    notes += [f"✗ not valid: {reason}" for reason in summary.invalid_because]
    if summary.interrupted:
        notes.append(f"interrupted after {summary.duration_s:.1f} s")
    return notes


def _table(title: str, summaries: Sequence[LoadSummary], columns: Mapping[str, Sequence[str]]) -> Table:
    """Make a table with a row per load; invalid ones are marked."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(title, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    for summary, cells in zip(summaries, zip(*columns.values(), strict=True), strict=True):
        table.add_row(Text(load_name(summary.load) + ("" if summary.valid else " ✗")), *cells)
    return table


def _percentiles(spreads: Sequence[Percentiles | None]) -> dict[str, list[str]]:
    """Format percentiles as columns, in milliseconds."""
    return {
        "p50 ms": [_ms(spread.p50_s if spread else None) for spread in spreads],
        "p90": [_ms(spread.p90_s if spread else None) for spread in spreads],
        "p99": [_ms(spread.p99_s if spread else None) for spread in spreads],
        "p99.9": [_ms(spread.p999_s if spread else None) for spread in spreads],
    }


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.2f}"


def _rate(per_s: float) -> str:
    return f"{per_s:,.1f}"


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if count else ""
