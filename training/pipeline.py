"""From a recipe and texts to a trained model: one function per family."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Direction
from models.checkpoint.write import StorableModel
from models.errors import InvalidInputError, VocabularyMismatchError
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer
from training.data import EncodedTexts
from training.dynamic_mixing import DynamicMixture, MixingPlan, Stage, check_plan, mix_dynamically
from training.evaluation import Context, evaluate, summary
from training.mixing import address_of, in_words_of, mixture_tokenizer
from training.neural.history import HistoryRecord
from training.ngram.estimate import estimate
from training.ngram.shrinking import Shrinking
from training.ngram.smoothing.choice import smoothing_of
from training.ngram.static_mixture import mix_statically
from training.normalisation import measure_sums
from training.part_recipes import part_recipes
from training.progress import SILENT, Progress
from training.recipe import Recipe
from training.runs import Runs

Figures: TypeAlias = dict[str, dict[str, Any]]


class Trained(NamedTuple):
    """A model fresh from training.

    Attributes:
        title: the recipe or model it came from.
        recipe: the recipe, resolved.
        model: the model.
        history: the neural trainer's records; empty for others.
        facts: what the family wants remembered: discounts, n-grams by order, weights.
        figures: held-out figures by split, as `evaluation.summary` has them.
        seconds: wall time of training, texts, tokenizer and figures aside.
        parts: of a mixture: models trained for it, or published ones.
        part_figures: of a mixture: each part's figures on the same texts.
    """

    title: str
    recipe: Recipe
    model: StorableModel[Any]
    history: Sequence[HistoryRecord]
    facts: dict[str, Any]
    figures: Figures
    seconds: float
    parts: "Sequence[Trained | Checkpoint]" = ()
    part_figures: Sequence[Figures] = ()

    @property
    def direction(self) -> Direction:
        """In which order the model reads a text."""
        return self.recipe.reads

    @property
    def context(self) -> Context:
        """In which context the figures are."""
        return self.recipe.mixture.fitted_context if self.recipe.family == "mixture" else "sentence"


def train_ngram(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, progress: Progress
) -> Trained:
    """Estimate an n-gram model; what its smoothing fits is fitted on the validation text.

    A backward model is an ordinary one over reversed sentences, and is evaluated on such.
    """
    began = time.monotonic()
    settings = recipe.ngram
    if recipe.reads == "backward":
        texts = _backward(texts)
    result = estimate(
        texts.train,
        tokenizer.vocabulary,
        order=settings.order,
        smoothing=smoothing_of(
            settings.smoothing, k=settings.k, buckets=settings.buckets, discounts=settings.discounts
        ),
        prune=settings.prune,
        prune_entropy=settings.prune_entropy,
        quantise=settings.quantize_bits is not None,
        held_out=texts.valid,
        progress=progress,
    )
    facts = {
        "ngrams": list(result.num_ngrams),
        "smoothing": settings.smoothing,
        "discounts": [list(d) for d in result.discounts],
        "fallback_orders": list(result.fallback_orders),
        **result.facts,
        **normalisation_facts(result.model),
    }
    seconds = time.monotonic() - began
    figures = held_out_figures(result.model, texts, progress=progress)
    return Trained(title, recipe, result.model, (), facts, figures, seconds)


def _backward(texts: EncodedTexts) -> EncodedTexts:
    """Every sentence from its last word to its first."""
    test = None if texts.test is None else texts.test.reversed()
    return EncodedTexts(texts.train.reversed(), texts.valid.reversed(), test)


def train_neural(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: Runs | None = None,
) -> Trained:
    """Train a neural model; a backward one is an ordinary one of reversed sentences."""
    from training.embeddings import embedding_facts, read_embeddings  # brings in torch, unlike n-grams
    from training.neural.diagnostics import diagnose
    from training.neural.normalisers import normaliser_facts
    from training.neural.trainer import train_network

    if recipe.reads == "backward":
        texts = _backward(texts)
    began = time.monotonic()
    path, vocabulary = recipe.train.embeddings, tokenizer.vocabulary
    embeddings = read_embeddings(Path(path), vocabulary, size=recipe.neural.embedding_size) if path else None
    result = train_network(
        texts.train,
        texts.valid,
        vocabulary,
        network=recipe.neural,
        settings=recipe.train,
        seed=recipe.seed,
        device=device,
        progress=progress,
        embeddings=embeddings,
        state_file=None if runs is None else runs.state_file(title),
        resume=runs is not None and runs.resume,
    )
    if runs is not None:
        runs.ended(result.stopped, notes=result.notes, seconds_before=result.seconds_before)
    seconds = time.monotonic() - began + result.seconds_before
    diagnostics = diagnose(result.model.network, texts.valid)
    facts = {
        "stopped": result.stopped,
        "device": device,
        "diagnostics": diagnostics,
        **embedding_facts(path, embeddings),
        **normaliser_facts(result.model, texts.valid),
    }
    figures = held_out_figures(result.model, texts, progress=progress)
    return Trained(title, recipe, result.model, result.history, facts, figures, seconds)


def train_mixture(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    published: Sequence[Checkpoint],
    device: str,
    progress: Progress,
    runs: Runs | None = None,
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
    plan = _plan(recipe)
    families = [r.family for r in unfinished.values()]
    check_plan(plan, [*families, *(p.model.family for p in published)])
    began = time.monotonic()
    trained = [
        train(name, part, tokenizer, texts, device=device, progress=progress, runs=runs)
        for name, part in unfinished.items()
    ]
    began -= 0.0 if runs is None else runs.seconds_before
    parts: list[Trained | Checkpoint] = [*trained, *published]
    if recipe.mixture.kind == "static":
        return _mixed_statically(title, recipe, tokenizer, texts, parts, began=began, progress=progress)
    mixed = mix_dynamically([p.model for p in parts], texts, plan, progress=progress)
    return _mixed_dynamically(title, recipe, parts, mixed, seconds=time.monotonic() - began)


def _plan(recipe: Recipe) -> MixingPlan:
    return MixingPlan(
        by_context=recipe.mixture.weights == "by-order",
        context=recipe.mixture.fitted_context,
        window=recipe.cache.window if recipe.mixture.cache else None,
        around_part=recipe.mixture.cache and recipe.cache.around == "neural",
    )


def _mixed_statically(
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
        shrinking=Shrinking(wanted.prune_entropy, quantise=wanted.quantize_bits is not None),
        progress=progress,
    )
    facts = {"weights": list(mixed.weights), **mixed.facts, **normalisation_facts(mixed.model)}
    seconds = time.monotonic() - began
    figures = held_out_figures(mixed.model, texts, progress=progress)
    part_figures = [
        part.figures
        if isinstance(part, Trained)
        else held_out_figures(
            part.model, in_words_of(part.model.vocabulary, texts, vocabulary), progress=progress
        )
        for part in parts
    ]
    return Trained(title, recipe, mixed.model, (), facts, figures, seconds, parts, part_figures)


def _mixed_dynamically(
    title: str,
    recipe: Recipe,
    parts: Sequence[Trained | Checkpoint],
    mixed: DynamicMixture,
    *,
    seconds: float,
) -> Trained:
    """The whole, each stage a part of the next."""

    def made(
        name: str, stage: Stage, of: Sequence[Trained | Checkpoint], part_figures: Sequence[Figures]
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


def part_title(part: Trained | Checkpoint) -> str:
    """What to call a part: its recipe, or its address."""
    return part.title if isinstance(part, Trained) else address_of(part.path)


def train(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    published: Sequence[Checkpoint] = (),
    device: str,
    progress: Progress,
    runs: Runs | None = None,
) -> Trained:
    """Train what the recipe says.

    Args:
        title: what to call it.
        recipe: what to do.
        tokenizer: the one that encoded the texts.
        texts: what to learn from, decide by and report on.
        published: loaded checkpoints, the parts of a mixture that exist already.
        device: `cpu` or `cuda`; n-gram models are estimated on the CPU.
        progress: told of every stage.
        runs: where trainings of networks are saved, to be resumed.
    """
    if recipe.family == "ngram":
        return train_ngram(title, recipe, tokenizer, texts, progress=progress)
    if recipe.family == "neural":
        return train_neural(title, recipe, tokenizer, texts, device=device, progress=progress, runs=runs)
    return train_mixture(
        title, recipe, tokenizer, texts, published=published, device=device, progress=progress, runs=runs
    )


def train_along(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, device: str, runs: Runs
) -> None:
    """What the other ones of several processes do while the first one trains: their share of the networks."""
    for name, part in networks_of(title, recipe).items():
        train_neural(name, part, tokenizer, texts, device=device, progress=SILENT, runs=runs)


def networks_of(title: str, recipe: Recipe) -> dict[str, Recipe]:
    """The networks that a recipe trains, itself or as parts, by title, in order."""
    recipes = part_recipes(recipe) if recipe.family == "mixture" else {title: recipe}
    return {name: part for name, part in recipes.items() if part.family == "neural"}


def normalisation_facts(model: StorableModel[Any]) -> dict[str, Any]:
    """How far the probabilities of an n-gram model that does not sum to 1 are off; nothing of others."""
    if not isinstance(model, NGramModel) or model.normalised:
        return {}
    return {"normalisation": measure_sums(model).as_facts()}


def held_out_figures(model: LanguageModel[Any], texts: EncodedTexts, *, progress: Progress) -> Figures:
    """Sentence-context figures on the validation text and, if there is one, the test text."""
    return {
        split: summary(evaluate(model, corpus, progress=progress))
        for split, corpus in {"valid": texts.valid, "test": texts.test}.items()
        if corpus is not None
    }
