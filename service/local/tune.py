"""Tuning of weights on n-best lists or lattices with references, and training texts of folds.

The candidates of a lattice are those found by searches with the weights of all rounds so far. When the
weights of a round find no new ones, the score on held-out candidates is that of the held-out lattices.
"""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from models.errors import FormatError, InvalidInputError
from models.files import atomic_writer
from models.lattices.graph import PATH_FEATURES, PathWeights
from models.lattices.lattice import Lattice
from models.lattices.rescoring import nbest_candidates
from models.lattices.token_passing import LatticeSearchSettings
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import (
    LM,
    NUM_UNKNOWN,
    NUM_WORDS,
    ListFeatures,
    check_given,
    offsets_of,
)
from models.reranking.metrics.metric import Metric
from models.reranking.tuning.cross_fitting import TuningOutcome, select_with_references
from models.reranking.tuning.fitting import assign_folds
from service.engine.job import run_to_completion
from service.engine.loaded_model import LoadedModel
from service.local.ask import NO_MODEL, UNLIMITED, model_loader
from service.local.lattices import (
    LatticeWeights,
    check_exponent,
    given_weights,
    rescore_lattices,
    tuned_weights,
)
from service.schemas.wire import invalid_input
from service.use_cases.candidate_features import ScoringModels, score_candidates
from service.use_cases.rerank_request import parse_names, parse_weights
from service.use_cases.tune import TuneReply, TuneSettings, tune_and_evaluate, tune_reply

Ints: TypeAlias = npt.NDArray[np.int64]
_BATCH_LISTS = 128

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Callback with the kind of work, its completed amount and its total."""


class TuneJob(NamedTuple):
    """Settings and models of `gramophone tune`.

    Attributes:
        settings: settings of POST /v1/rerank/tune.
        models: scoring models that the weights apply to.
        fold_models: scoring models of each fold's lists, instead of `models`; may be empty.
    """

    settings: TuneSettings
    models: ScoringModels
    fold_models: tuple[ScoringModels, ...]


def prepare_tuning(
    options: Mapping[str, Any],
    *,
    model: str,
    fold_models: Sequence[str],
    load: Callable[[str], LoadedModel],
    for_lattices: bool = False,
) -> TuneJob:
    """Parse options (comma-separated values; None if unset) and load the models.

    Args:
        options: settings of POST /v1/rerank/tune.
        model: address of the model, or parts and weights of a mixture.
        fold_models: addresses of the models of the folds; may be empty.
        load: loads a model by its address.
        for_lattices: True if lattices are tuned on, which have other features, one model and no length exponents.

    Raises:
        InvalidInputError: an option is invalid.
        LanguageModelError: the registry or model does not exist, or is damaged.
    """
    if for_lattices:
        options = {"features": ",".join(PATH_FEATURES), "length_exponents": "0"} | {
            name: value for name, value in options.items() if value is not None
        }
    settings = _settings(options, model)
    if for_lattices:
        _check_lattice_settings(settings)
    load_once = model_loader(load)
    models = settings.resolve_models(load_once)
    if not fold_models:
        return TuneJob(settings, models, ())
    if len(fold_models) != settings.folds:
        raise InvalidInputError(
            f"--fold-models names {len(fold_models)} models; {settings.folds} folds need one each",
            parameter="fold_models",
        )
    fold_settings = settings.model_copy(update={"mixture": None})
    per_fold = tuple(
        fold_settings.model_copy(update={"model": address}).resolve_models(load_once)
        for address in fold_models
    )
    return TuneJob(settings, models, per_fold)


def tune_lists(
    job: TuneJob, lists: Sequence[CandidateList], watch: ProgressCallback
) -> tuple[TuningOutcome, TuneReply]:
    """Tune on lists; return the result and the reply of POST /v1/rerank/tune.

    Raises:
        InvalidInputError: no list has a reference, a feature is missing, or the lists are too few.
    """
    metric, search = job.settings.metric_of(lists), job.settings.search
    _, referenced = select_with_references(lists)
    check_given(referenced, models=job.models.extra)
    folds = _folds(referenced, folds=search.folds, seed=search.seed)
    scorers = job.fold_models or (job.models,)
    computed = _features(scorers, referenced, folds if job.fold_models else np.zeros_like(folds), watch)
    tuned = _optimise(job.settings, metric, lists, computed, watch)
    return tuned, tune_reply(tuned, job.models)


def _optimise(
    settings: TuneSettings,
    metric: Metric,
    lists: Sequence[CandidateList],
    computed: ListFeatures,
    watch: ProgressCallback,
) -> TuningOutcome:
    searches, total = itertools.count(1), settings.search.num_resamples
    watch("optimising weights", 0, total)
    return run_to_completion(
        tune_and_evaluate(
            settings,
            metric,
            lists,
            computed,
            searched=lambda: watch("optimising weights", next(searches), total),
        )
    )


class _LatticeCandidates:
    """Candidates that searches of lattices have found; of equal texts, the features of the latest search count."""

    def __init__(self, lattices: Sequence[Lattice], settings: LatticeSearchSettings, nbest: int) -> None:
        self._lattices, self._settings, self._nbest = lattices, settings, nbest
        self._found: list[dict[str, Candidate]] = [{} for _ in lattices]

    def search(self, model: LoadedModel, numbers: Ints, weights: LatticeWeights) -> int:
        """Search some lattices, by index; return the number of new candidates."""
        found = [self._found[number] for number in numbers]
        num_before = sum(map(len, found))
        chosen = [self._lattices[number] for number in numbers]
        for of_lattice, one in zip(
            found, rescore_lattices(model, chosen, weights, self._settings), strict=True
        ):
            of_lattice |= {c.text: c for c in nbest_candidates(one, self._nbest).candidates}
        return sum(map(len, found)) - num_before

    def lists(self) -> list[CandidateList]:
        """Return the candidates of each lattice, the first pass's best first."""
        return [
            CandidateList(lattice.name, "", tuple(found.values()), lattice.references)
            for lattice, found in zip(self._lattices, self._found, strict=True)
        ]


class LatticeTuning(NamedTuple):
    """Result of tuning on lattices.

    Attributes:
        tuned: the result on the candidates that were found.
        reply: the reply of POST /v1/rerank/tune.
        num_rounds: number of rounds of searching and tuning.
        num_new: number of candidates that a search with the weights of the last round still found.
    """

    tuned: TuningOutcome
    reply: TuneReply
    num_rounds: int
    num_new: int


def tune_lattices(
    job: TuneJob,
    lattices: Sequence[Lattice],
    search: LatticeSearchSettings,
    *,
    nbest: int,
    max_rounds: int,
    watch: ProgressCallback,
) -> LatticeTuning:
    """Tune on lattices with references, in rounds of searching them and tuning on all candidates found so far.

    Each lattice is searched with two sets of weights: those found on all lattices, and those found without its fold.
    The first search uses the weights of the first pass, and the default weights of the lattices' files.

    Args:
        job: settings and models.
        lattices: lattices; those without references are skipped.
        search: settings of the search.
        nbest: number of candidates of each search of a lattice.
        max_rounds: maximum rounds, at least 1; the last one is that whose weights find no new candidates.
        watch: callback of the progress.

    Raises:
        InvalidInputError: no lattice has a reference, or the lattices are too few.
        UnsupportedParameterError: a model reads backward, or its tokenizer does not separate words.
    """
    named = [CandidateList(lattice.name, "", (), lattice.references) for lattice in lattices]
    metric, settings = job.settings.metric_of(named), job.settings.search
    numbers, referenced = select_with_references(named)
    folds = _folds(referenced, folds=settings.folds, seed=settings.seed)
    models = [scorer.parts[0] for scorer in job.fold_models or (job.models,) * settings.folds]
    found = _LatticeCandidates([lattices[number] for number in numbers], search, nbest)

    def search_all(number: int, of_folds: Sequence[tuple[LatticeWeights, LatticeWeights]]) -> int:
        num_new = num_done = 0
        for fold, (model, both) in enumerate(zip(models, of_folds, strict=True)):
            for weights in both:
                watch(f"round {number}: searching lattices", num_done, 2 * len(folds))
                own = np.flatnonzero(folds == fold)
                num_new += found.search(model, own, weights)
                num_done += len(own)
        return num_new

    def optimise(number: int, lists: Sequence[CandidateList], settings: TuneSettings) -> TuningOutcome:
        watch_round = partial(_watch_round, watch, number)
        return _optimise(settings, metric, lists, _path_features(lists), watch_round)

    # the first candidates are too few to prove a gain
    exploring = TuneSettings.model_validate(job.settings.model_dump() | {"max_p_value": 1.0})
    search_all(1, [(PathWeights.first_pass, given_weights({}))] * len(models))
    for number in range(1, max_rounds + 1):
        lists = found.lists()
        tuned = optimise(number, lists, exploring)
        of_all = tuned_weights(tuned.found.by_feature(tuned.data.problem.names))
        num_new = search_all(
            number + 1, [(of_all, tuned_weights(fold.weights)) for fold in tuned.figures.folds]
        )
        if not num_new:
            break
    tuned = optimise(number, lists, job.settings)
    return LatticeTuning(tuned, tune_reply(tuned, job.models), number, num_new)


def _watch_round(watch: ProgressCallback, number: int, what: str, done: int, total: int) -> None:
    watch(f"round {number}: {what}", done, total)


def _path_features(lists: Sequence[CandidateList]) -> ListFeatures:
    """Collect the features of candidates that the search of a lattice computes."""
    names = (LM, NUM_UNKNOWN, NUM_WORDS)
    rows = [[candidate.features[name] for name in names] for one in lists for candidate in one.candidates]
    return ListFeatures(names, np.array(rows), offsets_of(lists))


def write_report(folder: Path, tuned: TuningOutcome, reply: TuneReply, *, title: str) -> None:
    """Write report.html for people and tuning.json for programs.

    Raises:
        FormatError: the folder cannot be written to.
    """
    from service.local.tune_report import tuning_page

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(folder, f"cannot be created: {error.strerror}") from None
    contents = {
        "report.html": tuning_page(title, tuned, reply),
        "tuning.json": json.dumps(asdict(reply), indent=1, ensure_ascii=False).encode() + b"\n",
    }
    for name, content in contents.items():
        with atomic_writer(folder / name) as write:
            write(content)


def write_fold_texts(lists: Sequence[CandidateList], folder: Path, *, folds: int, seed: int) -> list[Path]:
    """Write a text per fold: the first references of all lists outside the fold, one per line.

    A model trained on this text has not seen the fold's references, as `--fold-models` requires.

    Raises:
        InvalidInputError: no list has a reference, or the lists are too few.
    """
    _, referenced = select_with_references(lists)
    of_lists = _folds(referenced, folds=folds, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for fold in range(folds):
        path = folder / f"without-fold-{fold + 1}.txt"
        text = "".join(f"{referenced[i].references[0]}\n" for i in np.flatnonzero(of_lists != fold))
        with atomic_writer(path) as write:
            write(text.encode())
        paths.append(path)
    return paths


def _settings(options: Mapping[str, Any], model: str) -> TuneSettings:
    read = {name: value for name, value in options.items() if value is not None}
    if "models" in read:
        named = parse_names(read["models"], parameter="models")
        read["models"] = [{"name": name, "model": address} for name, address in named.items()]
    if "features" in read:
        read["features"] = [name.strip() for name in read["features"].split(",")]
    if "length_exponents" in read:
        read["length_exponents"] = read["length_exponents"].split(",")
    if model == NO_MODEL:
        read["given_only"] = True
    elif "=" in model:
        parts = parse_weights(model, parameter="mixture")
        read["mixture"] = [{"model": part, "weight": weight} for part, weight in parts.items()]
    else:
        read["model"] = model
    try:
        return TuneSettings.model_validate(read, strict=False)
    except ValidationError as error:
        raise invalid_input(error) from None


def _check_lattice_settings(settings: TuneSettings) -> None:
    """Refuse settings that lattices do not have.

    Raises:
        InvalidInputError: no model or several are given, a feature is not one of a path, or there is a length exponent.
    """
    if settings.model is None or settings.models:
        raise InvalidInputError("lattices are searched with one model: give its name", parameter="model")
    wrong = [name for name in settings.features or () if name not in PATH_FEATURES]
    if wrong:
        raise InvalidInputError(
            f"features names {wrong[0]!r}; the features of a lattice are {', '.join(PATH_FEATURES)}",
            parameter="features",
        )
    for exponent in settings.length_exponents:
        check_exponent(exponent)


def _folds(lists: Sequence[CandidateList], *, folds: int, seed: int) -> Ints:
    """Assign a fold to each list [N].

    Raises:
        InvalidInputError: the lists are too few.
    """
    of_lists = assign_folds(lists, folds=folds, seed=seed)
    if len(np.unique(of_lists)) < folds:
        raise InvalidInputError(f"folds is {folds}; {len(lists)} lists are too few", parameter="folds")
    return of_lists


def _features(
    models: Sequence[ScoringModels], lists: Sequence[CandidateList], model_of: Ints, watch: ProgressCallback
) -> ListFeatures:
    """Compute features of all candidates in batches; `model_of` holds the model index of each list [N]."""
    offsets = offsets_of(lists)
    parts: list[ListFeatures] = []
    num_scored = 0
    for number, scorer in enumerate(models):
        own = np.flatnonzero(model_of == number)
        for begin in range(0, len(own), _BATCH_LISTS):
            watch("scoring lists", num_scored, len(lists))
            batch = own[begin : begin + _BATCH_LISTS]
            scoring = score_candidates(scorer, [lists[i] for i in batch], UNLIMITED)
            parts.append(run_to_completion(scoring).features)
            num_scored += len(batch)
    in_order_scored = np.argsort(np.repeat(model_of, np.diff(offsets)), kind="stable")
    values = np.empty((len(in_order_scored), len(parts[0].names)))
    values[in_order_scored] = np.concatenate([part.values for part in parts])
    return ListFeatures(parts[0].names, values, offsets)
