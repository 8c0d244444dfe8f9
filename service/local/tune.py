"""Tuning of weights on n-best lists or lattices with references; training texts of folds."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import Int64s
from models.calls import Work, run_to_completion
from models.checkpoint.registry import Address
from models.errors import FormatError, InputError
from models.files import atomic_writer
from models.lattices.graph import PATH_FEATURES, LatticeWeights, PathWeights, tuned_weights
from models.lattices.lattice import Lattice
from models.lattices.rescoring import nbest_candidates
from models.lattices.token_passing import LatticeSearch
from models.phrases import PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.corrections import PhraseCorrection
from models.reranking.features import RANK, ListFeatures, check_given, offsets_of
from models.reranking.proposals import CORRECTION
from models.reranking.ranking import Profile, ProfileStore
from models.reranking.tuning.cross_fitting import TuningOutcome, with_references
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.scoring.candidate_features import ScoringModels, score_candidates
from service.hosting.loaded_model import LoadedModel
from service.local.ask import (
    NO_MODEL,
    UNLIMITED,
    main_model,
    model_loader,
    rescore_lattices,
)
from service.operations.rerank_request import parse_models
from service.operations.tune import TuneReply, TuneSettings, tune_and_evaluate
from service.schemas.wire import parse_object

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

    def models_of(self, fold: int) -> ScoringModels:
        """Return the scoring models of a fold's lists."""
        return self.fold_models[fold] if self.fold_models else self.models


def prepare_tuning(
    options: Mapping[str, Any],
    *,
    model: str,
    fold_models: Sequence[str],
    load: Callable[[str], LoadedModel],
    for_lattices: bool = False,
) -> TuneJob:
    """Parse options (comma-separated values; None if unset) and load the models.

    Raises:
        InputError: an option is invalid, or not one of lattices.
        DomainError: the registry or model is missing or damaged.
    """
    given = {name: value for name, value in options.items() if value is not None}
    settings = _lattice_settings(given, model) if for_lattices else _settings(given, model)
    load_once = model_loader(load)
    models = settings.resolve_models(load_once)
    if fold_models and len(fold_models) != settings.folds:
        raise InputError(
            f"--fold-models names {len(fold_models)} models; {settings.folds} folds need one each",
            param="fold_models",
        )
    per_fold = [settings.model_copy(update={"mixture": None, "model": address}) for address in fold_models]
    return TuneJob(settings, models, tuple(one.resolve_models(load_once) for one in per_fold))


def tune_lists(
    job: TuneJob, lists: Sequence[CandidateList], watch: ProgressCallback, *, is_scored: bool = False
) -> tuple[TuningOutcome, TuneReply]:
    """Tune on lists; return the result and the reply of POST /v1/rerank/tune.

    If `is_scored`, the candidates have the features of the models already.

    Raises:
        InputError: no list has a reference, a feature is missing, or the lists are too few.
    """
    search, searches = job.settings.search, itertools.count()

    def searched() -> None:
        watch("optimising weights", next(searches), search.num_resamples)

    def features_of(referenced: Sequence[CandidateList]) -> Work[Any, ListFeatures]:
        folds = assign_folds(referenced, folds=search.folds, seed=search.seed)
        offsets = offsets_of(referenced)
        computed = ListFeatures((), np.zeros((int(offsets[-1]), 0)), offsets)
        if not is_scored:
            computed = yield from _features(job, referenced, folds, watch)
        searched()  # the first call shows that none has ended
        return computed

    if job.settings.corrections:
        watch("learning corrections", 0, len(lists))
    return run_to_completion(
        tune_and_evaluate(
            job.settings,
            job.models,
            lists,
            features_of,
            UNLIMITED,
            searched=searched,
            models_of=job.models_of,
        )
    )


def tune_lattices(
    job: TuneJob,
    lattices: Sequence[Lattice],
    search: LatticeSearch,
    watch: ProgressCallback,
    *,
    nbest: int,
    max_rounds: int = 10,
) -> tuple[TuningOutcome, TuneReply, str]:
    """Tune on lattices with references, in rounds of searching them and tuning on all strings found.

    Each lattice is searched for its `nbest` best strings with weights found on all lattices, and with those found
    without its fold. If the last weights find no new strings, the held-out score is that of searching lattices.
    The results are those of `tune_lists`, and a line about the rounds.

    Raises:
        InputError: the lattices are too few.
        UnsupportedError: a model reads backward, or its tokenizer does not separate words.
    """
    settings = job.settings.search
    lists = [CandidateList(lattice.name, "", (), lattice.references) for lattice in lattices]
    job.settings.metric_of(lists)  # refuses a wrong normaliser now
    folds = assign_folds(lists, folds=settings.folds, seed=settings.seed)
    models = [scorer.parts[0] for scorer in job.fold_models or (job.models,) * settings.folds]
    phrases = PhraseList(job.settings.phrases)
    weights_of = partial(tuned_weights, phrases=phrases.features)
    untuned = partial(PathWeights.of, {}, phrases=phrases.features)
    found = [dict[str, Candidate]() for _ in lattices]  # by text; with the latest features

    def search_all(number: int, weights: Sequence[Sequence[LatticeWeights]]) -> int:
        """Search each lattice with all weights of its fold; count the new strings."""
        num_before = sum(map(len, found))
        for fold, (model, of_fold) in enumerate(zip(models, weights, strict=True)):
            own = np.flatnonzero(folds == fold).tolist()
            for one in of_fold:
                watch(f"round {number}: searching lattices", fold, len(models))
                rescored = rescore_lattices(model, [lattices[i] for i in own], one, search, phrases)
                for i, result in zip(own, rescored, strict=True):
                    found[i] |= {c.text: c for c in nbest_candidates(result, nbest).candidates}
        return sum(map(len, found)) - num_before

    def tune(job: TuneJob, number: int) -> tuple[TuningOutcome, TuneReply]:
        return tune_lists(
            job, lists, lambda what, *work: watch(f"round {number}: {what}", *work), is_scored=True
        )

    # the first strings are too few to prove a gain
    exploring = TuneSettings.model_validate(job.settings.model_dump() | {"max_p_value": 1.0})
    search_all(1, [[weights_of({RANK: 1.0}), untuned]] * len(models))
    for number in range(1, max_rounds + 1):
        lists = [replace(one, candidates=(*own.values(),)) for one, own in zip(lists, found, strict=True)]
        tuned, _ = tune(job._replace(settings=exploring), number)
        of_all = tuned.found.by_feature(tuned.data.problem.names)
        weights = [[weights_of(of_all), weights_of(fold.weights)] for fold in tuned.figures.folds]
        num_new = search_all(number + 1, weights)
        if not num_new:
            break
    return *tune(job, number), f"rounds: {number}; new strings with the last weights: {num_new:,}"


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


def change_corrections(
    registry: Address,
    name: str,
    *,
    add: Sequence[PhraseCorrection] = (),
    remove: tuple[str, str | None] | None = None,
) -> None:
    """Add corrections to a profile, in place of those with equal phrases; remove a phrase's.

    `remove` is the phrase, and its replacement or None for all of them.

    Raises:
        InputError: the profile does not exist or was tuned without corrections, a correction is outside its
            limits, or there is none to remove.
        RegistryError: the registry cannot be read or written.
    """
    store = ProfileStore(registry)
    profile = store.read(name)
    if not profile.corrections and CORRECTION not in profile.weights:
        raise InputError.of(
            "profile",
            f"{name!r} has neither corrections nor a weight of {CORRECTION!r}: tune it with --corrections",
        )
    kept = {(one.heard, one.written): one for one in (*profile.corrections, *add)}
    if remove is not None:
        removed = [pair for pair in kept if pair[0] == remove[0] and remove[1] in {None, pair[1]}]
        if not removed:
            phrase = " → ".join(one for one in remove if one is not None)
            raise InputError(f"profile {name!r} has no correction of {phrase!r}", param="heard")
        for pair in removed:
            del kept[pair]
    store.write(Profile(**profile.model_dump(exclude={"corrections"}), corrections=list(kept.values())))


def write_fold_texts(lists: Sequence[CandidateList], folder: Path, *, folds: int, seed: int) -> list[Path]:
    """Write a text per fold: the first references of lists outside it, one per line.

    A model trained on it has not seen the fold's references, as `--fold-models` requires.

    Raises:
        InputError: no list has a reference, or the lists are too few; or folds or seed are out of range.
    """
    TuningSettings(folds=folds, seed=seed)  # refuses values out of range, as tuning does
    _, referenced = with_references(lists)
    of_lists = assign_folds(referenced, folds=folds, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"without-fold-{fold + 1}.txt" for fold in range(folds)]
    for fold, path in enumerate(paths):
        text = "".join(f"{referenced[i].references[0]}\n" for i in np.flatnonzero(of_lists != fold))
        with atomic_writer(path) as write:
            write(text.encode())
    return paths


def _settings(given: Mapping[str, Any], model: str) -> TuneSettings:
    read = parse_models({**given, **main_model(model), "given_only": model == NO_MODEL})
    if "features" in read:
        read["features"] = [name.strip() for name in read["features"].split(",")]
    if "length_exponents" in read:
        read["length_exponents"] = read["length_exponents"].split(",")
    return parse_object(TuneSettings, read, strict=False)


def _lattice_settings(given: Mapping[str, Any], model: str) -> TuneSettings:
    """Parse options of tuning on lattices, with other defaults and fewer choices."""
    settings = _settings({"length_exponents": "0", **given}, model)
    features = [*PATH_FEATURES, *PhraseList(settings.phrases).features]
    if settings.features is None:
        settings = settings.model_copy(update={"features": features})
    wrong = {
        "model": settings.model is None,
        "models": bool(settings.models),
        "features": not {*features}.issuperset(settings.features or ()),
        "length_exponents": any(settings.length_exponents),
    }
    for name in filter(wrong.__getitem__, wrong):
        raise InputError.of(
            name,
            f"is {getattr(settings, name)}; lattices are tuned on with one model, features of "
            f"{', '.join(features)}, and the length exponent 0",
        )
    return settings


def _features(
    job: TuneJob, lists: Sequence[CandidateList], folds: Int64s, watch: ProgressCallback
) -> Work[Any, ListFeatures]:
    """Compute all candidates' features in batches; `folds` are the lists' [N]."""
    check_given(lists, models=job.models.extra)
    offsets, phrases = offsets_of(lists), PhraseList(job.settings.phrases)
    model_of = folds if job.fold_models else np.zeros_like(folds)
    parts: list[ListFeatures] = []
    num_scored = 0
    for number, scorer in enumerate(job.fold_models or (job.models,)):
        own = np.flatnonzero(model_of == number)
        for begin in range(0, len(own), _BATCH_LISTS):
            watch("scoring lists", num_scored, len(lists))
            batch = own[begin : begin + _BATCH_LISTS]
            scores = yield from score_candidates(
                scorer, [lists[i] for i in batch], UNLIMITED, phrases=phrases
            )
            parts.append(scores.features)
            num_scored += len(batch)
    in_order_scored = np.argsort(np.repeat(model_of, np.diff(offsets)), kind="stable")
    values = np.empty((len(in_order_scored), len(parts[0].names)))
    values[in_order_scored] = np.concatenate([part.values for part in parts])
    return ListFeatures(parts[0].names, values, offsets)
