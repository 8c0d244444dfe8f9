"""From a mixture's recipe to its parts, and from them to the whole."""

import time
from collections.abc import Sequence

from models.checkpoint.load import Checkpoint
from models.errors import InvalidInputError, VocabularyMismatchError
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from training.data import EncodedTexts
from training.dynamic_mixing import (
    DynamicMixture,
    MixingPlan,
    MixtureStage,
    check_mixing_plan,
    mix_dynamically,
)
from training.mixing import mixture_tokenizer, translate_texts
from training.ngram.shrinking import CompressionSettings
from training.ngram.static_mixture import mix_statically
from training.part_recipes import part_recipes
from training.progress import Progress
from training.recipe import Recipe
from training.runs import ResumableRuns
from training.single_models import train_single
from training.trained import Figures, Trained, held_out_figures, normalisation_facts, part_title


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
