"""Commands `gramophone serve`, `lsp`, `precompile` and `keys create`: servers, compiled kernels, API keys."""

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from models.errors import InputError, require_package
from service.cli.ask import read_words, split_dictionaries
from service.cli.options import JsonOption, PublishedModels, option_groups, print_json

_POLL_S = 0.1
_TRAINING_NICENESS = 10
"""Priority of a training beside requests: below theirs."""

serve_app = typer.Typer()
keys_app = typer.Typer(name="keys", help="Create API keys.", no_args_is_help=True)


@serve_app.command()
def serve(
    registry: Annotated[
        str | None, typer.Option(help="Folder of published models, or URL. [GRAMOPHONE_REGISTRY]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [GRAMOPHONE_HOST]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. [GRAMOPHONE_PORT]")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or auto. [GRAMOPHONE_DEVICE]")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float32, int8, bfloat16 or auto. [GRAMOPHONE_PRECISION]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes that share the port. [GRAMOPHONE_WORKERS]")
    ] = None,
    settings: Annotated[bool, typer.Option("--settings", help="Print all settings.")] = False,
) -> None:
    """Serve the registry's models over HTTP. Settings are read from the environment; --settings lists them."""
    if settings:
        from service.console.tables import show_settings

        show_settings()
        return
    # until the models are loaded: collections during imports take a tenth of the time
    gc.disable()
    from service.app import serve as run
    from service.settings import read_settings

    run(
        read_settings(
            registry=registry, host=host, port=port, device=device, precision=precision, workers=workers
        )
    )


def serve_while_training(registry: str, *, trains: bool) -> None:
    """Serve a registry from its first model on; the default models are trained by a process of its own.

    The end of the service ends the training, which a later quickstart continues.

    Args:
        registry: folder or address of the registry, which may be empty.
        trains: whether to train at all.
    """
    gc.disable()
    command = [sys.executable, "-m", "service.cli", "quickstart", "--registry", registry]
    # Ctrl-C is for the service: in a training, it would mean to publish what has been learned so far
    trainer = subprocess.Popen(command, start_new_session=True) if trains else None  # noqa: S603 - this program
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        from models.checkpoint.registry import open_registry
        from models.precompile import DECODING, PIECES, compile_groups
        from service.app import serve as run
        from service.settings import read_settings

        settings, store = read_settings(registry=registry), open_registry(registry, create=True)
        if trainer is not None and settings.workers == 1:  # processes cannot be forked beside threads
            compile_groups([PIECES, DECODING])  # what the service needs and the training does not
        while trainer is not None and not store.models():
            if trainer.poll() is not None:
                raise typer.Exit(trainer.returncode or 1)
            time.sleep(_POLL_S)
        if trainer is not None:
            os.setpriority(os.PRIO_PROCESS, trainer.pid, _TRAINING_NICENESS)
        run(settings)
    finally:
        if trainer is not None and trainer.poll() is None:
            trainer.terminate()
            trainer.wait()


@serve_app.command()
def precompile(
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL",
            help="x86-64-v3, x86-64-v3-vnni or x86-64-v4-vnni; repeatable. Default: all of this machine.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder to write to. Default: the installed package."),
    ] = None,
) -> None:
    """Compile the kernels for serving in advance, for levels of this machine's processor.

    Compiled kernels are valid on every machine of the level with the same versions of Gramophone, Python, numba and
    NumPy. Example, for an image that runs on most x86 servers:

        gramophone precompile --target x86-64-v3 --target x86-64-v4-vnni
    """
    from models.kernels.compilation import PACKAGED
    from models.precompile import precompile_levels

    for level in precompile_levels(target, folder or PACKAGED):
        typer.echo(f"{level}: compiled into {folder or PACKAGED}")


@serve_app.command()
@option_groups
def lsp(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="{model}",
            help="Model: NAME, NAME@7 or NAME@champion; several, such as one for each language, are weighted at each "
            "word. Optional with --url.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Service to ask instead of loading a model, such as http://127.0.0.1:8000."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(envvar="GRAMOPHONE_API_KEY", help="API key of the service.")
    ] = None,
    dictionary: Annotated[
        list[Path] | None,
        typer.Option(
            help="List of correct words, one per line, or a Hunspell dictionary FILE.dic with FILE.aff beside it (not "
            "with --url); may be repeated. Editors add words to the first list, which is created if missing."
        ),
    ] = None,
    word_lists: Annotated[
        list[str] | None,
        typer.Option(
            "--wordlist", help="Word list of the service, with --url: further correct words; may be repeated."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum completions.")] = 10,
    max_words: Annotated[int, typer.Option(min=1, help="Maximum words of an inline completion.")] = 3,
    threshold: Annotated[float, typer.Option(help="Minimum error probability of reported words.")] = 0.5,
    delay: Annotated[float, typer.Option(min=0, help="Seconds without typing before a check.")] = 0.4,
    published: PublishedModels,
) -> None:
    """Complete and check prose in editors, by the Language Server Protocol on standard input and output."""
    for package in ("pygls", "httpx"):
        require_package(package, "the language server")
    from models.checking.lexicon import HunspellDictionary
    from service.local.language_server import ProseServer, ServerOptions, local_models, remote_models

    lists, hunspell = split_dictionaries(dictionary or ())
    if url is not None and hunspell:
        problem = f"{hunspell[0]}: with --url, give no Hunspell dictionary; a model reads it, not a service"
        raise InputError(problem, param="dictionary")
    if url is None and word_lists:
        raise InputError.of("wordlist", f"is {word_lists[0]!r}; word lists are a service's, give its --url")
    if url is not None:
        query = remote_models(url, models or (), key)
    elif models:
        read = tuple(map(HunspellDictionary, hunspell))
        query = local_models(published.call(*models, hunspell=read), models)
    else:
        raise InputError("give a model, or the --url of a service", param="model")
    words = [word for file in lists if file != lists[0] or file.exists() for word in read_words(file)]
    options = ServerOptions(
        limit, max_words, threshold, delay, words, word_lists or (), next(iter(lists), None)
    )
    ProseServer(query, options).start_io()


@keys_app.callback()
def _group() -> None:
    # without a callback, typer would merge the only command into its group
    """Create API keys."""


@keys_app.command("create")
def create(
    name: Annotated[str, typer.Option(help="Owner of the key, shown in the log.")],
    scopes: Annotated[
        str,
        typer.Option(
            help="Comma-separated scopes: infer, every path below /v1; metrics; admin, every path below /admin. No "
            "scope includes another."
        ),
    ] = "infer",
    as_json: JsonOption = False,
) -> None:
    """Create a key. Print it once, on standard error; print the line for the key file on standard output.

    Example, if GRAMOPHONE_API_KEYS_FILE names the file `keys`:

        gramophone keys create --name app --scopes infer >> keys

    A running service reloads the file within a second; removing a line revokes its key.
    """
    from service.api_keys import create_key

    created = create_key(name, scopes.split(","))
    if as_json:
        print_json({"key": created.secret, "line": created.key.line})
        return
    typer.echo(f"The key, which is not stored anywhere: {created.secret}", err=True)
    typer.echo(created.key.line)
