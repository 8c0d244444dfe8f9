"""What `gramophone tune` prints for people."""

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.schemas.tune_replies import TuneReply

_console = Console()
_PRINT_INTERVAL_S = {True: 0.1, False: 10.0}
"""On a terminal, where a line replaces the one before it, and elsewhere."""


class TuningProgress:
    """How far tuning is and how long it still takes: a line that moves on a terminal, else one every ten seconds.

    It goes to standard error. Each kind of work has its own pace, so the time left is that of the kind under way.
    """

    def __init__(self) -> None:
        self._on_terminal = sys.stderr.isatty()
        self._description = ""
        self._began_s = self._printed_s = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Tell what is being done, how much of it is done, and how much there is."""
        now_s = time.monotonic()
        if what != self._description:
            self._description, self._began_s = what, now_s
        if not done or now_s - self._printed_s < _PRINT_INTERVAL_S[self._on_terminal]:
            return
        self._printed_s = now_s
        left_s = (now_s - self._began_s) * (total - done) / done
        line = f"{what}: {done / total:.0%}, {left_s:,.0f} s left"
        sys.stderr.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
        sys.stderr.flush()

    def finish(self) -> None:
        """Wipe the line that moves."""
        if self._on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def show_tuning(reply: TuneReply, saved: str | None, report: Path | None) -> None:
    """Scores, weights by fold, and what to do."""
    scores = Table(box=None, header_style="dim")
    for heading in (reply.metric.upper(), "first pass", "tuned, held out", "oracle", "lists"):
        scores.add_column(heading, justify="left" if heading == reply.metric.upper() else "right")
    rows = [(f"fold {i + 1}", f.baseline, f.tuned, f.oracle, f.num_lists) for i, f in enumerate(reply.folds)]
    for name, *values, count in [
        *rows,
        ("all", reply.baseline, reply.tried, reply.oracle, reply.counts.lists),
    ]:
        scores.add_row(str(name), *(f"{value:.2f}" for value in values), f"{count:,}")
    _console.print(scores)
    _console.print(_weights(reply))
    test = reply.significance
    _console.print(
        f"difference {test.difference:+.2f}, 95 % interval {test.low:+.2f} … {test.high:+.2f}, p = {test.p_value:.3f}"
    )
    _console.print(Text(reply.signature, style="dim"))
    if reply.ignored_features:
        _console.print(Text(f"not with every candidate, so left out: {', '.join(reply.ignored_features)}"))
    _console.print(Text(reply.reason, style="bold"))
    if saved is not None:
        _console.print(f"saved as profile [bold]{saved}[/]: gramophone rerank … --profile {saved}")
    if report is not None:
        _console.print(Text(f"report: {report / 'report.html'}"))


def _weights(reply: TuneReply) -> Table:
    table = Table(box=None, header_style="dim")
    table.add_column("feature")
    columns = [(reply.weights, reply.length_exponent)]
    columns += [(fold.weights, fold.length_exponent) for fold in reply.folds]
    for heading in ("weight", *(f"fold {i + 1}" for i in range(len(reply.folds)))):
        table.add_column(heading, justify="right")
    for name in reply.features:
        if any(weights.get(name) for weights, _ in columns):
            table.add_row(Text(name), *(f"{weights.get(name, 0):.4g}" for weights, _ in columns))
    table.add_row("[dim]length exponent[/]", *(f"[dim]{exponent:g}[/]" for _, exponent in columns))
    table.add_row("[dim]posterior scale[/]", f"[dim]{reply.posterior_scale:.4g}[/]")
    return table
