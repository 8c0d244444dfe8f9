"""Command `gramophone bench`: put load on any HTTP service and report the results."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from models.errors import InvalidInputError
from service.bench.plan import (
    Arrivals,
    ClosedLoop,
    Load,
    LoadSettings,
    OpenLoop,
    Request,
    Target,
    parse_duration_s,
)
from service.cli.options import EXIT_FAILED, JsonOption, print_json

if TYPE_CHECKING:
    from service.bench.driver import Sweep


UrlArgument = Annotated[
    str, typer.Argument(metavar="URL", help="Service, such as http://127.0.0.1:8000; https too.")
]
WorkloadOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What to ask: next-token (the default), score, rerank, generate, or completions, which any "
        "OpenAI-compatible service understands. The last two are streamed.",
    ),
]
BodyOption = Annotated[
    Path | None,
    typer.Option(
        "--body", metavar="FILE", help="Or: POST these bodies to just the URL; JSON, or a line each."
    ),
]
ModelOption = Annotated[str | None, typer.Option(help="Model that is asked. Default: the service's own.")]
TextOption = Annotated[
    Path | None,
    typer.Option("--text", metavar="FILE", help="Sentences to ask about. Default: Python's documentation."),
]
ItemsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Contexts, texts or candidates in a request. Default: 1; of rerank, 100."),
]
MaxTokensOption = Annotated[int | None, typer.Option(min=1, help="Tokens to generate. Default: 32.")]
FieldOption = Annotated[
    list[str] | None,
    typer.Option("--field", metavar="NAME=JSON", help="Put this into each body; may be repeated."),
]
RateOption = Annotated[
    str | None,
    typer.Option(
        "--rate", metavar="R[,R…]", help="Open loop: requests a second; several, one after the other."
    ),
]
ClientsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N[,N…]", help="Closed loop: so many clients, who ask again when they are answered."
    ),
]
ArrivalsOption = Annotated[Arrivals, typer.Option(help="Open loop: random gaps, or all the same.")]
DurationOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long each load is measured. [default: 10s]")
]
RequestsOption = Annotated[
    int | None, typer.Option("--requests", min=1, help="Or: how many requests of each load are measured.")
]
WarmupOption = Annotated[
    str, typer.Option(metavar="TIME", help="The same load before that, which is not counted.")
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option(
        "--objective",
        metavar="NAME=TIME",
        help="What a good answer keeps to, as latency=200ms; for streams also ttft (first token), itl (the longest "
        "gap between tokens), tpot (mean time per token after the first). Goodput is the answers a second that "
        "keep to all of them; may be repeated.",
    ),
]
ConnectionsOption = Annotated[
    int, typer.Option("--connections", min=1, help="Open loop: connections at most; who comes then waits.")
]
TimeoutOption = Annotated[str, typer.Option(metavar="TIME", help="After which a request is given up.")]
KeyOption = Annotated[
    str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key, sent as a bearer token.")
]
WorkloadSeedOption = Annotated[int, typer.Option(help="Of arrivals and texts: the same seed asks the same.")]
PlotOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw latency by load: a .png, .svg or .pdf file.")
]


bench_app = typer.Typer()
N = TypeVar("N", int, float)


@bench_app.command()
def bench(
    url: UrlArgument,
    workload: WorkloadOption = None,
    body: BodyOption = None,
    model: ModelOption = None,
    text: TextOption = None,
    items: ItemsOption = None,
    max_tokens: MaxTokensOption = None,
    fields: FieldOption = None,
    rate: RateOption = None,
    clients: ClientsOption = None,
    arrivals: ArrivalsOption = "poisson",
    duration: DurationOption = None,
    num_requests: RequestsOption = None,
    warmup: WarmupOption = "2s",
    objectives: ObjectiveOption = None,
    connections: ConnectionsOption = 512,
    timeout: TimeoutOption = "60s",
    key: KeyOption = None,
    seed: WorkloadSeedOption = 0,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put load on a service and report rates, latency percentiles, token times, errors and goodput.

    With --rate requests leave when they are due, whatever became of those before, and times count from then: what a
    stall does to those who come meanwhile is seen. With --clients each client waits for its answer: that tells the
    most a service can do, not how long its users wait. Percentiles are of answers and of requests that ran out of
    time; errors are counted by kind. Where the figures may be the generator's own, the reason is said. Ctrl-C
    reports what was measured until then. Times are written as 50ms, 10s or 2min.
    """
    from service.bench.driver import Sweep
    from service.bench.results import check_plot_path, parse_objective

    if body is None:
        workload = workload or "next-token"
        requests = _builtin_requests(workload, model, text, items, max_tokens, fields or (), seed)
    else:
        unused = {"workload": workload, "model": model, "text": text, "items": items, "field": fields}
        requests = _custom_requests(body, {**unused, "max-tokens": max_tokens})
    sweep = Sweep(
        target=Target.parse(url, key),
        requests=requests,
        loads=_loads(rate, clients, arrivals, seed),
        terms=_load_settings(duration, num_requests, warmup, connections, timeout),
        objectives=[parse_objective(objective) for objective in objectives or ()],
    )
    if plot is not None:
        check_plot_path(plot)
    _run(sweep, {"url": url, "workload": workload, "seed": seed}, plot, as_json=as_json)


def _run(sweep: "Sweep", header: Mapping[str, Any], plot: Path | None, *, as_json: bool) -> None:
    from service.bench.results import plot_sweep
    from service.console.bench import LoadProgress, print_load

    progress = LoadProgress()
    summaries = sweep.run(progress)
    progress.finish()
    if as_json:
        print_json({**header, **sweep.to_json(), "runs": [summary.to_json() for summary in summaries]})
    else:
        print_load(summaries, with_objectives=bool(sweep.objectives))
    if plot is not None:
        plot_sweep(summaries, plot)
    if not any(summary.num_answered for summary in summaries):
        due = any(summary.num_requests for summary in summaries)
        problem = "nothing was answered" if due else "answers to the warm-up's requests took all the time"
        typer.echo(f"gramophone: {problem}", err=True)
        raise typer.Exit(EXIT_FAILED)


def _builtin_requests(
    workload: str,
    model: str | None,
    text: Path | None,
    num_items: int | None,
    max_tokens: int | None,
    fields: Sequence[str],
    seed: int,
) -> list[Request]:
    from service.bench.workloads import WorkloadOptions, load_texts, parse_fields, workload_requests

    shape = WorkloadOptions(
        texts=() if text is None else load_texts(text),
        model=model,
        num_items=num_items,
        max_tokens=max_tokens or 32,
        fields=parse_fields(fields),
        seed=seed,
    )
    return workload_requests(workload, shape)


def _custom_requests(body: Path, unused: Mapping[str, object]) -> list[Request]:
    from service.bench.workloads import read_bodies

    for name, value in unused.items():
        if value is not None:
            raise InvalidInputError(
                f"--{name} shapes requests of ours, and --body is sent as it stands: leave one out",
                parameter=name,
            )
    return read_bodies(body)


def _load_settings(
    duration: str | None, num_requests: int | None, warmup: str, max_connections: int, timeout: str
) -> LoadSettings:
    if duration is None and num_requests is None:
        duration = "10s"
    return LoadSettings(
        duration_s=None if duration is None else parse_duration_s(duration, "duration"),
        num_requests=num_requests,
        warmup_s=parse_duration_s(warmup, "warmup"),
        max_connections=max_connections,
        timeout_s=parse_duration_s(timeout, "timeout"),
    )


def _loads(rates: str | None, clients: str | None, arrivals: Arrivals, seed: int) -> list[Load]:
    if (rates is None) == (clients is None):
        raise InvalidInputError(
            "give either --rate (requests a second, whatever the answers do) or --clients (who wait for theirs)",
            parameter="rate",
        )
    if rates is not None:
        return [OpenLoop(rate, arrivals, seed) for rate in _parse_numbers(rates, "rate", float)]
    return [ClosedLoop(count) for count in _parse_numbers(clients or "", "clients", int)]


def _parse_numbers(text: str, name: str, kind: Callable[[str], N]) -> list[N]:
    try:
        return [kind(number) for number in text.split(",")]
    except ValueError:
        raise InvalidInputError(
            f"{name} is {text!r}; it must be a number, or several with commas between", parameter=name
        ) from None
