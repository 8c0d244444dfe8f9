"""Commands `gramophone quickstart` and `gramophone train`: train models on text and publish them."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from service.cli.options import (
    CORPUS_HELP,
    DEFAULT_REGISTRY,
    DeviceOption,
    JsonOption,
    NameOption,
    RegistryOption,
    print_json,
)

train_app = typer.Typer()
AssignmentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a key of the recipe, such as ngram.order=3; may be repeated."
    ),
]


@train_app.command()
def quickstart(
    registry: RegistryOption = DEFAULT_REGISTRY,
    if_empty: Annotated[
        bool, typer.Option("--if-empty", help="Train nothing if the registry already has other models.")
    ] = False,
    serves: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Serve the registry as soon as it has a model, and train the others in the background. Settings of "
            "the service are read from the environment.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train an n-gram model, an LSTM and their mixture on Python's documentation, in minutes.

    Each model is published as soon as it is trained; a stopped quickstart continues with the missing ones.
    """
    from models.checkpoint.registry import open_registry
    from models.training_status import is_quickstart_due

    due = not if_empty or is_quickstart_due(open_registry(registry, create=True))
    if serves:
        from service.cli.serve import serve_while_training

        serve_while_training(registry, trains=due)
    elif not due:
        typer.echo(f"The registry {registry} holds models already; nothing to train.", err=True)
    else:
        from service.console.evaluation import show_training
        from training.default_models import run_quickstart

        result = run_quickstart(registry)
        print_json(result) if as_json else show_training(result)


@train_app.command()
def train(
    name: NameOption,
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe, or path of a .toml file; not with --for.")
    ] = None,
    purpose: Annotated[
        Literal["autocomplete", "rerank", "check", "score", "restore"] | None,
        typer.Option(
            "--for", help="Use of the model, instead of a recipe: chooses recipe and tokenizer, with reasons."
        ),
    ] = None,
    typists: Annotated[
        int | None,
        typer.Option(
            help="With --for autocomplete: typists whom this machine's cores have to carry. The best model that can is "
            "published, else the cheapest."
        ),
    ] = None,
    corpus: Annotated[
        list[Path] | None, typer.Option(help=f"{CORPUS_HELP} Default: Python's documentation.")
    ] = None,
    valid: Annotated[
        list[Path] | None,
        typer.Option(
            help="Validation text for early stopping, discounts and mixture weights. Default: the end of the corpus, "
            "which is then held out."
        ),
    ] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Test text to evaluate on.")] = None,
    assignments: AssignmentsOption = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
    device: DeviceOption = "cpu",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume an interrupted neural training of this name, if one exists."),
    ] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="Engine of n-gram estimation: memory; duckdb, out of core on one machine; spark, on a cluster."
        ),
    ] = "memory",
    memory_limit: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="With duckdb or spark: memory limit, such as 1GB. Default: 2GiB."),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="With duckdb or spark: folder for intermediate files, from which a killed run resumes; kept until the "
            "model is published. Default: in the registry.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model from a recipe, or for a use (--for), and publish it as a new version.

    Built-in recipes: ngram, feed-forward, elman, lstm, gru, mingru (one family each), awd-lstm,
    mixture, ngram-mixture, quickstart, cpu-30min, cpu-100min, gpu-20min, finetune (continues from the network
    train.from).
    """
    from models.errors import InputError
    from service.console.evaluation import show_training
    from training.commands import run_train
    from training.scale.options import scale_options

    typing = None
    if typists is not None and purpose is None:
        raise InputError("--typists requires --for autocomplete", param="typists")
    if purpose is not None:
        from training.purpose import choose_recipe

        if recipe is not None:
            raise InputError(f"RECIPE is {recipe}, and --for chooses one; give one of the two", param="for")
        choice = choose_recipe(
            purpose, corpus or (), engine=engine, assignments=assignments or (), typists=typists
        )
        typer.echo("\n".join(choice.reasons), err=True)
        recipe, typing = choice.recipe, choice.typing
        assignments = [*(f"{key}={value}" for key, value in choice.settings.items()), *(assignments or ())]
    if recipe is None:
        raise InputError("no recipe: give a RECIPE, or a use of the model with --for", param="recipe")
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
        typing=typing,
    )
    if result:  # only the first of several processes reports
        print_json(result) if as_json else show_training(result)


@train_app.command()
def select(
    large: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Large text, also .gz, .xz, .zst or .bz2.")
    ],
    in_domain: Annotated[
        list[Path], typer.Option(help="Small text whose words and style are wanted; may be repeated.")
    ],
    output: Annotated[
        Path, typer.Option(help="New file to write the selected lines to; compressed by suffix.")
    ],
    share: Annotated[
        float | None,
        typer.Option(help="Share of the lines to select, up to 1. Default: the best of several."),
    ] = None,
    assignments: AssignmentsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Select the lines of a large text that are like a small one, by cross-entropy difference.

    The recipe of the n-gram models is ngram, with ngram.order=3 and tokenizer.min_count=2.
    """
    from service.console.evaluation import show_selection
    from training.selection import run_select

    settings = assignments or ()
    result = run_select(large, in_domain=in_domain, output=output, share=share, assignments=settings)
    print_json(result) if as_json else show_selection(result)
