"""Commands `gramophone tune`, `fold-texts` and `corrections …`: weights and corrections for re-ranking.

`tune` fits weights to n-best lists or lattices with references. For each fold, `fold-texts`
writes the references of all other folds, as training text for a model that has not seen the
fold.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

from models.errors import InputError
from service.cli.ask import read_dictionary
from service.cli.lattice import LatticeOptions
from service.cli.options import (
    DEFAULT_REGISTRY,
    EXIT_FAILED,
    MIXTURE_HELP,
    FormsOption,
    FurtherModelsOption,
    JsonOption,
    ListSource,
    PhrasesOption,
    PublishedModels,
    RegistryOption,
    option_groups,
    print_json,
)
from service.local.streams import open_source

tune_app = typer.Typer()
corrections_app = typer.Typer(
    name="corrections", help="Show and change the corrections of a profile.", no_args_is_help=True
)

FoldsOption = Annotated[int, typer.Option(help="Number of folds; each is held out once.")]
SeedOption = Annotated[int, typer.Option(help="Seed of folds and random starts.")]
ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help="Profile, saved by `tune`.")]


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
    form: Annotated[
        Literal["asis", "sentence-case", "sentence"],
        typer.Option(help="Form in which pretrained models read lower-cased texts."),
    ] = "asis"
    length_exponents: Annotated[
        str | None,
        typer.Option(
            help="Length exponents of lm to try; on a tie, the first wins. Default: 0,1; for lattices 0."
        ),
    ] = None
    corrections: Annotated[
        bool, typer.Option("--corrections", help="Learn corrections of recurring errors.")
    ] = False
    propose: Annotated[
        bool,
        typer.Option("--propose", help="Propose the phrases for words that are spelled nearly like them."),
    ] = False
    forms: FormsOption = None
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


@tune_app.command()
@option_groups
def tune(
    model: Annotated[str, typer.Argument(help=f"{MIXTURE_HELP}; - for no model.")],
    source: ListSource,
    *,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="Further lattices.", show_default=False)
    ] = None,
    models: FurtherModelsOption = None,
    fold_models: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated models, one per fold, trained without the fold's references: they score the lists, "
            "and the weights apply to MODEL. See `gramophone fold-texts`."
        ),
    ] = None,
    phrases: PhrasesOption = None,
    settings: _TuneOptions,
    lattices: LatticeOptions,
    nbest: Annotated[
        int | None,
        typer.Option(min=2, help="Word strings that each search of a lattice adds to its list. Default: 50."),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(help="Name to save the weights under, for --profile of rerank and lattice."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for report.html and tuning.json.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Instead of tuning: test whether the weights of this profile still improve on the first pass with "
            "MODEL (- for the profile's), by its own metric; exit with 1 if not.",
        ),
    ] = None,
    published: PublishedModels,
    as_json: JsonOption = False,
) -> None:
    """Tune weights for re-ranking, and estimate their gain by cross-fitting.

    If the gain over the first pass is not significant, the command recommends the first pass, and a saved profile
    keeps its order.

    FILE may also be lattices or folders of them, as for `gramophone lattice`. They are searched, and weights tuned on
    all word strings found so far, in rounds, until a search finds no new ones.

    After a new version of the model is published, --check tests a saved profile, best on lists it was not tuned on.
    """
    from models.calls import run_to_completion
    from models.checkpoint.manifest import check_name
    from models.lattices.files import detect_lattice_format
    from models.reranking.features import is_reserved
    from models.reranking.ranking import ProfileStore
    from service.console.evaluation import TuningProgress, show_tuning
    from service.local import ask, tune
    from service.operations.tune import tune_on_lattices
    from service.schemas.models import ProfileBody

    if check is not None:
        given = {**ask.main_model(model), "models": models, "profile": check}
        unused = {"save": save, "report": report, "fold_models": fold_models, "phrases": phrases}
        _check_profile(given, source, settings, published, {**unused, "nbest": nbest}, as_json=as_json)
        raise typer.Exit
    if save is not None:
        check_name(save, param="save")
    form = None if source.format_name is not None else detect_lattice_format(open_source(source.file))
    if form is None and (more or nbest is not None or lattices != LatticeOptions()):
        options = ", ".join(["nbest", *lattices._fields])
        raise InputError(f"{source.file} has no lattices; several files, {options} need them")
    if form is not None and (source.beam_size is not None or source.scores or settings.corrections):
        raise InputError(
            f"{source.file} has lattices; beam_size, scores and corrections are for n-best lists only"
        )
    if form is not None and not source.references:
        raise InputError.of("references", "is missing; lattices need --references")
    search = lattices.search()
    job = tune.prepare_tuning(
        {**settings._asdict(), "models": models, "phrases": phrases and read_dictionary(phrases)},
        model=model,
        fold_models=fold_models.split(",") if fold_models else (),
        load=published.load,
        for_lattices=form is not None,
    )
    if form is None:
        lists = list(source.lists(reserved=lambda name: is_reserved(name, job.models.extra)))
        if not lists:
            raise InputError(f"{source.file} has no lists", param="file")
        with TuningProgress() as progress:
            tuned, reply = tune.tune_lists(job, lists, progress)
    else:
        files = [source.file, *(more or ())]
        read = list(lattices.read(files, form, source.references or (), source.reference_layout))
        with TuningProgress() as progress:
            work = tune_on_lattices(job, read, search, ask.UNLIMITED, nbest=nbest or 50, watch=progress)
            tuned, reply = run_to_completion(work)
        typer.echo(
            f"rounds: {reply.rounds}; new strings with the last weights: {reply.new_strings:,}", err=True
        )
    if save is not None:
        ProfileStore(published.registry).write(ProfileBody.model_validate(reply.profile).profile(save))
    if report is not None:
        tune.write_report(report, tuned, reply, title=Path(source.file).name)
    command = "rerank" if form is None else "lattice"
    print_json(asdict(reply)) if as_json else show_tuning(reply, save, report, command)


def _check_profile(
    given: Mapping[str, str | None],
    source: ListSource,
    options: _TuneOptions,
    published: PublishedModels,
    unused: Mapping[str, object],
    *,
    as_json: bool,
) -> None:
    """Test the weights of a profile, print the figures, and exit with 1 if they do not hold."""
    from models.reranking.features import is_reserved
    from models.reranking.metrics.metric import format_score
    from models.reranking.tuning.fitting import TuningSettings
    from service.local import ask

    for name in filter(unused.get, unused):
        raise InputError(f"--check tunes nothing, so {name} has no effect", param=name)
    operation = ask.prepare_rerank(given, published.registry, published.load)
    lists = source.lists(reserved=lambda name: is_reserved(name, operation.job.models.extra))
    settings = {name: getattr(options, name) for name in ("seed", "max_p_value", "bootstrap_samples")}
    checked = ask.check_profile(operation, lists, TuningSettings(**settings), file=source.file)
    if as_json:
        print_json(checked)
    else:
        first, tuned = (format_score(checked["metric"], checked[name]) for name in ("baseline", "tuned"))
        verdict = "the weights hold" if checked["holds"] else "the weights do not hold: tune again"
        typer.echo(
            f"{checked['metric'].upper()} of {checked['lists']:,} lists: first pass {first}, with the profile {tuned} "
            f"(p = {checked['significance']['p_value']:.3f}); {verdict}"
        )
    if not checked["holds"]:
        raise typer.Exit(EXIT_FAILED)


@tune_app.command("fold-texts")
@option_groups
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


@corrections_app.command("show")
def show_corrections(profile: ProfileArgument, registry: RegistryOption = DEFAULT_REGISTRY) -> None:
    """Print the corrections of a profile as tab-separated values, those with the most evidence first."""
    from models.reranking.corrections import write_table
    from models.reranking.ranking import ProfileStore

    typer.echo(write_table(ProfileStore(registry).read(profile).corrections), nl=False)


@corrections_app.command("add")
def add_corrections(
    profile: ProfileArgument,
    heard: Annotated[str | None, typer.Argument(metavar="HEARD", help="Phrase of 1 to 4 words.")] = None,
    written: Annotated[
        str | None, typer.Argument(metavar="WRITTEN", help="Its replacement, up to 4 words; may be empty.")
    ] = None,
    *,
    log_odds: Annotated[
        float, typer.Option(help="Natural logarithm of the odds of replacing the phrase against keeping it.")
    ] = 3.0,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Table as `show` prints it, instead of one correction."),
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Add corrections to a profile; one with equal phrases is replaced."""
    from models.reranking.corrections import PhraseCorrection, read_table
    from service.local.ask import parse_values
    from service.local.tune import change_corrections

    if file is not None and heard is None:
        added = read_table(file)
    elif file is None and heard is not None and written is not None:
        given = {"heard": heard, "written": written, "log_odds": log_odds}
        added = [parse_values(PhraseCorrection, given)]
    else:
        raise InputError("give either HEARD and WRITTEN, or --file", param="file")
    change_corrections(registry, profile, add=added)


@corrections_app.command("remove")
def remove_corrections(
    profile: ProfileArgument,
    heard: Annotated[str, typer.Argument(metavar="HEARD", help="Phrase that is replaced.")],
    written: Annotated[
        str | None, typer.Argument(metavar="WRITTEN", help="Its replacement. Default: all of the phrase.")
    ] = None,
    registry: RegistryOption = DEFAULT_REGISTRY,
) -> None:
    """Remove the corrections of a phrase from a profile."""
    from service.local.tune import change_corrections

    change_corrections(registry, profile, remove=(heard, written))
