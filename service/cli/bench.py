"""`gramophone bench`: load on any service, and what it was like."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from models.errors import InvalidInputError
from service.cli.bench_options import (
    ArrivalsOption,
    BodyFile,
    Clients,
    Duration,
    Fields,
    Items,
    Key,
    MaxConnections,
    MaxTokens,
    ModelName,
    NumRequests,
    Objectives,
    Plot,
    Rates,
    Seed,
    TextFile,
    Timeout,
    Url,
    Warmup,
    Workload,
)
from service.cli.options import EXIT_FAILED, JsonOption, print_json
from service.load.arrivals import Arrivals
from service.load.durations import read_duration_s
from service.load.loads import ClosedLoop, Load, OpenLoop, Terms
from service.load.target import Request, Target

if TYPE_CHECKING:
    from service.load.sweep import Sweep

bench_app = typer.Typer()
N = TypeVar("N", int, float)


@bench_app.command()
def bench(
    url: Url,
    workload: Workload = None,
    body: BodyFile = None,
    model: ModelName = None,
    text: TextFile = None,
    items: Items = None,
    max_tokens: MaxTokens = None,
    fields: Fields = None,
    rate: Rates = None,
    clients: Clients = None,
    arrivals: ArrivalsOption = "poisson",
    duration: Duration = None,
    num_requests: NumRequests = None,
    warmup: Warmup = "2s",
    objectives: Objectives = None,
    connections: MaxConnections = 512,
    timeout: Timeout = "60s",
    key: Key = None,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: JsonOption = False,
) -> None:
    """Put load on a service and report rates, latency percentiles, token times, errors and goodput.

    With --rate requests leave when they are due, whatever became of those before, and times count from then: what a
    stall does to those who come meanwhile is seen. With --clients each client waits for its answer: that tells the
    most a service can do, not how long its users wait. Percentiles are of answers and of requests that ran out of
    time; errors are counted by kind. Where the figures may be the generator's own, the reason is said. Ctrl-C
    reports what was measured until then. Times are written as 50ms, 10s or 2min.
    """
    from service.load.objectives import read_objective
    from service.load.plot import check_plot_path
    from service.load.sweep import Sweep

    if body is None:
        workload = workload or "next-token"
        requests = _built_in(workload, model, text, items, max_tokens, fields or (), seed)
    else:
        asked = {"workload": workload, "model": model, "text": text, "items": items, "field": fields}
        requests = _own(body, {**asked, "max-tokens": max_tokens})
    sweep = Sweep(
        target=Target.parse(url, key),
        requests=requests,
        loads=_loads(rate, clients, arrivals, seed),
        terms=_terms(duration, num_requests, warmup, connections, timeout),
        objectives=[read_objective(objective) for objective in objectives or ()],
    )
    if plot is not None:
        check_plot_path(plot)
    _run(sweep, {"url": url, "workload": workload, "seed": seed}, plot, as_json=as_json)


def _run(sweep: "Sweep", about: Mapping[str, Any], plot: Path | None, *, as_json: bool) -> None:
    from service.console.load import LoadProgress, show_load
    from service.load.plot import plot_sweep

    progress = LoadProgress()
    summaries = sweep.run(progress)
    progress.finish()
    if as_json:
        print_json({**about, **sweep.to_json(), "runs": [summary.to_json() for summary in summaries]})
    else:
        show_load(summaries, with_objectives=bool(sweep.objectives))
    if plot is not None:
        plot_sweep(summaries, plot)
    if not any(summary.num_answered for summary in summaries):
        asked = any(summary.num_requests for summary in summaries)
        problem = "nothing was answered" if asked else "answers to the warm-up's requests took all the time"
        typer.echo(f"gramophone: {problem}", err=True)
        raise typer.Exit(EXIT_FAILED)


def _built_in(
    workload: str,
    model: str | None,
    text: Path | None,
    num_items: int | None,
    max_tokens: int | None,
    fields: Sequence[str],
    seed: int,
) -> list[Request]:
    from service.load.bodies import read_fields
    from service.load.texts import read_texts
    from service.load.workloads import Shape, requests_of

    shape = Shape(
        texts=() if text is None else read_texts(text),
        model=model,
        num_items=num_items,
        max_tokens=max_tokens or 32,
        fields=read_fields(fields),
        seed=seed,
    )
    return requests_of(workload, shape)


def _own(body: Path, others: Mapping[str, object]) -> list[Request]:
    from service.load.bodies import read_bodies

    for name, value in others.items():
        if value is not None:
            raise InvalidInputError(
                f"--{name} shapes requests of ours, and --body is sent as it stands: leave one out",
                parameter=name,
            )
    return read_bodies(body)


def _terms(
    duration: str | None, num_requests: int | None, warmup: str, max_connections: int, timeout: str
) -> Terms:
    if duration is None and num_requests is None:
        duration = "10s"
    return Terms(
        duration_s=None if duration is None else read_duration_s(duration, "duration"),
        num_requests=num_requests,
        warmup_s=read_duration_s(warmup, "warmup"),
        max_connections=max_connections,
        timeout_s=read_duration_s(timeout, "timeout"),
    )


def _loads(rates: str | None, clients: str | None, arrivals: Arrivals, seed: int) -> list[Load]:
    if (rates is None) == (clients is None):
        raise InvalidInputError(
            "give either --rate (requests a second, whatever the answers do) or --clients (who wait for theirs)",
            parameter="rate",
        )
    if rates is not None:
        return [OpenLoop(rate, arrivals, seed) for rate in _numbers(rates, "rate", float)]
    return [ClosedLoop(count) for count in _numbers(clients or "", "clients", int)]


def _numbers(text: str, name: str, kind: Callable[[str], N]) -> list[N]:
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{name} is {text!r}; it must be a number, or several with commas between", parameter=name
        ) from None
