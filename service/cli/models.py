"""Commands `gramophone models …`: inspect and change a registry; import and export ARPA files."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from models.errors import DomainError, InputError
from service.cli.options import (
    CORPUS_HELP,
    DEFAULT_REGISTRY,
    EXIT_FAILED,
    DeviceOption,
    JsonOption,
    ModelArgument,
    NameOption,
    RegistryOption,
    print_json,
)

models_app = typer.Typer(
    name="models",
    help="List, inspect, verify, promote, delete, restore, import and export published models.",
    no_args_is_help=True,
)
_RESTORE_OUTCOMES = {"restored": "restored", "kept": "differs and was kept", "same": "already present"}
_HeldOutOption = Annotated[
    list[Path] | None, typer.Option(help=f"{CORPUS_HELP} Held-out text to evaluate on.")
]


@models_app.command("list")
def models_list(registry: RegistryOption = DEFAULT_REGISTRY, as_json: JsonOption = False) -> None:
    """List models with their versions, aliases and held-out perplexities."""
    from service.console.tables import show_models
    from service.local import inventory

    rows = inventory.list_versions(registry)
    print_json(rows) if as_json else show_models(rows)


@models_app.command("show")
def models_show(
    model: ModelArgument, registry: RegistryOption = DEFAULT_REGISTRY, as_json: JsonOption = False
) -> None:
    """Show a version's model card, or with --json its manifest, metrics and provenance."""
    from service.console.tables import show_card
    from service.local import inventory

    if as_json:
        print_json(inventory.version_details(registry, model))
    else:
        show_card(inventory.version_card(registry, model))


@models_app.command("verify")
def models_verify(
    model: Annotated[str | None, typer.Argument(help="Model. Default: all versions of all models.")] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
) -> None:
    """Check every hash and replay the golden test; exit with 1 if a check fails."""
    from service.local import inventory

    failed = False
    for address, problem in inventory.verify_versions(registry, model, device=device):
        typer.echo(f"{address}: {problem or 'ok'}")
        failed |= problem is not None
    if failed:
        raise typer.Exit(EXIT_FAILED)


@models_app.command("promote")
def models_promote(
    model: Annotated[
        str, typer.Argument(help="Version: NAME@7, NAME@champion, or NAME for the served version.")
    ],
    alias: Annotated[str, typer.Option(help="Alias to move.")] = "champion",
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Point an alias at a version, atomically; name the profiles that were tuned on another one."""
    from models.checkpoint.registry import open_registry
    from models.reranking.ranking import ProfileStore
    from service.local.ask import report_replaced

    store, profiles = open_registry(registry), ProfileStore(registry)
    version = store.resolve(model)
    store.set_alias(version.name, alias, version.number)
    typer.echo(f"{version.name}@{alias} now points to {version.address}")
    for name in profiles.names():
        with suppress(DomainError):  # a damaged profile is reported where it is used
            report_replaced(name, profiles.read(name).replaced_versions([version.address]))


@models_app.command("default")
def models_default(
    name: Annotated[
        str | None, typer.Argument(help="New default. Without it, print the current default.")
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Show or set the default model, which is used by requests that name no model.

    Running services follow the change, unless GRAMOPHONE_DEFAULT_MODEL is set.
    """
    from models.checkpoint.manifest import check_name, choose_default
    from models.checkpoint.registry import open_registry

    store = open_registry(registry)
    if name is not None:
        check_name(name)
        store.set_default(name)
    names = store.models()
    if not names:
        raise InputError(f"the registry {store.location} holds no model", param="registry")
    default = choose_default(names, store.default())
    typer.echo(f"{default.name} is the default: {default.reason}")


@models_app.command("restore")
def models_restore(
    backup: Annotated[
        str, typer.Argument(metavar="BACKUP", help="Folder or URL of the backup (a copy of a registry).")
    ],
    differing: Annotated[
        Literal["refuse", "keep", "replace"],
        typer.Option(
            help="Policy for entries that differ from the backup: refuse restores nothing, keep leaves them "
            "unchanged, replace overwrites them."
        ),
    ] = "refuse",
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Restore versions, aliases, the default, profiles, calibrations and error tables; services can keep running.

    Existing entries stay; missing or damaged ones are copied from the backup, verified, and renamed into place. A
    service that has loaded a replaced version continues with the old one until it is restarted.
    """
    from models.checking.error_model import CalibrationStore, ErrorTableStore
    from models.checkpoint.registry import open_registry, registry_folder
    from models.checkpoint.restore import restore_backup
    from models.reranking.ranking import ProfileStore
    from service.console.evaluation import TuningProgress

    folder = registry_folder(backup)
    if folder is not None and not folder.is_dir():
        raise InputError(f"there is no backup at {backup}", param="backup")
    source, target = open_registry(backup), open_registry(registry, create=True)
    with TuningProgress() as progress:
        documents = ProfileStore, CalibrationStore, ErrorTableStore
        result = restore_backup(source, target, documents, differing=differing, progress=progress)
    for what, names in result._asdict().items():
        if names:
            typer.echo(f"{_RESTORE_OUTCOMES[what]}: {', '.join(names)}")


@models_app.command("sweep")
def models_sweep(
    older_than_days: Annotated[
        float, typer.Option(min=0.0, help="Minimum age of removed files; newer files may still be in use.")
    ] = 7.0,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Remove files left by interrupted publications and deleted versions."""
    from models.checkpoint.registry import open_registry

    removed = open_registry(registry).sweep(older_than_s=older_than_days * 86_400)
    typer.echo(f"{removed} leftovers removed")


@models_app.command("delete")
def models_delete(
    model: Annotated[str, typer.Argument(help="Version, such as NAME@7.")],
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Delete one version by its number; refused while an alias points to it."""
    from models.checkpoint.registry import open_registry

    if not model.partition("@")[2].isdecimal():
        raise InputError(f"delete takes NAME@NUMBER, given {model!r}", param="model")
    store = open_registry(registry)
    version = store.resolve(model)
    store.delete(version.name, version.number)
    typer.echo(f"{version.address} is deleted; its number will not be used again")


@models_app.command("import-arpa")
def import_arpa(
    file: Annotated[Path, typer.Argument(help="ARPA file of any toolkit, also .gz, .xz, .zst or .bz2.")],
    name: NameOption,
    corpus: _HeldOutOption = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Lower-case input, for a model of lower-cased text.")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.model",
            help="SentencePiece model, for an ARPA file of its pieces. Default: split texts at white space.",
        ),
    ] = None,
    encoding: Annotated[
        str,
        typer.Option(
            metavar="pieces|nemo",
            help="Spelling of pieces in the ARPA file: as they are, or as NeMo's characters (piece id + 100).",
        ),
    ] = "pieces",
    prune_entropy: Annotated[
        float,
        typer.Option(help="Drop n-grams whose removal raises perplexity by less than this, such as 1e-8."),
    ] = 0.0,
    quantize_bits: Annotated[
        int | None, typer.Option(metavar="8", help="Bits per stored probability and back-off. Default: 32.")
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Publish the n-gram model of an ARPA file of words, or of SentencePiece pieces."""
    from service.console.evaluation import show_import
    from training.publish import run_import_arpa

    result = run_import_arpa(
        file,
        name=name,
        registry=registry,
        corpus=corpus or (),
        lowercase=lowercase,
        pieces_of=tokenizer,
        encoding=encoding,
        prune_entropy=prune_entropy,
        quantize_bits=quantize_bits,
    )
    print_json(result) if as_json else show_import(result)


@models_app.command("import-hf")
def import_hf(
    folder: Annotated[
        Path, typer.Argument(help="Folder with config.json, weights in safetensors and tokenizer.json.")
    ],
    name: NameOption,
    corpus: _HeldOutOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Publish a pretrained causal language model in Hugging Face's format, such as GPT-2 or Llama."""
    from service.console.evaluation import show_import
    from training.publish import run_import_hf

    result = run_import_hf(folder, name=name, registry=registry, corpus=corpus or ())
    print_json(result) if as_json else show_import(result)


@models_app.command("export-arpa")
def export_arpa(
    model: ModelArgument,
    file: Annotated[
        Path, typer.Argument(help="File to write; compressed if it ends in .gz, .xz, .zst or .bz2.")
    ],
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Write an n-gram model as an ARPA file for KenLM, SRILM and other tools."""
    from service.console.evaluation import show_export
    from training.publish import run_export_arpa

    result = run_export_arpa(model, file, registry=registry)
    print_json(result) if as_json else show_export(result)
