"""Command `gramophone bench`: put load on any HTTP service and report the results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

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
RateOption = Annotated[float | None, typer.Option("--rate", help="Open loop: requests per second.")]
ClientsOption = Annotated[
    int | None,
    typer.Option(help="Closed loop: clients that each wait for their answer before they ask again."),
]
ArrivalsOption = Annotated[Arrivals, typer.Option(help="Open loop: random gaps, or all the same.")]
DurationOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Length of the measurement. [default: 10s]")
]
RequestsOption = Annotated[
    int | None, typer.Option("--requests", min=1, help="Or: number of measured requests.")
]
WarmupOption = Annotated[
    str, typer.Option(metavar="TIME", help="Length of the same load before it, not measured.")
]
ConnectionsOption = Annotated[
    int,
    typer.Option("--connections", min=1, help="Open loop: maximum open connections; further requests queue."),
]
TimeoutOption = Annotated[str, typer.Option(metavar="TIME", help="After which a request is given up.")]
KeyOption = Annotated[
    str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key, sent as a bearer token.")
]
WorkloadSeedOption = Annotated[int, typer.Option(help="Of arrivals and texts: the same seed asks the same.")]


bench_app = typer.Typer()


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
    connections: ConnectionsOption = 512,
    timeout: TimeoutOption = "60s",
    key: KeyOption = None,
    seed: WorkloadSeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Put load on a service and report rates, latency percentiles, token times and errors.

    With --rate requests leave when they are due, whatever became of those before, and times count from then, so
    what a stall does to later requests is seen. With --clients each client waits for its answer: that shows the
    most a service can do, not how long its users wait. Percentiles are of answers and of requests that ran out of
    time; errors are counted by kind. Where the figures may be the generator's own, the reason is given. Ctrl-C
    reports what was measured until then. Times are written as 50ms, 10s or 2min.
    """
    from service.bench.driver import probe, run_load
    from service.bench.results import summarise_load
    from service.console.bench import LoadProgress, print_load

    if body is None:
        workload = workload or "next-token"
        requests = _builtin_requests(workload, model, text, items, max_tokens, fields or (), seed)
    else:
        unused = {"workload": workload, "model": model, "text": text, "items": items, "field": fields}
        requests = _custom_requests(body, {**unused, "max-tokens": max_tokens})
    target, load = Target.parse(url, key), _load(rate, clients, arrivals, seed)
    terms = _load_settings(duration, num_requests, warmup, connections, timeout)
    probe(target, requests[0], terms.timeout_s)
    progress = LoadProgress()
    summary = summarise_load(run_load(target, requests, load, terms, watch=progress))
    progress.finish()
    if as_json:
        settings = {
            "url": url,
            "workload": workload,
            "seed": seed,
            "warmup_s": terms.warmup_s,
            "max_connections": terms.max_connections,
            "timeout_s": terms.timeout_s,
        }
        print_json({**settings, "runs": [summary.to_json()]})
    else:
        print_load(summary)
    if not summary.num_answered:
        problem = (
            "nothing was answered" if summary.num_requests else "answers to the warm-up took all the time"
        )
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


def _load(rate: float | None, clients: int | None, arrivals: Arrivals, seed: int) -> Load:
    if (rate is None) == (clients is None):
        raise InvalidInputError(
            "give either --rate (requests per second, whatever the answers do) or --clients (who wait for theirs)",
            parameter="rate",
        )
    return OpenLoop(rate, arrivals, seed) if rate is not None else ClosedLoop(clients or 0)
