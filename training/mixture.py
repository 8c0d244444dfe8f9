"""Mixture training: train the parts, fit weights and cache on the validation text, build the mixture.

Log-probabilities under a part do not depend on weights. So each part, with its caches,
reads each text once, and weights and cache are fitted to the results. A model with a cache
reads the test text again. A static mixture of n-gram models becomes one n-gram model.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from itertools import chain, compress, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Float32s, Int64s, TokenIds
from models.cache.model import CacheModel
from models.checkpoint.load import Checkpoint, StorableModel
from models.checkpoint.manifest import check_name, version_address
from models.errors import InputError
from models.language_model import BOS, ContextMatcher, LanguageModel, Want, feature_size
from models.mixture import MixtureModel, find_context_matcher
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from training.corpus import EncodedCorpus
from training.ensemble import divide_minutes, networks_at_once, train_side_by_side, training_waves
from training.evaluation.evaluate import (
    CorpusScores,
    read_stream,
    running_text,
    score_corpus,
    summarise_scores,
)
from training.mixture_fitting import (
    CacheGridScores,
    adapt_cache,
    choose_cache,
    fit_weights,
    fit_weights_by_context,
    score_with_caches,
)
from training.progress import Progress
from training.recipe import MixtureSettings, PartSettings, Recipe, merge_tables, parse_recipe, recipe_table
from training.single_model import (
    Figures,
    Trained,
    TrainingInputs,
    base_facts,
    held_out_figures,
    held_out_texts,
    in_model_direction,
    normalisation_facts,
    part_title,
    train_single,
)
from training.static_mixture import id_translation, mix_statically, union_tokenizer

_MIN_WEIGHT = 0.01
"""Weight that a part needs, in some context, to be used."""

_WITHOUT_FEATURES = {NGramModel.family, CacheModel.family}


class PartScores(NamedTuple):
    """Scores of a text's N predicted tokens by M models.

    Attributes:
        targets: scores of each model.
        context_lengths: context tokens that the first
            n-gram model used, by token [N]; None if not requested.
        caches: scores of caches over the features of one part; None if not requested.
    """

    targets: Sequence[CorpusScores]
    context_lengths: Int64s | None
    caches: CacheGridScores | None


def _cached_part(models: Sequence[LanguageModel[Any]]) -> int:
    """Return the index of the model with a cache's features: the first with some, else the first."""
    return next((number for number, model in enumerate(models) if feature_size(model)), 0)


def score_parts(
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    recipe: Recipe,
    *,
    with_caches: bool,
    progress: Progress,
) -> PartScores:
    """Score a text with each model, in a mixture's context, and with caches if requested; see `_cached_part`."""
    settings = recipe.mixture
    cached_part = _cached_part(models) if with_caches else None
    caches, targets, lengths = None, [], None
    for index, model in enumerate(models):
        if index == cached_part:
            caches = score_with_caches(model, corpus, window=recipe.cache.window, progress=progress)
            targets.append(caches.targets)
        else:
            targets.append(score_corpus(model, corpus, context=settings.fitted_context, progress=progress))
    if settings.weights == "by-order" and (matcher := find_context_matcher(models)) is not None:
        lengths = corpus_context_lengths(models[matcher], corpus)
    return PartScores(targets, lengths, caches)


def corpus_context_lengths(model: Any, corpus: EncodedCorpus) -> TokenIds:
    """Compute a `ContextMatcher`'s context length for each predicted token of a text [N].

    The text is one stream. No listed n-gram crosses `<s>`, so contexts do not cross sentences.
    """
    matcher: ContextMatcher[Any] = model
    parts = [
        matcher.context_lengths(reading.before)[chunk != BOS]
        for chunk, reading in read_stream(model, running_text(corpus), Want(before=True))
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class _Stage(NamedTuple):
    """A part, mixture or model with a cache, with its figures and scores by split."""

    part: Any
    figures: Figures
    targets: Mapping[str, CorpusScores]


def mix_dynamically(
    title: str, recipe: Recipe, parts: Sequence[Trained | Checkpoint], inputs: TrainingInputs, *, began: float
) -> Trained:
    """Mix models by weights and cache that maximise the validation text's likelihood.

    The parts have one vocabulary, and the recipe passes `check_mixing_plan`.

    Returns:
        The outermost stage; each has the previous one as a part.

    Raises:
        InputError: no held-out token.
    """
    models, progress, context = [p.model for p in parts], inputs.progress, recipe.mixture.fitted_context
    texts = held_out_texts(inputs.texts)
    readings = {
        split: score_parts(
            models, text, recipe, with_caches=recipe.mixture.cache and split == "valid", progress=progress
        )
        for split, text in texts.items()
    }

    def figures_of(model: LanguageModel[Any], targets: Mapping[str, CorpusScores]) -> Figures:
        return {
            split: summarise_scores(model, text, targets[split], context=context).facts()
            for split, text in texts.items()
        }

    def stage(
        name: str,
        model: StorableModel[Any],
        facts: dict[str, Any],
        inner: Sequence[_Stage],
        log_probs: Mapping[str, Float32s],
    ) -> _Stage:
        """Evaluate a model of inner stages, which reads the splits without log-probabilities."""
        seconds = time.monotonic() - began
        targets = {
            split: own._replace(log_probs=log_probs[split])
            if split in log_probs
            else score_corpus(model, texts[split], context=context, progress=progress)
            for split, own in inner[0].targets.items()
        }
        figures = figures_of(model, targets)
        of, part_figures = [i.part for i in inner], [i.figures for i in inner]
        trained = Trained(name, recipe, model, (), facts, figures, seconds, of, part_figures)
        return _Stage(trained, figures, targets)

    def with_cache(name: str, inner: _Stage, caches: CacheGridScores) -> _Stage:
        cache, model = choose_cache(caches, inner.targets["valid"].log_probs), inner.part.model
        if recipe.cache.marginals:
            cache = adapt_cache(cache, model, caches, texts["valid"], progress=progress)
        # `weights` has the wrapped model's
        facts = {"weights": [1 - cache.config.weight], "cache": dataclasses.asdict(cache.config)}
        cached = CacheModel(model, cache.config, cache.frequencies)
        return stage(name, cached, facts, [inner], {"valid": cache.log_probs})

    stages = []
    for index, part in enumerate(parts):
        targets = {split: reading.targets[index] for split, reading in readings.items()}
        stages.append(_Stage(part, figures_of(part.model, targets), targets))
    caches = readings["valid"].caches
    if caches is not None and recipe.has_cache_inside:
        index, name = _cached_part(models), title
        if len(parts) > 1:
            name = f"{part_title(parts[index])} with cache"
        stages[index], caches = with_cache(name, stages[index], caches), None
    if len(stages) > 1:
        stages, unused, weights, mixed = _fit_used(stages, readings, recipe, has_cache=caches is not None)
        _note_unused(unused, inputs)
        name = title if caches is None else f"{title} without cache"
        mixture = MixtureModel([inner.part.model for inner in stages], **weights)
        whole = stage(name, mixture, weights, stages, mixed)
        stages = [whole._replace(part=whole.part._replace(unused=unused))]
    if caches is not None:
        stages = [with_cache(title, stages[0], caches)]
    trained: Trained = stages[0].part
    return trained


def check_mixing_plan(recipe: Recipe, families: Sequence[str]) -> None:
    """Reject a dynamic mixture that no part supports; an untrained network's family is `neural`.

    Raises:
        InputError: weights by order without an n-gram
            model, or a cache around a neural model without one.
    """
    if recipe.mixture.weights == "by-order" and NGramModel.family not in families:
        raise InputError.of(
            "mixture.weights",
            f"is 'by-order', but no part is an n-gram model; the parts are {', '.join(families)}",
        )
    if recipe.has_cache_inside and not set(families) - _WITHOUT_FEATURES:
        raise InputError.of(
            "cache.around",
            f"is 'neural', but no part is a neural model; the parts are {', '.join(families)}",
        )


def _fit_weights(
    log_probs: Float32s, lengths: Int64s | None, models: Sequence[LanguageModel[Any]]
) -> dict[str, Any]:
    """Fit λ for all tokens, `weights` [M], and by context length, if given, `weights_by_context` [C, M]."""
    common = fit_weights(log_probs)
    weights: dict[str, Any] = {"weights": common.tolist()}
    if lengths is not None:
        matcher: Any = models[find_context_matcher(models) or 0]
        size = matcher.num_context_lengths
        table = fit_weights_by_context(log_probs, lengths, num_lengths=size, weights=common)
        weights["weights_by_context"] = table.tolist()
    return weights


def _fit_used(
    stages: Sequence[_Stage], readings: Mapping[str, PartScores], recipe: Recipe, *, has_cache: bool
) -> tuple[list[_Stage], list[Any], dict[str, Any], dict[str, Float32s]]:
    """Fit weights, and again without unused parts, unless the recipe keeps these.

    The part whose features a cache around the mixture uses stays.

    Returns:
        Stages in use, unused parts, weights, and log-probabilities by split.
    """
    models = [one.part.model for one in stages]
    log_probs = {split: np.stack([s.targets[split].log_probs for s in stages], axis=1) for split in readings}
    lengths = {split: reading.context_lengths for split, reading in readings.items()}
    weights = _fit_weights(log_probs["valid"], lengths["valid"], models)
    table = [weights["weights"], *weights.get("weights_by_context", ())]
    is_used = np.max(table, axis=0) >= _MIN_WEIGHT
    is_used |= not recipe.mixture.drop_unused
    is_used[_cached_part(models)] |= has_cache
    if not is_used.all():
        matcher = find_context_matcher(models)
        if matcher is not None and not is_used[matcher]:  # no part has these contexts
            lengths = dict.fromkeys(lengths)
        log_probs = {split: values[:, is_used] for split, values in log_probs.items()}
        models = list(compress(models, is_used))
        weights = _fit_weights(log_probs["valid"], lengths["valid"], models)
    mixed = {split: _mix(values, weights, lengths[split]) for split, values in log_probs.items()}
    used = list(compress(stages, is_used))
    unused = [one.part for one in compress(stages, ~is_used)]
    return used, unused, weights, mixed


def _note_unused(parts: Sequence[Trained | Checkpoint], inputs: TrainingInputs) -> None:
    for title in map(part_title, parts):
        inputs.note(
            f"{title} is not part of the model: its weight is below {_MIN_WEIGHT:g}; "
            "mixture.drop_unused=false keeps it"
        )


def _mix(parts: Float32s, weights: Mapping[str, Any], lengths: Int64s | None) -> Float32s:
    """Mix the parts' log-probabilities [N, M] [N]."""
    table = np.log(np.asarray(weights.get("weights_by_context", [weights["weights"]])))  # [C, M] or [1, M]
    mixed = np.logaddexp.reduce(parts + (table if lengths is None else table[lengths]), axis=1)
    return np.asarray(mixed, np.float32)


def mixture_tokenizer(settings: MixtureSettings, published: Sequence[Checkpoint]) -> Tokenizer | None:
    """Return the tokenizer of a mixture's published parts; None without any, to learn one.

    Raises:
        InputError: fewer than two parts, one reads backward, one of a static mixture
            is no n-gram model, or the tokenizers differ or, for a static mixture, cannot be joined.
    """
    num_trained = len(settings.recipes) + sum(part.mixed for part in settings.parts)
    if num_trained + len(published) < (1 if settings.cache else 2):
        raise InputError(
            f"a mixture requires at least {'1 part and a cache' if settings.cache else '2 parts'}, given "
            f"{num_trained} recipes and {len(published)} models (mixture.recipes, mixture.parts, mixture.models)",
            param="mixture",
        )
    if not published:
        return None
    first, is_static = published[0], settings.kind == "static"
    for part in published:
        address, problem = version_address(part.path), None
        if part.manifest.direction == "backward":
            problem = f"{address} reads from right to left; the parts of a mixture must read forward"
        elif is_static and not isinstance(part.model, NGramModel):
            problem = (
                f"mixture.kind is 'static', which mixes n-gram models only; {address} is of the "
                f"family {part.model.family}"
            )
        elif not is_static and (difference := _tokenizer_difference(part, first)):
            problem = (
                f"{difference}; a dynamic mixture requires one tokenizer: use mixture.kind=static, or train the parts "
                "with one tokenizer"
            )
        if problem is not None:
            raise InputError(problem, param="mixture.models")
    if is_static:
        return union_tokenizer([(version_address(part.path), part.tokenizer) for part in published])
    return first.tokenizer


def shared_tokenizer(
    recipe: Recipe, published: Sequence[Checkpoint], teachers: Sequence[Checkpoint]
) -> Tokenizer | None:
    """Return the tokenizer of a recipe's published parts, or base, and published teachers; None without any.

    Raises:
        InputError: see `mixture_tokenizer`; or a teacher's tokenizer differs from the
            published parts' or the first teacher's, or its reading direction from the model's.
    """
    tokenizer = mixture_tokenizer(recipe.mixture, published) if recipe.family == "mixture" else None
    for teacher in teachers:
        problem = _tokenizer_difference(teacher, [*published, *teachers][0])
        if (reads := teacher.manifest.direction) != recipe.reading_direction:
            address = version_address(teacher.path)
            problem = f"{address} reads {reads}; the network reads {recipe.reading_direction}"
        if problem is not None:
            raise InputError(f"train.teacher: {problem}", param="train.teacher")
    return tokenizer or next((model.tokenizer for model in [*published, *teachers]), None)


def _tokenizer_difference(part: Checkpoint, first: Checkpoint) -> str | None:
    """Describe the difference between two models' tokenizers; None if they are equal."""
    if part.tokenizer.fingerprint == first.tokenizer.fingerprint:
        return None
    (a, of_a), (b, of_b) = (
        (version_address(p.path), f"{p.tokenizer.kind}, {len(p.tokenizer.vocabulary):,} tokens")
        for p in (part, first)
    )
    return f"{a} has another tokenizer ({of_a}) than {b} ({of_b})"


def titled_parts(settings: MixtureSettings) -> dict[str, PartSettings]:
    """Return the parts to train, by title: the name or file stem of the recipe, numbered: `lstm`, `lstm-2`."""
    parts = dict[str, PartSettings]()
    for part in (*(PartSettings(recipe=name) for name in settings.recipes), *settings.parts):
        name = Path(part.recipe).stem
        titles = chain([name], (f"{name}-{number}" for number in count(2)))
        parts[next(title for title in titles if title not in parts)] = part
    return parts


def part_recipes(mixture: Recipe) -> dict[str, Recipe]:
    """Return the recipes of the parts to train, by title.

    Unless set, the seed of the n-th network is the mixture's plus n, from 0.

    Raises:
        InputError: a part's recipe, key or name to publish is invalid,
            or a part neither belongs to the mixture nor teaches another.
    """
    titled, parts, num_networks = titled_parts(mixture.mixture), dict[str, Recipe](), 0
    for title, part in titled.items():
        if mixture.mixture.publish_parts:
            check_name(title, param="mixture.recipes")
        parts[title] = part_recipe(mixture, part, seed=mixture.seed + num_networks)
        num_networks += parts[title].family == "neural"
    for number, (title, recipe) in enumerate(parts.items()):
        earlier = list(parts)[:number]
        for name in recipe.train.teacher:
            if name in parts and name not in earlier:
                problem = "the part itself" if name == title else "trained later"
                raise InputError.of(
                    "train.teacher",
                    f"of the part {title!r} contains {name!r}, which is {problem}; the earlier parts are "
                    f"{', '.join(earlier) or 'none'}",
                )
    taught = {name for recipe in parts.values() for name in recipe.train.teacher}
    if idle := [t for t, part in titled.items() if not part.mixed and t not in taught]:
        raise InputError(
            f"the part {idle[0]!r} has mixed=false, but no other part has it as a teacher (train.teacher)",
            param="mixture.parts",
        )
    return parts


def published_teachers(recipe: Recipe) -> list[str]:
    """Return the addresses of published teachers of a recipe's networks."""
    parts = part_recipes(recipe) if recipe.family == "mixture" else {"": recipe}
    names = [name for part in parts.values() for name in part.train.teacher]
    return [name for name in dict.fromkeys(names) if name not in parts]


def part_recipe(mixture: Recipe, part: PartSettings, *, seed: int) -> Recipe:
    """Return a part's recipe: its own keys, before those of the mixture, before those of the recipe it names.

    Text and tokenizer are the mixture's. Entropy pruning and quantisation apply
    to a static mixture, not to its parts. A part without a seed gets `seed`.

    Raises:
        InputError: the part is a mixture, reads backward, or, in a static mixture, is no n-gram model.
    """
    name = part.recipe
    table = merge_tables(recipe_table(name), {"seed": seed})
    of_mixture = {"ngram"} if table.get("family") == "ngram" else {"neural", "train"}
    for settings, tables in ((mixture, of_mixture), (part, {"ngram", "neural", "train"})):
        table = merge_tables(table, settings.model_dump(include=tables, exclude_unset=True))
    if part.seed is not None:
        table["seed"] = part.seed
    recipe = parse_recipe(table, source=name)
    recipe = recipe.model_copy(update={"corpus": mixture.corpus, "tokenizer": mixture.tokenizer})
    is_static, problem = mixture.mixture.kind == "static", None
    if recipe.family == "mixture":
        problem = f"mixture.recipes contains {name!r}, which is itself a mixture"
    elif recipe.train.base:
        problem = f"train.from of {name!r} is {recipe.train.base}; train the part alone, and mix it (mixture.models)"
    elif recipe.reading_direction == "backward":
        problem = f"mixture.recipes contains {name!r}, which reads backward; the parts of a mixture must read forward"
    elif is_static and recipe.family != "ngram":
        problem = (
            f"mixture.kind is 'static', which mixes n-gram models only; {name!r} in mixture.recipes is of the "
            f"family {recipe.family}"
        )
    if problem is not None:
        raise InputError(problem, param="mixture.recipes")
    return _uncompressed(recipe) if is_static else recipe


def _uncompressed(recipe: Recipe) -> Recipe:
    """Remove entropy pruning and quantisation from a part's recipe: they are for the mixture."""
    update = {"prune_entropy": 0.0, "quantize_bits": None}
    return recipe.model_copy(update={"ngram": recipe.ngram.model_copy(update=update)})


def network_recipes(title: str, recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes of a recipe's networks, as parts or alone, by title, in order."""
    recipes = part_recipes(recipe) if recipe.family == "mixture" else {title: recipe}
    return {name: part for name, part in recipes.items() if part.family == "neural"}


def train_mixture(
    title: str, recipe: Recipe, inputs: TrainingInputs, published: Sequence[Checkpoint]
) -> Trained:
    """Train parts given as recipes, then fit all weights on the validation text.

    The tokenizer of the published parts encoded the texts.

    Raises:
        InputError: fewer than two parts, one is a
            mixture, or one of a static mixture is no n-gram model.
    """
    # checks every part before any work
    unfinished = divide_minutes(recipe, part_recipes(recipe), inputs.device)
    mixed = [title for title, part in titled_parts(recipe.mixture).items() if part.mixed]
    families = [unfinished[title].family for title in mixed]
    check_mixing_plan(recipe, [*families, *(p.model.family for p in published)])
    began = time.monotonic()
    networks = {name: part for name, part in unfinished.items() if part.family == "neural"}
    trained = {
        name: train_single(name, part, inputs) for name, part in unfinished.items() if name not in networks
    }
    for wave in training_waves(networks):
        inputs = inputs._replace(teachers={**inputs.teachers, **trained})
        at_once = networks_at_once(len(wave), inputs.device)
        if at_once > 1:
            trained |= train_side_by_side(wave, inputs, at_once=at_once)
        else:
            trained |= {name: train_single(name, part, inputs) for name, part in wave.items()}
    began -= 0.0 if inputs.runs is None else inputs.runs.seconds_before
    mix = _mix_statically if recipe.mixture.kind == "static" else mix_dynamically
    whole = mix(title, recipe, [*map(trained.__getitem__, mixed), *published], inputs, began=began)
    return whole if recipe.mixture.publish_parts else _without_mixture(whole)


def _without_mixture(trained: Trained) -> Trained:
    """Return the only part of a mixture, as an n-gram model by itself is faster; else the model."""
    only = trained.parts[0] if trained.parts else None
    if trained.model.family != MixtureModel.family or len(trained.parts) > 1 or not isinstance(only, Trained):
        return trained
    return only._replace(unused=trained.unused)


def continue_ngrams(title: str, recipe: Recipe, inputs: TrainingInputs, base: Checkpoint) -> Trained:
    """Estimate an n-gram model of the training text, and mix it with a published one, the base.

    The tokenizer has the words of the base.
    """
    began = time.monotonic()
    own = train_single(title, _uncompressed(recipe), inputs)
    directed = inputs._replace(texts=in_model_direction(inputs.texts, recipe))
    trained = _mix_statically(title, recipe, [own, base], directed, began=began)
    return trained._replace(facts={**trained.facts, "base": base_facts(base)})


def _mix_statically(
    title: str, recipe: Recipe, parts: Sequence[Trained | Checkpoint], inputs: TrainingInputs, *, began: float
) -> Trained:
    """Merge n-gram models into one n-gram model, and evaluate it."""
    vocabulary, texts = inputs.tokenizer.vocabulary, inputs.texts
    models = [part.model for part in parts if isinstance(part.model, NGramModel)]
    model, facts = mix_statically(models, vocabulary, texts.valid, recipe.ngram, progress=inputs.progress)
    facts |= normalisation_facts(model)
    seconds = time.monotonic() - began
    figures = held_out_figures(model, texts, progress=inputs.progress)

    def figures_of(part: Trained | Checkpoint) -> Figures:
        if isinstance(part, Trained):
            return part.figures
        own = texts
        if part.model.vocabulary.fingerprint != vocabulary.fingerprint:  # smaller
            ids = id_translation(vocabulary, part.model.vocabulary)
            own = texts.map(lambda corpus: corpus._replace(tokens=ids[corpus.tokens]))
        return held_out_figures(part.model, own, progress=inputs.progress)

    return Trained(title, recipe, model, (), facts, figures, seconds, parts, [*map(figures_of, parts)])
