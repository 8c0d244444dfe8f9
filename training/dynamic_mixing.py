"""Fitting a mixture whose parts stay apart: weights and cache, from one pass over each text.

What a part says of a token does not depend on the weights. So each part reads each text once, caches
looking on; weights, cache and all figures are computed from what they said.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.cache import CacheModel
from models.checkpoint.write import StorableModel
from models.errors import InvalidInputError
from models.mixture import MixtureModel, find_context_matcher
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from training.caching import ChosenCache, choose_cache, grid_of, mix_with_cache
from training.data import EncodedTexts
from training.evaluating.scoring import CorpusScores
from training.evaluation import evaluation_facts, summarise_scores
from training.mixture_weights import fit_weights, fit_weights_by_context
from training.part_readings import MixtureContext, PartScores, first_featured_part, score_parts
from training.progress import Progress

Figures = dict[str, dict[str, Any]]
TokenLogProbs = npt.NDArray[np.float32]
_WITHOUT_FEATURES = {NGramModel.family, CacheModel.family}


class MixingPlan(NamedTuple):
    """What is to be fitted.

    Attributes:
        by_context: weights for each context length of the first n-gram model.
        context: in which texts are read; `stream` if there is a cache.
        window: tokens that a cache remembers; None for no cache.
        around_part: the cache is around the first part with features, not around the mixture.
    """

    by_context: bool = False
    context: MixtureContext = "sentence"
    window: int | None = None
    around_part: bool = False


class MixtureStage(NamedTuple):
    """A model on the way to the whole.

    Attributes:
        model: parts mixed, or a model with a cache.
        facts: what was fitted.
        figures: by split, as `evaluation.summary` has them.
    """

    model: StorableModel[Any]
    facts: dict[str, Any]
    figures: Figures


class DynamicMixture(NamedTuple):
    """What came of the fitting; one stage at least.

    Attributes:
        part_figures: of each part, as it was given.
        cached_part: the place of the part that the cache is around, if it is around a part.
        part_with_cache: that part with its cache.
        mixture: the parts mixed; None of a single part.
        mixture_with_cache: the mixture, or the single part, with the cache around it.
    """

    part_figures: Sequence[Figures]
    cached_part: int | None
    part_with_cache: MixtureStage | None
    mixture: MixtureStage | None
    mixture_with_cache: MixtureStage | None


class _Weights(NamedTuple):
    """λ for all [M], or for each context length [C, M] if there are any such."""

    common: tuple[float, ...]
    by_context: tuple[tuple[float, ...], ...]


class _FittedMixture(NamedTuple):
    cached_part: int | None
    cache: ChosenCache | None
    weights: _Weights


class _StageLogProbs(NamedTuple):
    """Log-probabilities of a text's tokens under each stage [N]."""

    part_with_cache: TokenLogProbs | None
    mixture: TokenLogProbs
    mixture_with_cache: TokenLogProbs | None


def mix_dynamically(
    models: Sequence[LanguageModel[Any]], texts: EncodedTexts, plan: MixingPlan, *, progress: Progress
) -> DynamicMixture:
    """Mix models with the weights, and the cache, that make the validation text most probable.

    Args:
        models: the parts, of one vocabulary.
        texts: in its tokens; the training text is not looked at.
        plan: what to fit.
        progress: told of each reading of a text.

    Raises:
        InvalidInputError: there is no held-out token; or no part has what the plan asks for.
    """
    check_mixing_plan(plan, [model.family for model in models])
    options: dict[str, Any] = {
        "context": plan.context,
        "by_context": plan.by_context,
        "window": plan.window,
        "progress": progress,
    }
    readings = {"valid": score_parts(models, texts.valid, **options)}
    fitted = _fit(readings["valid"], models, plan)
    if texts.test is not None:
        chosen = None if fitted.cache is None else grid_of(fitted.cache.config)
        readings["test"] = score_parts(models, texts.test, grid=chosen, **options)
    return _assemble(models, readings, fitted, plan.context)


def check_mixing_plan(plan: MixingPlan, families: Sequence[str]) -> None:
    """Refuse a plan that no part has what it takes for.

    Args:
        plan: what is to be fitted.
        families: of the parts; of one that is not trained yet, `neural` stands for all neural ones.

    Raises:
        InvalidInputError: weights by context without an n-gram model, or a cache around a neural model
            without one.
    """
    if plan.by_context and NGramModel.family not in families:
        raise InvalidInputError(
            f"mixture.weights is 'by-order', but no part is an n-gram model: {', '.join(families)}",
            parameter="mixture.weights",
        )
    if plan.around_part and not set(families) - _WITHOUT_FEATURES:
        raise InvalidInputError(
            f"cache.around is 'neural', but no part is a neural model: {', '.join(families)}",
            parameter="cache.around",
        )


def _fit(valid: PartScores, models: Sequence[LanguageModel[Any]], plan: MixingPlan) -> _FittedMixture:
    """Cache and weights; what is inside is fitted before what is around it."""
    parts = [targets.log_probs for targets in valid.targets]
    place, cache = None, None
    if valid.caches is not None and plan.around_part:
        place = first_featured_part(models) or 0
        cache = choose_cache(valid.caches, parts[place])
        parts[place] = cache.log_probs
    weights = _fit_weights(np.stack(parts, axis=1), valid.context_lengths, models)
    if valid.caches is not None and not plan.around_part:
        cache = choose_cache(valid.caches, _mix(parts, weights, valid.context_lengths))
    return _FittedMixture(place, cache, weights)


def _fit_weights(
    log_probs: TokenLogProbs, lengths: npt.NDArray[np.int64] | None, models: Sequence[LanguageModel[Any]]
) -> _Weights:
    common = fit_weights(log_probs)
    place = find_context_matcher(models)
    if lengths is None or place is None:
        return _Weights(common, ())
    matcher: Any = models[place]
    table = fit_weights_by_context(
        log_probs, lengths, num_lengths=matcher.num_context_lengths, weights=common
    )
    return _Weights(common, table)


def _mix(
    parts: Sequence[TokenLogProbs], weights: _Weights, lengths: npt.NDArray[np.int64] | None
) -> TokenLogProbs:
    """Log-probabilities [N] of the parts mixed; a single part's as they are."""
    if len(parts) == 1:
        return parts[0]
    table = np.log(np.asarray(weights.by_context or [weights.common]))
    rows = table if lengths is None else table[lengths]
    mixed = np.logaddexp.reduce(np.stack(parts, axis=1) + rows, axis=1)
    return np.asarray(mixed, dtype=np.float32)


def _stage_log_probs(readings: PartScores, fitted: _FittedMixture) -> _StageLogProbs:
    """What each stage says of a text, which was read with the chosen cache at least."""
    parts = [targets.log_probs for targets in readings.targets]
    part_with_cache, cached = None, None
    if fitted.cache is not None and readings.caches is not None:
        config = fitted.cache.config
        cached = partial(mix_with_cache, remembered=readings.caches.of(config), config=config)
    if cached is not None and fitted.cached_part is not None:
        part_with_cache = cached(parts[fitted.cached_part])
        parts[fitted.cached_part] = part_with_cache
    mixture = _mix(parts, fitted.weights, readings.context_lengths)
    if cached is None or fitted.cached_part is not None:
        return _StageLogProbs(part_with_cache, mixture, None)
    return _StageLogProbs(None, mixture, cached(mixture))


def _assemble(
    models: Sequence[LanguageModel[Any]],
    readings: Mapping[str, PartScores],
    fitted: _FittedMixture,
    context: MixtureContext,
) -> DynamicMixture:
    """The models with their figures."""
    said = {split: _stage_log_probs(reading, fitted) for split, reading in readings.items()}

    def figures_of(model: Any, targets: Mapping[str, CorpusScores]) -> Figures:
        return {
            split: evaluation_facts(summarise_scores(model, reading.corpus, targets[split], context=context))
            for split, reading in readings.items()
        }

    def stage(model: StorableModel[Any], facts: dict[str, Any], name: str) -> MixtureStage:
        targets = {
            split: CorpusScores(getattr(said[split], name), reading.targets[0].tokens, None)
            for split, reading in readings.items()
        }
        return MixtureStage(model, facts, figures_of(model, targets))

    part_figures = [
        figures_of(model, {split: reading.targets[number] for split, reading in readings.items()})
        for number, model in enumerate(models)
    ]
    parts = list(models)
    cached_part = cached = mixture = None
    if fitted.cache is not None and fitted.cached_part is not None:
        parts[fitted.cached_part] = with_its_cache = CacheModel(
            parts[fitted.cached_part], fitted.cache.config
        )
        cached_part = stage(with_its_cache, cache_facts(fitted.cache), "part_with_cache")
    whole = parts[0]
    if len(parts) > 1:
        whole = MixtureModel(parts, fitted.weights.common, weights_by_context=fitted.weights.by_context)
        mixture = stage(whole, _weight_facts(fitted.weights), "mixture")
    if fitted.cache is not None and fitted.cached_part is None:
        cached = stage(
            CacheModel(whole, fitted.cache.config), cache_facts(fitted.cache), "mixture_with_cache"
        )
    return DynamicMixture(part_figures, fitted.cached_part, cached_part, mixture, cached)


def _weight_facts(weights: _Weights) -> dict[str, Any]:
    by_context = {"weights_by_context": [list(row) for row in weights.by_context]}
    return {"weights": list(weights.common), **(by_context if weights.by_context else {})}


def cache_facts(chosen: ChosenCache) -> dict[str, Any]:
    """What is to be remembered of a fitted cache; `weights` is the share of what it is around."""
    config, grid = chosen.config, chosen.grid
    return {
        "weights": [1 - config.weight],
        "cache": {
            **dataclasses.asdict(config),
            "tried": {
                "half_lives": list(grid.half_lives),
                "perplexities_by_flatness": {
                    f"{flatness:g}": list(row)
                    for flatness, row in zip(grid.flatnesses, chosen.perplexities, strict=True)
                },
                "perplexities_by_prior": {f"{prior:g}": value for prior, value in chosen.priors},
            },
        },
    }
