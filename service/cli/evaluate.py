"""Commands `gramophone evaluate` and `fit-errors`: tasks on held-out text; errors counted in misspellings."""

from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from models.errors import InputError
from service.cli.options import (
    CORPUS_HELP,
    DEFAULT_REGISTRY,
    JsonOption,
    ModelArgument,
    PublishedModels,
    RegistryOption,
    option_groups,
    print_json,
)

evaluate_app = typer.Typer()
_TASK_OPTIONS = {
    "perplexity": {"unit", "context", "window", "detail", "against", "sample", "overlap", "dynamic", "slots"},
    "autocomplete": {"unit", "context", "against", "sample", "slots", "report"}
    | {"casing", "fuzzy", "learn", "no_repeats"},
    "check": {"sample", "kinds", "misspellings", "save_calibration"},
}


class _EvaluateOptions(NamedTuple):
    """Options of `gramophone evaluate`, named like the arguments of the tasks."""

    context: Annotated[
        Literal["sentence", "stream", "document"],
        typer.Option(help="Fresh state per line; state carried across lines; or documents in windows."),
    ] = "sentence"
    unit: Annotated[
        Literal["line", "paragraph"], typer.Option(help="Sentences: one per line, or split from paragraphs.")
    ] = "line"
    window: Annotated[int, typer.Option(min=1, help="Tokens per window of a document.")] = 65_534
    detail: Annotated[
        bool,
        typer.Option(
            "--detail", help="Add the entropy of predictions, and figures by frequency and position."
        ),
    ] = False
    against: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Compare with a second model: difference and KL divergence."),
    ] = None
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Predictions averaged by --detail and --against [4096]; autocomplete: words to type [2000]; "
            "check: words per kind of error [5000].",
        ),
    ] = None
    overlap: Annotated[
        list[Path] | None,
        typer.Option(metavar="TRAINFILE", help="Training text to search for overlap; may be repeated."),
    ] = None
    dynamic: Annotated[
        bool,
        typer.Option(
            "--dynamic",
            help="Dynamic evaluation: a float32 copy of a neural model learns from the text after scoring it.",
        ),
    ] = False
    casing: Annotated[
        Literal["exact", "ignore"],
        typer.Option(help="Autocomplete: `casing` of the requests: whether completions match in any case."),
    ] = "exact"
    fuzzy: Annotated[
        int,
        typer.Option(
            min=0, help="Autocomplete: `fuzzy` of the requests, up to 2; the typist makes no errors."
        ),
    ] = 0
    learn: Annotated[
        bool,
        typer.Option("--learn", help="Autocomplete: offer the words of earlier lines, as those of a user."),
    ] = False
    no_repeats: Annotated[
        bool,
        typer.Option(
            "--no-repeats", help="Autocomplete: also measure lists that show a completion once within a word."
        ),
    ] = False
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Autocomplete: HTML report to write.")
    ] = None
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            help="Check: error to insert: real_word, non_word, space; repeatable. Default: all, or --misspellings only."
        ),
    ] = None
    misspellings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check: misspellings to insert, `wrong->right` on each line."),
    ] = None
    save_calibration: Annotated[
        bool,
        typer.Option(
            "--save-calibration",
            help="Check: save the precision at each threshold, which `precision` in /v1/check requires.",
        ),
    ] = False


@evaluate_app.command()
@option_groups
def evaluate(
    model: ModelArgument,
    *,
    task: Annotated[
        Literal["perplexity", "autocomplete", "check"],
        typer.Option(help="Perplexity; keystroke savings of completions; or detection of inserted errors."),
    ] = "perplexity",
    corpus: Annotated[
        list[Path] | None,
        typer.Option(help=f"{CORPUS_HELP} Default: the test part of Python's documentation."),
    ] = None,
    options: _EvaluateOptions,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model on held-out text: perplexity, saved keystrokes, or error detection.

    Keystrokes: every character and line end is a key, and so is a completion, which also writes a space. Completions
    are ranked as in the service, in the case that is typed.
    """
    from service.console import evaluation
    from training import commands

    values: dict[str, Any] = {**options._asdict(), "slots": published.slots}
    given = {name for name, value in values.items() if value not in (options._field_defaults.get(name), [])}
    for name in sorted(given - _TASK_OPTIONS[task]):
        fitting = [owner for owner, own in _TASK_OPTIONS.items() if name in own]
        raise InputError(
            f"--{name.replace('_', '-')} requires --task {' or '.join(fitting)}; the task is {task}",
            param=name,
        )
    if task == "perplexity" and "sample" in given and not given & {"detail", "against"}:
        raise InputError("--sample requires --detail or --against", param="sample")
    values |= {**published._asdict(), "slots": published.members(), "corpus": corpus or ()}
    used = {"registry", "device", "precision", "corpus", *_TASK_OPTIONS[task]}
    arguments = {name: values[name] for name in used if values[name] not in (None, [])}
    if task == "check":
        from training.evaluation.spelling import run_check_task

        show, result = evaluation.show_check_evaluation, run_check_task(model, **arguments)
    elif task == "autocomplete":
        show = evaluation.show_autocomplete_evaluation
        result = commands.run_evaluate_autocomplete(model, **arguments)
    else:
        if options.dynamic and (options.context == "document" or given & {"window", "against"}):
            raise InputError(
                "--dynamic reads the text as one stream, so it cannot be combined with --context document, --window "
                "or --against",
                param="dynamic",
            )
        show, result = evaluation.show_evaluation, commands.run_evaluate(model, **arguments)
    print_json(result) if as_json else show(result)


@evaluate_app.command("fit-errors")
def fit_errors(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS.tsv", help="Wrong word, tab and right word on each line, or wrong->right."
        ),
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model whose checks use the table, in all versions.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write instead. Checks use it if it is copied to REGISTRY/.errors/NAME.json."
        ),
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Fit the error model of checks: count which letters people omit, insert, replace and swap."""
    import hashlib

    from models.checking.error_model import ErrorTableStore, fit_error_table
    from models.checkpoint.registry import open_registry
    from models.files import atomic_writer
    from training.evaluation.spelling import read_misspellings

    if (model is None) == (out is None):
        raise InputError("give either --model or --out", param="model")
    digest = hashlib.sha256()
    misspellings = read_misspellings(pairs, digest)
    table = fit_error_table(misspellings, digest.hexdigest())
    path: object = out
    if out is not None:
        with atomic_writer(out) as write:
            write(table.model_dump_json(indent=1).encode() + b"\n")
    elif model is not None:
        open_registry(registry).resolve(model)
        path = ErrorTableStore(registry).write(model, table)
    total = sum(map(len, misspellings.values()))
    typer.echo(f"{table.one_edit:,} of {total:,} misspellings have one edit, {table.two_edits:,} two: {path}")
