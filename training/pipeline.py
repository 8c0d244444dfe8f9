"""From a recipe and texts to a trained model: one function per family."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Direction
from models.checkpoint.registry import check_name
from models.checkpoint.write import StorableModel
from models.errors import InvalidInputError, VocabularyMismatchError
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from models.tokenizers import Tokenizer
from training.data import EncodedTexts
from training.evaluation import evaluate, summary
from training.mixing import in_words_of, mix, mixture_tokenizer
from training.neural.history import HistoryRecord
from training.ngram.estimate import estimate
from training.ngram.shrinking import Shrinking
from training.ngram.smoothing.choice import smoothing_of
from training.normalisation import measure_sums
from training.progress import Progress
from training.recipe import Recipe, merged, parse_recipe, recipe_table

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
        return self.recipe.ngram.direction if self.recipe.family == "ngram" else "forward"


def train_ngram(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, progress: Progress
) -> Trained:
    """Estimate an n-gram model; what its smoothing fits is fitted on the validation text.

    A backward model is an ordinary one over reversed sentences, and is evaluated on such.
    """
    began = time.monotonic()
    settings = recipe.ngram
    if settings.direction == "backward":
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
) -> Trained:
    """Train a recurrent model."""
    from training.neural.trainer import train_recurrent  # brings in torch, which n-gram models do without

    began = time.monotonic()
    result = train_recurrent(
        texts.train,
        texts.valid,
        tokenizer.vocabulary,
        network=recipe.neural,
        settings=recipe.train,
        seed=recipe.seed,
        device=device,
        progress=progress,
    )
    facts = {"stopped": result.stopped, "device": device}
    seconds = time.monotonic() - began
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
    began = time.monotonic()
    trained = [
        train(name, part, tokenizer, texts, device=device, progress=progress)
        for name, part in unfinished.items()
    ]
    parts: list[Trained | Checkpoint] = [*trained, *published]
    vocabulary = tokenizer.vocabulary
    wanted = recipe.ngram
    mixed = mix(
        recipe.mixture.kind,
        [p.model for p in parts],
        vocabulary,
        texts.valid,
        shrinking=Shrinking(wanted.prune_entropy, quantise=wanted.quantize_bits is not None),
        progress=progress,
    )
    facts = {**mixed.facts, **normalisation_facts(mixed.model)}
    seconds = time.monotonic() - began
    figures = held_out_figures(mixed.model, texts, progress=progress)
    published_figures = [
        held_out_figures(p.model, in_words_of(p.model.vocabulary, texts, vocabulary), progress=progress)
        for p in published
    ]
    part_figures = [*(p.figures for p in trained), *published_figures]
    return Trained(title, recipe, mixed.model, (), facts, figures, seconds, parts, part_figures)


def train(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    published: Sequence[Checkpoint] = (),
    device: str,
    progress: Progress,
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
    """
    if recipe.family == "ngram":
        return train_ngram(title, recipe, tokenizer, texts, progress=progress)
    if recipe.family == "neural":
        return train_neural(title, recipe, tokenizer, texts, device=device, progress=progress)
    return train_mixture(
        title, recipe, tokenizer, texts, published=published, device=device, progress=progress
    )


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
    recipe = parse_recipe(merged(recipe_table(name), {**changes, "seed": mixture.seed}), source=name)
    recipe = recipe.model_copy(update={"corpus": mixture.corpus, "tokenizer": mixture.tokenizer})
    if recipe.family == "mixture":
        raise InvalidInputError(
            f"mixture.recipes names {name!r}, which is itself a mixture", parameter="mixture.recipes"
        )
    if recipe.family == "ngram" and recipe.ngram.direction == "backward":
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
