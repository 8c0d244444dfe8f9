"""Options of `gramophone bench`."""

from pathlib import Path
from typing import Annotated

import typer

from service.load.arrivals import Arrivals

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
