"""The command line: `gramophone …`. Options and their help; the work is done elsewhere.

Modules that are slow to import are imported by the command that needs them, so that
`--help` is quick. This is the one place that knows both `service` and `training`.
"""

import contextlib
import io
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from models.checkpoint.remote import cache_folder
from models.errors import (
    FormatError,
    InvalidInputError,
    LanguageModelError,
    ModelNotFoundError,
    RegistryError,
)
from service.cli_asking import asking_app
from service.cli_bench import bench_app
from service.cli_checking import checking_app
from service.cli_completing import completing_app
from service.cli_keys import keys_app
from service.cli_lattice import lattice_app
from service.cli_lists import lists_app
from service.cli_options import (
    CORPUS_HELP,
    DEFAULT_REGISTRY,
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    DeviceOption,
    JsonOption,
    ModelArgument,
    PrecisionOption,
    RegistryOption,
    print_json,
)
from service.cli_registry import models_app
from service.cli_tasks import check_options, show_evaluation
from service.cli_tuning import tuning_app

DEFAULT_WINDOW_TOKENS = 65_534

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.add_typer(asking_app)
app.add_typer(bench_app)
app.add_typer(checking_app)
app.add_typer(completing_app)
app.add_typer(lattice_app)
app.add_typer(tuning_app)
app.add_typer(lists_app, name="lists")
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")


def _print_version(asked: bool) -> None:
    if asked:
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
            help="Folder where models of remote registries are kept.",
            show_default="~/.cache/gramophone",
        ),
    ] = None,
    cache_home: Annotated[Path | None, typer.Option(envvar="XDG_CACHE_HOME", hidden=True)] = None,
) -> None:
    """Train small language models and serve them over HTTP."""
    if registry_cache is None and cache_home is not None:
        registry_cache = cache_home / "gramophone"
    if registry_cache is not None:
        cache_folder.use(registry_cache)


def main() -> None:
    """Run the command line; errors are one line on standard error, exit code 2 for bad input."""
    _tolerate_encodings()
    try:
        app()
    except (InvalidInputError, FormatError, ModelNotFoundError, RegistryError) as error:
        _fail(error, EXIT_BAD_INPUT)
    except LanguageModelError as error:
        _fail(error, EXIT_FAILED)
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        sys.exit(EXIT_FAILED)
    except OSError as error:  # our output goes to a full disk, say
        with contextlib.suppress(OSError):
            sys.stdout.close()  # else it would be tried again, and a traceback told, at the very end
        _fail(error, EXIT_FAILED)


def _fail(error: Exception, code: int) -> None:
    sys.stderr.write(f"gramophone: {error}\n")
    sys.exit(code)


def _tolerate_encodings() -> None:
    """Print what the terminal cannot show as escapes; read bytes that are not text, to be refused by name."""
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):  # None where it is closed
            stream.reconfigure(errors=errors)


# --- training -----------------------------------------------------------------------------------


@app.command()
def quickstart(
    registry: RegistryOption = DEFAULT_REGISTRY,
    if_empty: Annotated[
        bool, typer.Option("--if-empty", help="Do nothing if the registry holds a model already.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train the default models on Python's own documentation: an n-gram, an LSTM, their mixture."""
    from models.checkpoint.registry import open_registry

    if if_empty and open_registry(registry, create=True).models():
        typer.echo(f"The registry {registry} holds models already; nothing to train.", err=True)
        return
    from training.commands import QUICKSTART_NAME, run_train

    result = run_train("quickstart", name=QUICKSTART_NAME, registry=registry)
    _show_training(result, as_json=as_json)


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .toml file.")],
    name: Annotated[str, typer.Option(help="Name to publish the model under.")],
    corpus: Annotated[
        list[Path] | None, typer.Option(help=f"{CORPUS_HELP} Default: Python's own documentation.")
    ] = None,
    valid: Annotated[
        list[Path] | None, typer.Option(help="Text to decide by. Default: the end of the corpus is held out.")
    ] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Text to report on.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set a key of the recipe, such as ngram.order=3."),
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with an interrupted training of this name, if there is one."),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="What estimates n-grams: memory; duckdb, past memory on this machine; spark, on a cluster."
        ),
    ] = "memory",
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="With duckdb or spark: memory to stay below, such as 1GB. Default: 2GiB."
        ),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            help="With duckdb or spark: folder of what is kept until the model is published, so that a killed run "
            "goes on where it was. Default: in the registry."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model by a recipe and publish it as a new version.

    Recipes that come with the package: ngram, feed-forward, elman, lstm, gru, mingru (one family each), awd-lstm,
    mixture, ngram-mixture, quickstart, cpu-30min, gpu-20min.
    """
    from training.commands import run_train, scale_options

    result = run_train(
        recipe,
        name=name,
        registry=registry,
        corpus=corpus or (),
        valid=valid or (),
        test=test or (),
        assignments=assignments or (),
        device=device,
        resume=resume,
        scale=scale_options(engine, memory_limit=memory_limit, work_dir=work_dir),
    )
    if result:  # the first of several processes tells
        _show_training(result, as_json=as_json)


@app.command()
def evaluate(
    model: ModelArgument,
    task: Annotated[
        Literal["perplexity", "autocomplete", "check"],
        typer.Option(
            help="Perplexity; what completions spare a simulated typist; or how well errors put in are found."
        ),
    ] = "perplexity",
    corpus: Annotated[
        list[Path] | None,
        typer.Option(help=f"{CORPUS_HELP} Default: the test part of Python's own documentation."),
    ] = None,
    context: Annotated[
        Literal["sentence", "stream", "document"],
        typer.Option(help="Fresh state each line; state carried across lines; or whole texts in windows."),
    ] = "sentence",
    unit: Annotated[
        Literal["line", "paragraph"], typer.Option(help="What a sentence is in the files.")
    ] = "line",
    window: Annotated[
        int, typer.Option(min=1, help="Tokens in a window of a document.")
    ] = DEFAULT_WINDOW_TOKENS,
    detail: Annotated[
        bool,
        typer.Option("--detail", help="Also: entropy of the predictions; figures by frequency and position."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Compare with a second model: difference and KL divergence."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Predictions that entropy and divergence are the mean of, at most [4096]; words that are typed "
            "[2000], or checked for each kind of error [5000].",
        ),
    ] = None,
    overlap: Annotated[
        list[Path] | None,
        typer.Option(metavar="TRAINFILE", help="Look for the text in this training text; may be repeated."),
    ] = None,
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic", help="Let a copy of a neural model learn from the text as it goes; a stream."
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Autocomplete: write a page with curves, too.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            help="Check: put in errors of this kind, real_word, non_word or space; may be repeated."
        ),
    ] = None,
    save_calibration: Annotated[
        bool,
        typer.Option(
            "--save-calibration",
            help="Check: keep what thresholds are worth, so that /v1/check takes a precision.",
        ),
    ] = False,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    precision: PrecisionOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """A model on held-out text: perplexity per token, word and byte; what completions spare; how errors are found."""
    from training import commands

    options = {
        "unit": unit != "line",
        "context": context != "sentence",
        "window": window != DEFAULT_WINDOW_TOKENS,
        "detail": detail,
        "against": against is not None,
        "overlap": bool(overlap),
        "dynamic": dynamic,
        "report": report is not None,
        "kinds": bool(kinds),
        "save-calibration": save_calibration,
    }
    check_options(task, {name for name, is_given in options.items() if is_given})
    common: dict[str, Any] = {"corpus": corpus or (), "registry": registry, "device": device}
    sized: dict[str, Any] = {"precision": precision} | ({} if sample is None else {"sample": sample})
    if task == "check":
        chosen: dict[str, Any] = {"kinds": kinds} if kinds else {}
        result = commands.run_evaluate_check(
            model, **common, **sized, **chosen, save_calibration=save_calibration
        )
    elif task == "autocomplete":
        result = commands.run_evaluate_autocomplete(
            model, **common, **sized, unit=unit, context=context, against=against, report=report
        )
    elif dynamic:
        if context == "document" or detail or against or overlap:
            raise InvalidInputError(
                "--dynamic reads the text as one stream and goes without --context document, --detail, --against "
                "and --overlap",
                parameter="dynamic",
            )
        result = commands.run_dynamic_evaluation(model, **common, unit=unit)
    else:
        result = commands.run_evaluate(
            model,
            **common,
            **sized,
            context=context,
            unit=unit,
            window=window,
            detail=detail,
            against=against,
            overlap=overlap or (),
        )
    if as_json:
        print_json(result)
    else:
        show_evaluation(task, result)


@models_app.command("import-arpa")
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
    from training.commands import run_import_arpa

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
        from service.console import show_import

        show_import(result)


@models_app.command("export-arpa")
def export_arpa(
    model: ModelArgument,
    file: Annotated[Path, typer.Argument(help="File to write; packed if it ends in .gz, .xz or .zst.")],
    registry: RegistryOption = DEFAULT_REGISTRY,
    as_json: JsonOption = False,
) -> None:
    """Write an n-gram model as an ARPA file, for KenLM, SRILM and others."""
    from training.commands import run_export_arpa

    result = run_export_arpa(model, file, registry=registry)
    if as_json:
        print_json(result)
    else:
        from service.console import show_export

        show_export(result)


def _show_training(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        from service.console import show_training

        show_training(result)


# --- the service ----------------------------------------------------------------------------------


@app.command()
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
) -> None:
    """Serve the registry's models over HTTP. Every setting of the README's table is read from the environment."""
    from service.app import serve as run
    from service.settings import read_settings

    run(
        read_settings(
            registry=registry, host=host, port=port, device=device, precision=precision, workers=workers
        )
    )


if __name__ == "__main__":
    main()
