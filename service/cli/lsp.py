"""Command `gramophone lsp`: the language server for editors."""

from pathlib import Path
from typing import Annotated

import typer

from models.errors import InvalidInputError, require_package
from service.cli.options import PublishedModels, with_option_groups

lsp_app = typer.Typer()


@lsp_app.command()
@with_option_groups
def lsp(
    *,
    model: Annotated[
        str | None,
        typer.Argument(metavar="{model}", help="Model: NAME, NAME@7 or NAME@champion. With --url optional."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Ask this service instead of loading a model: http://127.0.0.1:8000.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key of the service.")
    ] = None,
    dictionary: Annotated[
        Path | None,
        typer.Option(
            help="File of correct words, one per line; editors add words to it. Created if missing."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum completions.")] = 10,
    max_words: Annotated[int, typer.Option(min=1, max=8, help="Maximum words of an inline completion.")] = 3,
    threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Minimum error probability of reported words.")
    ] = 0.5,
    delay: Annotated[float, typer.Option(min=0, help="Seconds without typing before a check.")] = 0.4,
    published: PublishedModels,
) -> None:
    """Complete and check prose in editors, by the Language Server Protocol on standard input and output."""
    for package in ("pygls", "httpx"):
        require_package(package, "the language server")
    from service.local.language_server import ServerOptions, local_model, make_server, remote_model

    if url is not None:
        query = remote_model(url, model, key)
    elif model is not None:
        query = local_model(published.load(model), published.registry)
    else:
        raise InvalidInputError("give a model, or the --url of a service", parameter="model")
    make_server(query, ServerOptions(limit, max_words, threshold, delay, dictionary)).start_io()
