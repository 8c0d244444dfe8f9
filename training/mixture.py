"""Mixture training: train the parts, fit weights and cache on the validation text, build the mixture.

The log-probability that a part gives a token does not depend on the weights. So each part reads
each text once, and caches with it; weights, cache and all results are computed from these
log-probabilities. A static mixture of n-gram models becomes one n-gram model instead.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.cache.model import CacheModel
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import check_name, version_address
from models.checkpoint.write import StorableModel
from models.errors import InvalidInputError, VocabularyMismatchError
from models.language_model import (
    ContextMatcher,
    LanguageModel,
    feature_size,
    pad_sequences,
    prefill_sequences,
)
from models.mixture import MixtureModel, find_context_matcher
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from models.vocabulary import BOS, Vocabulary
from training.cache_fitting import (
    CacheGrid,
    CacheGridScores,
    ChosenCache,
    choose_cache,
    grid_of,
    mix_with_cache,
    score_with_caches,
)
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import (
    CHUNK_TOKENS,
    CorpusScores,
    evaluation_facts,
    running_text,
    score_corpus,
    summarise_scores,
)
from training.mixture_weights import fit_weights, fit_weights_by_context
from training.ngram.pruning import CompressionSettings
from training.progress import Progress
from training.recipe import MixtureSettings, Recipe, merge_tables, parse_recipe, recipe_table
from training.single_model import ResumableRuns, train_single
from training.static_mixture import id_translation, mix_statically, union_tokenizer
from training.texts import EncodedTexts
from training.trained import Figures, Trained, held_out_figures, normalisation_facts, part_title

MixtureContext = Literal["sentence", "stream"]
_BATCH_SENTENCES = 256


class PartScores(NamedTuple):
    """What M models say of a text's N predicted tokens.

    Attributes:
        corpus: the text.
        targets: of each model.
        context_lengths: how many tokens the first n-gram model took into account for each [N]; None
            where that was not asked for.
        caches: what caches say that look at the features of one part; None likewise.
    """

    corpus: EncodedCorpus
    targets: Sequence[CorpusScores]
    context_lengths: npt.NDArray[np.int64] | None
    caches: CacheGridScores | None


def first_featured_part(models: Sequence[LanguageModel[Any]]) -> int | None:
    """The place of the first model that has features; None if none has."""
    return next((number for number, model in enumerate(models) if feature_size(model)), None)


def score_parts(
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    *,
    context: MixtureContext,
    by_context: bool,
    window: int | None,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> PartScores:
    """Have each model read a text.

    Args:
        models: of one vocabulary.
        corpus: in its tokens.
        context: `stream` if there is a cache.
        by_context: also tell how much context the first n-gram model takes into account.
        window: of caches that look on; None for none.
        grid: the caches; None: those among which one is to be chosen.
        progress: told of each reading.
    """
    looked_at = None if window is None else first_featured_part(models) or 0
    caches, targets = None, []
    for number, model in enumerate(models):
        if window is not None and number == looked_at:
            caches = score_with_caches(model, corpus, window=window, grid=grid, progress=progress)
            targets.append(caches.targets)
        else:
            targets.append(score_corpus(model, corpus, context=context, progress=progress))
    place = find_context_matcher(models) if by_context else None
    lengths = None if place is None else corpus_context_lengths(models[place], corpus, context=context)
    return PartScores(corpus, targets, lengths, caches)


def corpus_context_lengths(model: Any, corpus: EncodedCorpus, *, context: MixtureContext) -> TokenIds:
    """How much of the history a `ContextMatcher` takes into account for each of a text's predicted tokens [N]."""
    matcher: ContextMatcher[Any] = model
    found: list[TokenIds] = []
    if context == "sentence":
        for start in range(0, corpus.num_sentences, _BATCH_SENTENCES):
            last = min(start + _BATCH_SENTENCES, corpus.num_sentences)
            tokens, lengths = pad_sequences([corpus.sentence(index).tolist() for index in range(start, last)])
            tokens = np.pad(tokens, ((0, 0), (0, 1)))  # room for </s>, after which nothing is looked at
            along = matcher.context_lengths_per_token(model.initial_state(len(tokens)), tokens, lengths + 1)
            found.append(along[np.arange(tokens.shape[1]) <= lengths[:, None]])
        return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
    before, text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.asarray([before]))
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[None, start : start + CHUNK_TOKENS]
        lengths = np.asarray([chunk.shape[1]])
        found.append(matcher.context_lengths_per_token(state, chunk, lengths)[chunk != BOS])
        state = prefill_sequences(model, state, chunk, lengths)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


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


def mixture_tokenizer(settings: MixtureSettings, published: Sequence[Checkpoint]) -> Tokenizer | None:
    """The tokenizer that a mixture's published parts bring; None if it has none and one must be learnt.

    Raises:
        InvalidInputError: there are fewer than two parts, one reads backward, a static mixture has one
            that is no n-gram model, or the parts' tokenizers differ, or cannot be joined for a static mixture.
    """
    fewest = 1 if settings.cache else 2
    if len(settings.recipes) + len(published) < fewest:
        raise InvalidInputError(
            f"a mixture needs at least {'1 part and a cache' if settings.cache else '2 parts'}, given "
            f"{len(settings.recipes)} recipes and {len(published)} models (mixture.recipes, mixture.models)",
            parameter="mixture",
        )
    if not published:
        return None
    first = published[0]
    for part in published:
        if part.manifest.direction == "backward":
            raise InvalidInputError(
                f"{version_address(part.path)} reads from right to left; a mixture's parts read forward",
                parameter="mixture.models",
            )
    if settings.kind == "static":
        for part in published:
            if not isinstance(part.model, NGramModel):
                raise InvalidInputError(
                    f"mixture.kind is 'static', which mixes n-gram models only; {version_address(part.path)} is of the "
                    f"family {part.model.family}",
                    parameter="mixture.models",
                )
        return union_tokenizer([(version_address(part.path), part.tokenizer) for part in published])
    for part in published:
        if part.tokenizer.fingerprint != first.tokenizer.fingerprint:
            raise InvalidInputError(
                f"{version_address(part.path)} has another tokenizer ({_tokenizer_label(part.tokenizer)}) than "
                f"{version_address(first.path)} ({_tokenizer_label(first.tokenizer)}); a dynamic mixture needs "
                "one tokenizer: use mixture.kind=static, or train the parts with one tokenizer",
                parameter="mixture.models",
            )
    return first.tokenizer


def translate_texts(part: Vocabulary, texts: EncodedTexts, vocabulary: Vocabulary) -> EncodedTexts:
    """Texts in a mixture's vocabulary as a part with fewer words reads them."""
    if part.fingerprint == vocabulary.fingerprint:
        return texts
    ids = id_translation(vocabulary, part)

    def read(corpus: EncodedCorpus) -> EncodedCorpus:
        return corpus._replace(tokens=ids[corpus.tokens])

    test = None if texts.test is None else read(texts.test)
    return EncodedTexts(read(texts.train), read(texts.valid), test)


def _tokenizer_label(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}, {len(tokenizer.vocabulary):,} tokens"


def part_recipes(mixture: Recipe) -> dict[str, Recipe]:
    """The recipes of a mixture's parts that are to be trained, by title: a recipe's name, a file's without its folder.

    Raises:
        InvalidInputError: two have the same title, or one cannot be a model's name and is to be published.
    """
    parts: dict[str, Recipe] = {}
    for name in mixture.mixture.recipes:
        title = Path(name).stem
        if title in parts:
            raise InvalidInputError(
                f"mixture.recipes names two parts {title!r}; give one of them another file name",
                parameter="mixture.recipes",
            )
        if mixture.mixture.publish_parts:
            check_name(title, parameter="mixture.recipes")
        parts[title] = part_recipe(mixture, name)
    return parts


def part_recipe(mixture: Recipe, name: str) -> Recipe:
    """A part's recipe, with what the mixture's recipe sets itself laid over it; text and tokenizer are the mixture's.

    A static mixture is pruned by entropy and quantised as the one model it becomes; its parts are not.

    Raises:
        InvalidInputError: the part is itself a mixture, or no n-gram model in a static one.
    """
    changes = {
        table: getattr(mixture, table).model_dump(exclude_unset=True)
        for table in ("ngram", "neural", "train")
    }
    recipe = parse_recipe(merge_tables(recipe_table(name), {**changes, "seed": mixture.seed}), source=name)
    recipe = recipe.model_copy(update={"corpus": mixture.corpus, "tokenizer": mixture.tokenizer})
    if recipe.family == "mixture":
        raise InvalidInputError(
            f"mixture.recipes names {name!r}, which is itself a mixture", parameter="mixture.recipes"
        )
    if recipe.reading_direction == "backward":
        raise InvalidInputError(
            f"mixture.recipes names {name!r}, which reads backward; a mixture's parts read forward",
            parameter="mixture.recipes",
        )
    if mixture.mixture.kind == "static" and recipe.family != "ngram":
        raise InvalidInputError(
            f"mixture.kind is 'static', which mixes n-gram models only; {name!r} in mixture.recipes is of the "
            f"family {recipe.family}",
            parameter="mixture.recipes",
        )
    if mixture.mixture.kind == "static":
        whole = {"prune_entropy": 0.0, "quantize_bits": None}
        recipe = recipe.model_copy(update={"ngram": recipe.ngram.model_copy(update=whole)})
    return recipe


def train_mixture(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    published: Sequence[Checkpoint],
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train the parts that are recipes, then fit the weights of all parts on the validation text.

    Raises:
        InvalidInputError: fewer than two parts, a part that is a mixture, or one that is no
            n-gram model in a static mixture.
        VocabularyMismatchError: published parts have tokenizers that do not fit together.
    """
    shared = mixture_tokenizer(recipe.mixture, published)
    if shared is not None and shared.fingerprint != tokenizer.fingerprint:
        raise VocabularyMismatchError(
            "the texts were encoded with another tokenizer than the mixture's parts have"
        )
    unfinished = part_recipes(recipe)  # all checked before any work
    plan = _mixing_plan(recipe)
    families = [r.family for r in unfinished.values()]
    check_mixing_plan(plan, [*families, *(p.model.family for p in published)])
    began = time.monotonic()
    trained = [
        train_single(name, part, tokenizer, texts, device=device, progress=progress, runs=runs)
        for name, part in unfinished.items()
    ]
    began -= 0.0 if runs is None else runs.seconds_before
    parts: list[Trained | Checkpoint] = [*trained, *published]
    if recipe.mixture.kind == "static":
        return _mix_statically(title, recipe, tokenizer, texts, parts, began=began, progress=progress)
    mixed = mix_dynamically([p.model for p in parts], texts, plan, progress=progress)
    return _mix_dynamically(title, recipe, parts, mixed, seconds=time.monotonic() - began)


def _mixing_plan(recipe: Recipe) -> MixingPlan:
    return MixingPlan(
        by_context=recipe.mixture.weights == "by-order",
        context=recipe.mixture.fitted_context,
        window=recipe.cache.window if recipe.mixture.cache else None,
        around_part=recipe.mixture.cache and recipe.cache.around == "neural",
    )


def _mix_statically(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    parts: Sequence[Trained | Checkpoint],
    *,
    began: float,
    progress: Progress,
) -> Trained:
    """N-gram models as one n-gram model."""
    wanted, vocabulary = recipe.ngram, tokenizer.vocabulary
    mixed = mix_statically(
        [part.model for part in parts if isinstance(part.model, NGramModel)],
        vocabulary,
        texts.valid,
        shrinking=CompressionSettings(wanted.prune_entropy, quantise=wanted.quantize_bits is not None),
        progress=progress,
    )
    facts = {"weights": list(mixed.weights), **mixed.facts, **normalisation_facts(mixed.model)}
    seconds = time.monotonic() - began
    figures = held_out_figures(mixed.model, texts, progress=progress)
    part_figures = [
        part.figures
        if isinstance(part, Trained)
        else held_out_figures(
            part.model, translate_texts(part.model.vocabulary, texts, vocabulary), progress=progress
        )
        for part in parts
    ]
    return Trained(title, recipe, mixed.model, (), facts, figures, seconds, parts, part_figures)


def _mix_dynamically(
    title: str,
    recipe: Recipe,
    parts: Sequence[Trained | Checkpoint],
    mixed: DynamicMixture,
    *,
    seconds: float,
) -> Trained:
    """The whole, each stage a part of the next."""

    def made(
        name: str, stage: MixtureStage, of: Sequence[Trained | Checkpoint], part_figures: Sequence[Figures]
    ) -> Trained:
        return Trained(name, recipe, stage.model, (), stage.facts, stage.figures, seconds, of, part_figures)

    parts, part_figures = list(parts), list(mixed.part_figures)
    if mixed.part_with_cache is not None and mixed.cached_part is not None:
        place = mixed.cached_part
        name = f"{part_title(parts[place])} with cache" if len(parts) > 1 else title
        wrapped = made(name, mixed.part_with_cache, [parts[place]], [part_figures[place]])
        if mixed.mixture is None:
            return wrapped
        parts[place], part_figures[place] = wrapped, wrapped.figures
    whole, figures = parts[0], part_figures[0]
    if mixed.mixture is not None:
        name = title if mixed.mixture_with_cache is None else f"{title} without cache"
        mixture = made(name, mixed.mixture, parts, part_figures)
        if mixed.mixture_with_cache is None:
            return mixture
        whole, figures = mixture, mixture.figures
    if mixed.mixture_with_cache is None:
        raise InvalidInputError("one part without a cache is no mixture", parameter="mixture")
    return made(title, mixed.mixture_with_cache, [whole], [figures])
