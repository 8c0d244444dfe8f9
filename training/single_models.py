"""From a recipe and texts to a model of one family."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from models.tokenizers import Tokenizer
from models.vocabulary import Vocabulary
from training.data import EncodedTexts
from training.ngram.estimate import estimate
from training.ngram.smoothing.choice import make_smoothing
from training.progress import Progress
from training.recipe import Recipe
from training.runs import ResumableRuns
from training.trained import Trained, held_out_figures, normalisation_facts

if TYPE_CHECKING:  # they bring in torch
    from training.embeddings import Embeddings
    from training.neural.trainer import TrainingResult


def train_single(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train a model that is no mixture; see `training.pipeline.train` for the arguments."""
    if recipe.family == "ngram":
        return train_ngram(title, recipe, tokenizer, texts, progress=progress)
    return train_neural(title, recipe, tokenizer, texts, device=device, progress=progress, runs=runs)


def train_ngram(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, progress: Progress
) -> Trained:
    """Estimate an n-gram model; what its smoothing fits is fitted on the validation text.

    A backward model is an ordinary one over reversed sentences, and is evaluated on such.
    """
    began = time.monotonic()
    settings = recipe.ngram
    texts = in_model_direction(texts, recipe)
    result = estimate(
        texts.train,
        tokenizer.vocabulary,
        order=settings.order,
        smoothing=make_smoothing(
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


def train_neural(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train a neural model; a backward one is an ordinary one of reversed sentences."""
    from training.embeddings import embedding_facts, read_embeddings  # brings in torch, unlike n-grams
    from training.neural.diagnostics import diagnose
    from training.neural.normalisers import normaliser_facts

    texts = in_model_direction(texts, recipe)
    began = time.monotonic()
    path, vocabulary = recipe.train.embeddings, tokenizer.vocabulary
    embeddings = read_embeddings(Path(path), vocabulary, size=recipe.neural.embedding_size) if path else None
    result = fit_network(
        title,
        recipe,
        vocabulary,
        texts,
        device=device,
        progress=progress,
        runs=runs,
        embeddings=embeddings,
    )
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


def fit_network(
    title: str,
    recipe: Recipe,
    vocabulary: Vocabulary,
    texts: EncodedTexts,
    *,
    device: str,
    progress: Progress,
    runs: ResumableRuns | None,
    embeddings: "Embeddings | None" = None,
) -> "TrainingResult":
    """Train a recipe's network, and measure nothing; the texts are in reading order.

    Of several processes, only the first one needs embeddings: all start from its weights.
    """
    from training.neural.trainer import train_network

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
        runs.record_end(result.stopped, notes=result.notes, seconds_before=result.seconds_before)
    return result


def in_model_direction(texts: EncodedTexts, recipe: Recipe) -> EncodedTexts:
    """Texts as a recipe's model reads them: for a backward one, every sentence from its last word to its first."""
    if recipe.reading_direction == "forward":
        return texts
    test = None if texts.test is None else texts.test.reversed()
    return EncodedTexts(texts.train.reversed(), texts.valid.reversed(), test)
