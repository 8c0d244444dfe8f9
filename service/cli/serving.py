"""`gramophone serve`: the service."""

from typing import Annotated

import typer

serve_app = typer.Typer()


def _print_settings(asked: bool) -> None:
    if asked:
        from service.console.settings import show_settings

        show_settings()
        raise typer.Exit


@serve_app.command()
def serve(
    registry: Annotated[
        str | None, typer.Option(help="Folder of published models, or URL. [GRAMOPHONE_REGISTRY]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [GRAMOPHONE_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [GRAMOPHONE_PORT]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto. [GRAMOPHONE_DEVICE]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, int8 or auto. [GRAMOPHONE_PRECISION]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that serve behind the port. [GRAMOPHONE_WORKERS]")
    ] = None,
    settings: Annotated[  # noqa: ARG001 - its callback does the work
        bool,
        typer.Option(
            "--settings", callback=_print_settings, is_eager=True, help="Print all settings there are."
        ),
    ] = False,
) -> None:
    """Serve the registry's models over HTTP. Settings are read from the environment; --settings lists them."""
    from service.app import serve as run
    from service.settings import read_settings

    run(
        read_settings(
            registry=registry, host=host, port=port, device=device, precision=precision, workers=workers
        )
    )
