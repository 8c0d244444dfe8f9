"""Commands `gramophone tune` and `gramophone fold-texts`: weights for re-ranking.

The weights are tuned on n-best lists with references; `fold-texts` writes the references of all
other folds, to train a model for each fold on text that it is not evaluated on.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from models.errors import InvalidInputError
from service.cli.options import (
    JsonOption,
    ListSource,
    PublishedModels,
    print_json,
    with_option_groups,
)

tune_app = typer.Typer()

FoldsOption = Annotated[int, typer.Option(help="Parts of the lists, each of which is held out once.")]
SeedOption = Annotated[int, typer.Option(help="Of folds and random starts.")]


class _TuneOptions(NamedTuple):
    """Options of `gramophone tune`, named as the settings of POST /v1/rerank/tune."""

    metric: Annotated[Literal["wer", "cer", "bleu", "chrf"], typer.Option(help="What to tune for.")] = "wer"
    normaliser: Annotated[
        Literal["none", "lower", "lower-unpunctuated"], typer.Option(help="Before words are compared.")
    ] = "none"
    features: Annotated[
        str | None,
        typer.Option(
            help="What may have a weight, such as rank,am,lm,words. Default: rank, all that is given, lm, unk, words."
        ),
    ] = None
    length_exponents: Annotated[
        str,
        typer.Option(
            help="Powers of the length by which lm may be divided, to choose from; of equals the first."
        ),
    ] = "0,1"
    folds: FoldsOption = 2
    seed: SeedOption = 0
    restarts: Annotated[int, typer.Option(help="Random starts of a search.")] = 8
    resamples: Annotated[int, typer.Option(help="Resamples whose best weights are averaged.")] = 12
    max_p_value: Annotated[
        float,
        typer.Option(
            help="Keep the first pass unless the p-value of the gain is at most this; 1 takes any gain."
        ),
    ] = 0.2
    bootstrap_samples: Annotated[int, typer.Option(help="Resamples that the p-value is found from.")] = 1000


@tune_app.command()
@with_option_groups
def tune(
    model: Annotated[
        str,
        typer.Argument(
            help="Model: NAME, NAME@7 or NAME@champion; several as a mixture: ngram=0.3,lstm=0.7; - for none."
        ),
    ],
    source: ListSource,
    *,
    models: Annotated[
        str | None, typer.Option(help="Further models with features of their own: old=small@3 adds lm:old.")
    ] = None,
    fold_models: Annotated[
        str | None,
        typer.Option(
            help="A model for each fold that has not seen its references, with commas between: these score the "
            "lists, and the weights are for MODEL. See `gramophone fold-texts`."
        ),
    ] = None,
    settings: _TuneOptions,
    save: Annotated[
        str | None, typer.Option(help="Save the weights as a profile of this name, for rerank --profile.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for report.html and tuning.json.")
    ] = None,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Find weights for re-ranking, and tell by cross-fitting what they are worth.

    Where they are not better than the first pass by more than chance, the answer is to keep the first pass, and a
    saved profile does that.
    """
    from models.checkpoint.documents import ProfileStore
    from models.checkpoint.manifest import check_name
    from models.reranking.features import is_reserved
    from service.console.evaluation import TuningProgress, show_tuning
    from service.local import tune
    from service.schemas.models import ProfileBody

    if save is not None:
        check_name(save, parameter="save")
    job = tune.prepare_tuning(
        {"models": models, **settings._asdict()},
        model=model,
        fold_models=fold_models.split(",") if fold_models else (),
        load=published.load,
    )
    lists = list(source.lists(reserved=lambda name: is_reserved(name, job.models.extra)))
    if not lists:
        raise InvalidInputError(f"{source.file} has no lists", parameter="file")
    with TuningProgress() as progress:
        tuned, reply = tune.tune_lists(job, lists, progress)
    if save is not None:
        ProfileStore(published.registry).write(ProfileBody.model_validate(reply.profile).profile(save))
    if report is not None:
        tune.write_report(report, tuned, reply, title=Path(source.file).name)
    print_json(asdict(reply)) if as_json else show_tuning(reply, save, report)


@tune_app.command("fold-texts")
@with_option_groups
def fold_texts(
    source: ListSource,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to write without-fold-1.txt, … to.")
    ],
    folds: FoldsOption = 2,
    seed: SeedOption = 0,
) -> None:
    """Write for each fold of `gramophone tune` the references of all other folds, to train its model on."""
    from service.local.tune import write_fold_texts

    for path in write_fold_texts(list(source.lists()), folder, folds=folds, seed=seed):
        typer.echo(path)
