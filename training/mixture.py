"""Mixture training: train the parts, fit weights and cache on the validation text, build the mixture.

The log-probability that a part gives a token does not depend on the weights. So each part, with its
caches, reads each text once; weights, cache and all results are computed from these
log-probabilities. A static mixture of n-gram models becomes one n-gram model instead.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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


class PartScores(NamedTuple):
    """Scores of a text's N predicted tokens by M models.

    Attributes:
        corpus: the text.
        targets: of each model.
        context_lengths: context tokens that the first n-gram model used for each token [N]; None
            if not requested.
        caches: scores of caches over the features of one part; None likewise.
    """

    corpus: EncodedCorpus
    targets: Sequence[CorpusScores]
    context_lengths: npt.NDArray[np.int64] | None
    caches: CacheGridScores | None


def first_featured_part(models: Sequence[LanguageModel[Any]]) -> int | None:
    """Return the index of the first model with features; None if none has."""
    return next((number for number, model in enumerate(models) if feature_size(model)), None)


def score_parts(
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    recipe: Recipe,
    *,
    grid: CacheGrid | None = None,
    progress: Progress,
) -> PartScores:
    """Score a text with each model, in the context of a mixture's recipe and with its cache.

    Args:
        models: of one vocabulary.
        corpus: encoded in that vocabulary.
        recipe: of the mixture.
        grid: cache shapes; None: the default search grid.
        progress: reports each pass over the text.
    """
    settings = recipe.mixture
    cached_part = (first_featured_part(models) or 0) if settings.cache else None
    caches, targets = None, []
    for index, model in enumerate(models):
        if index == cached_part:
            caches = score_with_caches(
                model, corpus, window=recipe.cache.window, grid=grid, progress=progress
            )
            targets.append(caches.targets)
        else:
            targets.append(score_corpus(model, corpus, context=settings.fitted_context, progress=progress))
    matcher_index = find_context_matcher(models) if settings.weights == "by-order" else None
    lengths = None if matcher_index is None else corpus_context_lengths(models[matcher_index], corpus)
    return PartScores(corpus, targets, lengths, caches)


def corpus_context_lengths(model: Any, corpus: EncodedCorpus) -> TokenIds:
    """Compute the context length that a `ContextMatcher` uses for each predicted token of a text [N].

    The text is read as one stream: no listed n-gram goes across `<s>`, so contexts are those of sentences.
    """
    matcher: ContextMatcher[Any] = model
    parts: list[TokenIds] = []
    text = running_text(corpus)
    state = model.advance(model.empty_state(1), np.array([BOS]))
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[None, start : start + CHUNK_TOKENS]
        lengths = np.asarray([chunk.shape[1]])
        parts.append(matcher.context_lengths_per_token(state, chunk, lengths)[chunk != BOS])
        state = prefill_sequences(model, state, chunk, lengths)
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


TokenLogProbs = npt.NDArray[np.float32]
_WITHOUT_FEATURES = {NGramModel.family, CacheModel.family}


class _Weights(NamedTuple):
    """Weights λ for all tokens [M], and by context length [C, M], which may be empty."""

    common: tuple[float, ...]
    by_context: tuple[tuple[float, ...], ...]


class _FittedMixture(NamedTuple):
    """Fitted weights, and the cache around the mixture or, given its index, around one part."""

    weights: _Weights
    cache: ChosenCache | None
    cached_part: int | None


def mix_dynamically(
    title: str,
    recipe: Recipe,
    parts: Sequence[Trained | Checkpoint],
    texts: EncodedTexts,
    *,
    began: float,
    progress: Progress,
) -> Trained:
    """Mix models with the weights and the cache that maximise the likelihood of the validation text.

    Args:
        title: of the mixture.
        recipe: of the mixture.
        parts: of one vocabulary.
        texts: encoded in that vocabulary; the training text is not used.
        began: start of the training, by the monotonic clock.
        progress: reports each pass over a text.

    Returns:
        The outermost stage; each stage has the one before it as a part.

    Raises:
        InvalidInputError: there is no held-out token, or no part supports the recipe.
    """
    models = [part.model for part in parts]
    check_mixing_plan(recipe, [model.family for model in models])
    readings = {"valid": score_parts(models, texts.valid, recipe, progress=progress)}
    fitted = _fit(readings["valid"], models, recipe)
    if texts.test is not None:
        grid = None if fitted.cache is None else grid_of(fitted.cache.config)
        readings["test"] = score_parts(models, texts.test, recipe, grid=grid, progress=progress)
    return _build_stages(title, recipe, parts, readings, fitted, seconds=time.monotonic() - began)


def check_mixing_plan(recipe: Recipe, families: Sequence[str]) -> None:
    """Reject a recipe that no part supports.

    Args:
        recipe: of a dynamic mixture.
        families: of the parts; `neural` for a neural part not trained yet.

    Raises:
        InvalidInputError: weights by context without an n-gram model, or a cache around a neural model
            without one.
    """
    if recipe.mixture.weights == "by-order" and NGramModel.family not in families:
        raise InvalidInputError(
            f"mixture.weights is 'by-order', but no part is an n-gram model: {', '.join(families)}",
            parameter="mixture.weights",
        )
    if recipe.has_cache_inside and not set(families) - _WITHOUT_FEATURES:
        raise InvalidInputError(
            f"cache.around is 'neural', but no part is a neural model: {', '.join(families)}",
            parameter="cache.around",
        )


def _fit(valid: PartScores, models: Sequence[LanguageModel[Any]], recipe: Recipe) -> _FittedMixture:
    """Fit cache and weights, the inner stage first."""
    parts = [targets.log_probs for targets in valid.targets]
    cache, cached_part = None, None
    if valid.caches is not None and recipe.has_cache_inside:
        cached_part = first_featured_part(models) or 0
        cache = choose_cache(valid.caches, parts[cached_part])
        parts[cached_part] = cache.log_probs
    weights = _fit_weights(np.stack(parts, axis=1), valid.context_lengths, models)
    if valid.caches is not None and cache is None:
        cache = choose_cache(valid.caches, _mix(parts, weights, valid.context_lengths))
    return _FittedMixture(weights, cache, cached_part)


def _fit_weights(
    log_probs: TokenLogProbs, lengths: npt.NDArray[np.int64] | None, models: Sequence[LanguageModel[Any]]
) -> _Weights:
    common = fit_weights(log_probs)
    matcher_index = find_context_matcher(models)
    if lengths is None or matcher_index is None:
        return _Weights(common, ())
    matcher: Any = models[matcher_index]
    table = fit_weights_by_context(
        log_probs, lengths, num_lengths=matcher.num_context_lengths, weights=common
    )
    return _Weights(common, table)


def _mix(
    parts: Sequence[TokenLogProbs], weights: _Weights, lengths: npt.NDArray[np.int64] | None
) -> TokenLogProbs:
    """Mix the parts' log-probabilities [N]; return those of a single part unchanged."""
    if len(parts) == 1:
        return parts[0]
    table = np.log(np.asarray(weights.by_context or [weights.common]))  # [C, M] or [1, M]
    rows = table if lengths is None else table[lengths]
    mixed = np.logaddexp.reduce(np.stack(parts, axis=1) + rows, axis=1)
    return np.asarray(mixed, dtype=np.float32)


class _Stage(NamedTuple):
    """A part, or parts that are mixed or have a cache; with its figures and scores by split."""

    part: Any
    figures: Figures
    targets: Mapping[str, CorpusScores]


def _build_stages(
    title: str,
    recipe: Recipe,
    parts: Sequence[Trained | Checkpoint],
    readings: Mapping[str, PartScores],
    fitted: _FittedMixture,
    *,
    seconds: float,
) -> Trained:
    """Build the model of each stage, with its figures; return the last one."""
    weights, cache, cached_part = fitted

    def figures_of(model: LanguageModel[Any], targets: Mapping[str, CorpusScores]) -> Figures:
        context = recipe.mixture.fitted_context
        return {
            split: evaluation_facts(summarise_scores(model, reading.corpus, targets[split], context=context))
            for split, reading in readings.items()
        }

    def stage(name: str, model: StorableModel[Any], facts: dict[str, Any], inner: Sequence[_Stage]) -> _Stage:
        targets = {}
        for split, reading in readings.items():
            log_probs = _mix([i.targets[split].log_probs for i in inner], weights, reading.context_lengths)
            if isinstance(model, CacheModel) and reading.caches is not None:
                log_probs = mix_with_cache(log_probs, reading.caches, model.config)
            targets[split] = inner[0].targets[split]._replace(log_probs=log_probs)
        figures = figures_of(model, targets)
        of, part_figures = [i.part for i in inner], [i.figures for i in inner]
        trained = Trained(name, recipe, model, (), facts, figures, seconds, of, part_figures)
        return _Stage(trained, figures, targets)

    stages = []
    for index, part in enumerate(parts):
        targets = {split: reading.targets[index] for split, reading in readings.items()}
        stages.append(_Stage(part, figures_of(part.model, targets), targets))
    if cache is not None and cached_part is not None:
        inner = stages[cached_part]
        name = f"{part_title(inner.part)} with cache" if len(parts) > 1 else title
        model = CacheModel(inner.part.model, cache.config)
        stages[cached_part] = stage(name, model, cache_facts(cache), [inner])
    has_outer_cache = cache is not None and cached_part is None
    if len(stages) > 1:
        name = f"{title} without cache" if has_outer_cache else title
        mixed = MixtureModel(
            [inner.part.model for inner in stages], weights.common, weights_by_context=weights.by_context
        )
        stages = [stage(name, mixed, _weight_facts(weights), stages)]
    if cache is not None and cached_part is None:
        model = CacheModel(stages[0].part.model, cache.config)
        stages = [stage(title, model, cache_facts(cache), stages)]
    whole: Trained = stages[0].part
    return whole


def _weight_facts(weights: _Weights) -> dict[str, Any]:
    by_context = {"weights_by_context": [list(row) for row in weights.by_context]}
    return {"weights": list(weights.common), **(by_context if weights.by_context else {})}


def cache_facts(chosen: ChosenCache) -> dict[str, Any]:
    """Return the facts of a fitted cache for metrics.json; `weights` is the share of the wrapped model."""
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
    """Return the tokenizer of a mixture's published parts; None without such parts: one must be learnt.

    Raises:
        InvalidInputError: there are fewer than two parts, a part reads backward, a part of a static mixture
            is no n-gram model, or the parts' tokenizers differ, or cannot be joined for a static mixture.
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
    """Translate texts from a mixture's vocabulary to a part's smaller vocabulary."""
    if part.fingerprint == vocabulary.fingerprint:
        return texts
    ids = id_translation(vocabulary, part)

    def translate(corpus: EncodedCorpus) -> EncodedCorpus:
        return corpus._replace(tokens=ids[corpus.tokens])

    test = None if texts.test is None else translate(texts.test)
    return EncodedTexts(translate(texts.train), translate(texts.valid), test)


def _tokenizer_label(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.kind}, {len(tokenizer.vocabulary):,} tokens"


def part_recipes(mixture: Recipe) -> dict[str, Recipe]:
    """Return the recipes of a mixture's parts to train, by title: the recipe's name, or its file's stem.

    Raises:
        InvalidInputError: two parts have the same title, or a part to publish has an invalid model name.
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
    """Return a part's recipe, overridden by keys set in the mixture's recipe, with its text and tokenizer.

    Entropy pruning and quantisation apply to a static mixture's final model, not to its parts.

    Raises:
        InvalidInputError: the part is itself a mixture, reads backward, or is no n-gram model in a static mixture.
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
        uncompressed = {"prune_entropy": 0.0, "quantize_bits": None}
        recipe = recipe.model_copy(update={"ngram": recipe.ngram.model_copy(update=uncompressed)})
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
    """Train the parts given as recipes, then fit the weights of all parts on the validation text.

    Raises:
        InvalidInputError: fewer than two parts, a part that is a mixture, or a part of a static
            mixture that is no n-gram model.
        VocabularyMismatchError: the texts' tokenizer is not that of the published parts.
    """
    shared = mixture_tokenizer(recipe.mixture, published)
    if shared is not None and shared.fingerprint != tokenizer.fingerprint:
        raise VocabularyMismatchError(
            "the texts were encoded with another tokenizer than the mixture's parts have"
        )
    unfinished = part_recipes(recipe)  # checks every part before any work
    families = [r.family for r in unfinished.values()]
    check_mixing_plan(recipe, [*families, *(p.model.family for p in published)])
    began = time.monotonic()
    trained = [
        train_single(name, part, tokenizer, texts, device=device, progress=progress, runs=runs)
        for name, part in unfinished.items()
    ]
    began -= 0.0 if runs is None else runs.seconds_before
    parts: list[Trained | Checkpoint] = [*trained, *published]
    if recipe.mixture.kind == "static":
        return _mix_statically(title, recipe, tokenizer, texts, parts, began=began, progress=progress)
    return mix_dynamically(title, recipe, parts, texts, began=began, progress=progress)


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
    """Merge n-gram models into one n-gram model, and evaluate it."""
    settings, vocabulary = recipe.ngram, tokenizer.vocabulary
    mixed = mix_statically(
        [part.model for part in parts if isinstance(part.model, NGramModel)],
        vocabulary,
        texts.valid,
        shrinking=CompressionSettings(settings.prune_entropy, quantise=settings.quantize_bits is not None),
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
