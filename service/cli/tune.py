"""Commands `gramophone tune` and `gramophone fold-texts`: weights for re-ranking.

`tune` fits weights to n-best lists or lattices with references. For each fold, `fold-texts` writes the
references of all other folds, as training text for a model that has not seen the fold.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from models.errors import InvalidInputError
from service.cli.lattice import LatticeOptions, shown_sources
from service.cli.options import (
    JsonOption,
    ListSource,
    PublishedModels,
    print_json,
    valid_items,
    with_option_groups,
)

if TYPE_CHECKING:
    from models.lattices.files import LatticeFormat

tune_app = typer.Typer()

FoldsOption = Annotated[int, typer.Option(help="Number of folds; each is held out once.")]
SeedOption = Annotated[int, typer.Option(help="Seed of folds and random starts.")]


class _TuneOptions(NamedTuple):
    """Options of `gramophone tune`, named like the settings of POST /v1/rerank/tune."""

    metric: Annotated[Literal["wer", "cer", "bleu", "chrf"], typer.Option(help="Metric to optimise.")] = "wer"
    normaliser: Annotated[
        Literal["none", "lower", "lower-unpunctuated"],
        typer.Option(help="Normalisation before words are compared."),
    ] = "none"
    features: Annotated[
        str | None,
        typer.Option(
            help="Features to weight, such as rank,am,lm,words. Default: rank, all given features, lm, unk, words; for "
            "lattices am, old_lm, lm, words, unk."
        ),
    ] = None
    length_exponents: Annotated[
        str | None,
        typer.Option(
            help="Length exponents of lm to try; on a tie, the first wins. Default: 0,1; for lattices 0."
        ),
    ] = None
    folds: FoldsOption = 2
    seed: SeedOption = 0
    restarts: Annotated[int, typer.Option(help="Random starts per search.")] = 8
    resamples: Annotated[int, typer.Option(help="Resamples whose best weights are averaged.")] = 12
    max_p_value: Annotated[
        float,
        typer.Option(
            help="Maximum p-value of the gain; above it, the first pass is kept. 1 accepts any gain."
        ),
    ] = 0.2
    bootstrap_samples: Annotated[int, typer.Option(help="Bootstrap resamples for the p-value.")] = 1000


class _RoundOptions(NamedTuple):
    """Options of tuning on lattices."""

    nbest: Annotated[
        int, typer.Option(min=2, help="Word strings that each search of a lattice adds to the tuning lists.")
    ] = 50
    max_rounds: Annotated[
        int, typer.Option(min=1, help="Maximum rounds of searching lattices and tuning.")
    ] = 10


def _lattice_format(source: ListSource) -> "LatticeFormat | None":
    """Return the format of the lattices in a command's first file; None if it has n-best lists."""
    from models.lattices.files import detect_lattice_format
    from service.local.lattices import LATTICE_FORMATS

    if source.format_name is not None or source.file == "-":
        return {"slf": "slf", **LATTICE_FORMATS}.get(source.format_name or "")
    return detect_lattice_format(Path(source.file))


def _check_options(
    source: ListSource,
    files: Sequence[str],
    lattices: LatticeOptions,
    rounds: _RoundOptions,
    form: "LatticeFormat | None",
) -> None:
    """Refuse options of lattices for lists, and of lists for lattices.

    Raises:
        InvalidInputError: an option does not apply, lists are in several files, or lattices have no references.
    """
    if form is None and len(files) > 1:
        raise InvalidInputError(
            f"FILE is given {len(files)} times; n-best lists are one file or folder", parameter="file"
        )
    if form is not None and not source.references:
        raise InvalidInputError(
            "references is missing; lattices are tuned on with --references", parameter="references"
        )
    if form is None:
        kind, given = "lattices", {**lattices._asdict(), **rounds._asdict()}
        defaults = {**LatticeOptions._field_defaults, **_RoundOptions._field_defaults}
    else:
        kind, given, defaults = "n-best lists", {"beam_size": source.beam_size, "scores": source.scores}, {}
    wrong = next((name for name, value in given.items() if value != defaults.get(name)), None)
    if wrong is not None:
        raise InvalidInputError(f"{wrong} is {given[wrong]}; it applies to {kind} only", parameter=wrong)


@tune_app.command()
@with_option_groups
def tune(
    model: Annotated[
        str,
        typer.Argument(
            help="Model: NAME, NAME@7 or NAME@champion; or a mixture: ngram=0.3,lstm=0.7; - for no model."
        ),
    ],
    source: ListSource,
    *,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Further lattices.", show_default=False)
    ] = None,
    models: Annotated[
        str | None, typer.Option(help="Further models that add features: old=small@3 adds lm:old.")
    ] = None,
    fold_models: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated models, one per fold, trained without the fold's references: they score the lists, "
            "and the weights apply to MODEL. See `gramophone fold-texts`."
        ),
    ] = None,
    settings: _TuneOptions,
    lattices: LatticeOptions,
    rounds: _RoundOptions,
    save: Annotated[
        str | None,
        typer.Option(help="Name to save the weights under, for --profile of rerank and lattice."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for report.html and tuning.json.")
    ] = None,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Tune weights for re-ranking, and estimate their gain by cross-fitting.

    If the gain over the first pass is not significant, the command recommends the first pass, and a saved profile
    keeps its order.

    FILE may also be lattices or folders of them, as for `gramophone lattice`; --format slf or kaldi-lattice, if not
    detected. They are searched and weights tuned on all word strings found so far, in rounds, until a search finds no
    new ones.
    """
    from models.checkpoint.documents import ProfileStore
    from models.checkpoint.manifest import check_name
    from models.reranking.features import is_reserved
    from service.console.evaluation import TuningProgress, show_tuning
    from service.local import tune
    from service.local.lattices import with_references
    from service.schemas.models import ProfileBody

    if save is not None:
        check_name(save, parameter="save")
    files = [source.file, *(more or ())]
    form = _lattice_format(source)
    _check_options(source, files, lattices, rounds, form)
    search = lattices.search()
    job = tune.prepare_tuning(
        {"models": models, **settings._asdict()},
        model=model,
        fold_models=fold_models.split(",") if fold_models else (),
        load=published.load,
        for_lattices=form is not None,
    )
    if form is None:
        lists = list(source.lists(reserved=lambda name: is_reserved(name, job.models.extra)))
        if not lists:
            raise InvalidInputError(f"{source.file} has no lists", parameter="file")
        with TuningProgress() as progress:
            tuned, reply = tune.tune_lists(job, lists, progress)
    else:
        read = lattices.read(files, form, lattices.symbols())
        referenced = with_references(read, source.references or (), source.reference_layout)
        valid = list(valid_items(iter(referenced), shown_sources(files)))
        with TuningProgress() as progress:
            tuned, reply, num_rounds, num_new = tune.tune_lattices(
                job, valid, search, **rounds._asdict(), watch=progress
            )
        typer.echo(f"rounds: {num_rounds}; new candidates with the last weights: {num_new:,}", err=True)
    if save is not None:
        ProfileStore(published.registry).write(ProfileBody.model_validate(reply.profile).profile(save))
    if report is not None:
        tune.write_report(report, tuned, reply, title=Path(source.file).name)
    print_json(asdict(reply)) if as_json else show_tuning(
        reply, save, report, command="rerank" if form is None else "lattice"
    )


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
    """Write the training text of each fold's model for `gramophone tune`: the references of all other folds."""
    from service.local.tune import write_fold_texts

    for path in write_fold_texts(list(source.lists()), folder, folds=folds, seed=seed):
        typer.echo(path)
