"""Command `gramophone bench`: load-test any HTTP service and report the results."""

from pathlib import Path
from typing import Annotated

import typer

from models.errors import InputError
from service.bench.plan import Arrivals, ClosedLoop, Load, LoadSettings, OpenLoop, Target, parse_duration_s
from service.cli.options import EXIT_FAILED, JsonOption, print_json

bench_app = typer.Typer()
_TYPED, _PAUSE = "autocomplete", "200ms"


@bench_app.command()
def bench(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Service, such as http://127.0.0.1:8000 or an https URL.")
    ],
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Kind of request: next-token (default), score, rerank, autocomplete (each key of texts), generate, or "
            "completions, for any OpenAI-compatible service. The last two are streamed.",
        ),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead of --workload: bodies to POST to URL; JSON or JSON lines."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model of the requests. Default: the service's default model.")
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sentences of the requests. Default: Python's documentation."),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(min=1, help="Contexts, texts or candidates per request. Default: 1; rerank: 100."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens to generate. Default: 32.")] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="NAME=JSON", help="Field to set in each body; may be repeated."),
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    clients: Annotated[
        int | None,
        typer.Option(help="Closed loop: concurrent clients; each waits for a reply before its next request."),
    ] = None,
    typists: Annotated[
        int | None,
        typer.Option(
            help="Open loop of autocomplete: typists, each a session, who press a key after each --pause; a key before "
            "the reply to the last supersedes that (http_409).",
        ),
    ] = None,
    pause: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"With --typists: time between keys. [default: {_PAUSE}]"),
    ] = None,
    arrivals: Annotated[Arrivals, typer.Option(help="Open loop: random or constant intervals.")] = "poisson",
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Length of the measurement. [default: 10s]")
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="Instead of --duration: measured requests.")
    ] = None,
    warmup: Annotated[
        str, typer.Option(metavar="TIME", help="Length of the warm-up before the measurement.")
    ] = "2s",
    connections: Annotated[
        int,
        typer.Option(min=1, help="Open loop: maximum open connections; further requests queue."),
    ] = 512,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Timeout per request.")] = "60s",
    key: Annotated[
        str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key, sent as a bearer token.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and texts.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Load-test a service and report rates, latency percentiles, token times and errors.

    With --rate, requests are sent on schedule even if earlier ones are unanswered. Latency counts from the scheduled
    time, so it includes the delay that a stall causes for later requests. With --clients, each client waits for its
    reply: this measures the maximum throughput, not the latency that users see. Percentiles cover replies and
    timeouts; errors are counted by kind. Figures that the generator may have distorted are marked with the reason.
    Ctrl-C reports the figures so far. Times are written as 50ms, 10s or 2min.
    """
    from service.bench.driver import probe, run_load
    from service.bench.results import summarise_load
    from service.bench.workloads import load_texts, parse_fields, read_bodies, workload_requests
    from service.console.bench import LoadProgress, print_load

    load = _load(rate, clients, typists, pause, arrivals, seed)
    if body is None:
        workload = workload or ("next-token" if typists is None else _TYPED)
        if typists is not None and workload != _TYPED:
            raise InputError(f"--typists requires --workload {_TYPED}, given {workload}", param="typists")
        requests = workload_requests(
            workload,
            texts=() if text is None else load_texts(text),
            model=model,
            num_items=items,
            max_tokens=max_tokens or 32,
            fields=parse_fields(fields or ()),
            seed=seed,
            typists=typists,
        )
    else:
        unused = {"workload": workload, "model": model, "text": text, "items": items, "field": fields}
        for name, value in {**unused, "max-tokens": max_tokens, "typists": typists}.items():
            if value is not None:
                raise InputError(
                    f"--{name} shapes requests of a workload, but --body is sent unchanged: give only one of them",
                    param=name,
                )
        requests = read_bodies(body)
    target = Target.parse(url, key)
    if duration is None and num_requests is None:
        duration = "10s"
    terms = LoadSettings(
        duration_s=None if duration is None else parse_duration_s(duration, "duration"),
        num_requests=num_requests,
        warmup_s=parse_duration_s(warmup, "warmup"),
        max_connections=connections,
        timeout_s=parse_duration_s(timeout, "timeout"),
    )
    probe(target, requests[0], terms.timeout_s)
    with LoadProgress() as progress:
        summary = summarise_load(run_load(target, requests, load, terms, watch=progress))
    if as_json:
        settings = {"url": url, "workload": workload, "seed": seed}
        settings |= {name: getattr(terms, name) for name in ("warmup_s", "max_connections", "timeout_s")}
        print_json({**settings, "runs": [summary.model_dump(by_alias=True)]})
    else:
        print_load(summary, load)
    if not summary.answered:
        problem = "no request got a reply" if summary.requests else "the warm-up requests took all the time"
        typer.echo(f"gramophone: {problem}", err=True)
        raise typer.Exit(EXIT_FAILED)


def _load(
    rate: float | None,
    clients: int | None,
    typists: int | None,
    pause: str | None,
    arrivals: Arrivals,
    seed: int,
) -> Load:
    """Return the load that one of the options asks for."""
    if [rate, clients, typists].count(None) != 2:
        problem = "give one of --rate (requests per second), --clients (who wait for replies) and --typists"
        raise InputError(problem, param="rate")
    if pause is not None and typists is None:
        raise InputError(f"--pause is {pause}, but it is a time between keys of --typists", param="pause")
    if typists is not None:
        return OpenLoop.of_typists(typists, parse_duration_s(pause or _PAUSE, "pause"))
    return OpenLoop(rate, arrivals, seed) if rate is not None else ClosedLoop(clients or 0)
