"""`gramophone models import-arpa | export-arpa`: n-gram models of other programs, and for them."""

from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import (
    CORPUS_HELP,
    DEFAULT_REGISTRY,
    JsonOption,
    ModelArgument,
    RegistryOption,
    print_json,
)

arpa_app = typer.Typer()


@arpa_app.command("import-arpa")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="ARPA file of KenLM, SRILM, IRSTLM, …; .gz, .xz, .zst too.")],
    name: Annotated[str, typer.Option(help="Name to publish the model under.")],
    corpus: Annotated[
        list[Path] | None, typer.Option(help=f"{CORPUS_HELP} Held-out text to report figures on.")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Lower-case texts first, for a model of lower-cased text.")
    ] = False,
    prune_entropy: Annotated[
        float,
        typer.Option(help="Drop n-grams whose loss raises the perplexity by a smaller share, such as 1e-8."),
    ] = 0.0,
    quantize_bits: Annotated[
        int | None, typer.Option(metavar="8", help="Store probabilities and back-offs in so many bits.")
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Publish the n-gram model of an ARPA file; its words are what stands between white space."""
    from training.commands.arpa import run_import_arpa

    result = run_import_arpa(
        file,
        name=name,
        registry=registry,
        corpus=corpus or (),
        lowercase=lowercase,
        prune_entropy=prune_entropy,
        quantize_bits=quantize_bits,
    )
    if as_json:
        print_json(result)
    else:
        from service.console.training import show_import

        show_import(result)


@arpa_app.command("export-arpa")
def export_arpa(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="File to write; packed if it ends in .gz, .xz or .zst.")],
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Write an n-gram model as an ARPA file, for KenLM, SRILM and others."""
    from training.commands.arpa import run_export_arpa

    result = run_export_arpa(model, file, registry=registry)
    if as_json:
        print_json(result)
    else:
        from service.console.training import show_export

        show_export(result)
