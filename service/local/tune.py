"""Tuning of weights on n-best lists or lattices with references; training texts of folds."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from models.arrays import Int64s
from models.calls import Work, run_to_completion
from models.checkpoint.registry import Address
from models.errors import FormatError, InputError
from models.files import atomic_writer
from models.phrases import PhraseList
from models.reranking.candidates import CandidateList
from models.reranking.corrections import PhraseCorrection
from models.reranking.features import ListFeatures, check_given, offsets_of
from models.reranking.proposals import CORRECTION
from models.reranking.ranking import Profile, ProfileStore
from models.reranking.tuning.cross_fitting import TuningOutcome, with_references
from models.reranking.tuning.fitting import TuningSettings, assign_folds
from models.scoring.candidate_features import score_candidates
from service.hosting.loaded_model import LoadedModel
from service.local.ask import NO_MODEL, UNLIMITED, main_model, model_loader
from service.operations.rerank_request import parse_models
from service.operations.tune import (
    ProgressCallback,
    TuneJob,
    TuneReply,
    TuneSettings,
    lattice_settings,
    tune_and_evaluate,
)
from service.schemas.wire import parse_object

_BATCH_LISTS = 128


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
    settings = _settings(given, model)
    if for_lattices:
        settings = lattice_settings(settings)
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
    job: TuneJob, lists: Sequence[CandidateList], watch: ProgressCallback
) -> tuple[TuningOutcome, TuneReply]:
    """Tune on lists; return the result and the reply of POST /v1/rerank/tune.

    Raises:
        InputError: no list has a reference, a feature is missing, or the lists are too few.
    """
    search, searches = job.settings.search, itertools.count()

    def searched() -> None:
        watch("optimising weights", next(searches), search.num_resamples)

    def features_of(referenced: Sequence[CandidateList]) -> Work[Any, ListFeatures]:
        folds = assign_folds(referenced, folds=search.folds, seed=search.seed)
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
