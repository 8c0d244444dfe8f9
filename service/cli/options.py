"""Shared options, exit codes and JSON output of the commands."""

import json
from typing import Annotated, Any

import typer

EXIT_BAD_INPUT = 2
EXIT_FAILED = 1

RegistryOption = Annotated[
    str,
    typer.Option(
        envvar="GRAMOPHONE_REGISTRY",
        help="Folder of published models, or URL such as s3://bucket/prefix.",
        show_default=True,
    ),
]
ModelArgument = Annotated[str, typer.Argument(help="Model: NAME, NAME@7 or NAME@champion.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or auto.")]
PrecisionOption = Annotated[
    str, typer.Option(help="What networks compute in: float32, int8 (CPU only), or auto, as served.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
CORPUS_HELP = "Text file (.gz, .xz, .zst too); may be repeated."
DEFAULT_REGISTRY = "registry"


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))
