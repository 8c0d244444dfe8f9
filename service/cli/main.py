"""Command line `gramophone`: commands, global options and exit codes.

Command modules contain only options and help texts. A command imports slow modules when it runs,
which keeps `--help` fast.
"""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperOption

from models.checkpoint import folders
from models.errors import DomainError, FormatError, InputError, ModelNotFoundError, RegistryError
from service.cli.ask import ask_app, check_app, complete_app
from service.cli.bench import bench_app
from service.cli.evaluate import evaluate_app
from service.cli.lattice import lattice_app
from service.cli.models import models_app
from service.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, lists_app
from service.cli.serve import keys_app, serve_app
from service.cli.train import train_app
from service.cli.tune import corrections_app, tune_app
from service.cli.word_lists import wordlists_app

_METAVARS = {"bool": "", "Path": "FILE", "str": "TEXT", "int": "NUMBER", "float": "NUMBER"}
"""Value type names in help texts; empty for flags."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for commands in (train_app, evaluate_app, serve_app, ask_app, bench_app, check_app, complete_app):
    app.add_typer(commands)
for commands in (lattice_app, tune_app, corrections_app, lists_app, wordlists_app, models_app, keys_app):
    app.add_typer(commands)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"gramophone-lm {metadata.version('gramophone-lm')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    registry_cache: Annotated[
        Path | None,
        typer.Option(
            envvar="GRAMOPHONE_REGISTRY_CACHE",
            metavar="FOLDER",
            help="Folder that caches models of remote registries.",
            show_default="~/.cache/gramophone",
        ),
    ] = None,
    cache_home: Annotated[Path | None, typer.Option(envvar="XDG_CACHE_HOME", hidden=True)] = None,
    data_home: Annotated[Path | None, typer.Option(envvar="XDG_DATA_HOME", hidden=True)] = None,
) -> None:
    """Train small language models and serve them over HTTP."""
    if registry_cache is None and cache_home is not None:
        registry_cache = cache_home / "gramophone"
    if registry_cache is not None:
        folders.set_cache_folder(registry_cache)
    if data_home is not None:
        folders.set_data_home(data_home)


def main() -> None:
    """Run the command line; print errors as one line on standard error, with exit code 2 for invalid input."""
    # at SIGHUP a service reads its files again; it may be sent while one starts
    if "serve" in sys.argv[1:]:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _open_closed_streams()
    _tolerate_encodings()
    try:
        _build_command()()
    except (InputError, FormatError, ModelNotFoundError, RegistryError) as error:
        _fail(error, EXIT_BAD_INPUT)
    except DomainError as error:
        _fail(error, EXIT_FAILED)
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except OSError as error:  # for example, output to a full disk
        with contextlib.suppress(OSError):
            # otherwise Python flushes again at exit and prints a traceback
            sys.stdout.close()
        _fail(error, EXIT_FAILED)


def _build_command() -> Any:
    """Build the root command; its help shows value names instead of Python types."""
    command = typer.main.get_command(app)
    for node in _walk_commands(command):
        for param in (*node.params, node.get_help_option(typer.Context(node))):
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = lambda ctx: None  # noqa: ARG005 - name and help suffice
            elif param.metavar is None and isinstance(param, TyperOption):
                param.metavar = _METAVARS.get(param.bare_type().removeprefix("list[").removesuffix("]"))
    return command


def _walk_commands(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _walk_commands(below)


def _fail(error: Exception, code: int) -> None:
    sys.stderr.write(f"gramophone: {error}\n")
    sys.exit(code)


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, whose numbers other files would get."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the lowest free number is the stream's own
            stream = Path(os.devnull).open(mode)  # noqa: SIM115 - for the whole run
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _tolerate_encodings() -> None:
    """Escape unprintable output; accept input that is not UTF-8, which is reported later."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            errors = "surrogateescape" if stream is sys.stdin else "backslashreplace"
            # skip a byte-order mark
            marked = stream is sys.stdin and stream.encoding.lower() == "utf-8"
            stream.reconfigure(errors=errors, encoding="utf-8-sig" if marked else None)
