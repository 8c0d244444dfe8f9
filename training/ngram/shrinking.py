"""A finished back-off model made smaller: pruned by entropy, its values put into eight bits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from models.ngram.build import NGrams, build_automaton
from models.ngram.model import NGramModel
from models.ngram.quantised import quantise_automaton
from models.vocabulary import Vocabulary
from training.ngram.entropy_pruning import prune_by_entropy
from training.ngram.rows import Orders
from training.progress import Progress


class CompressionSettings(NamedTuple):
    """What to do to a model that no counts are known of.

    Attributes:
        prune_entropy: n-grams whose loss raises the perplexity by a smaller share are dropped; 0 drops
            none. How often a context comes up is what the model itself says.
        quantise: store probabilities and back-offs in eight bits each.
    """

    prune_entropy: float = 0.0
    quantise: bool = False


NO_COMPRESSION = CompressionSettings()


class CompressedModel(NamedTuple):
    """A model and what was done to it.

    Attributes:
        model: ready to answer or to be saved.
        listed: the n-grams that are left, by order from 1.
        facts: n-grams by order, and how many there were before pruning.
    """

    model: NGramModel
    listed: Sequence[NGrams]
    facts: dict[str, Any]


def compress(
    orders: Orders,
    vocabulary: Vocabulary,
    shrinking: CompressionSettings,
    *,
    normalised: bool = True,
    progress: Progress,
) -> CompressedModel:
    """Build a model of a table's n-grams, with fewer of them and fewer bits if that is wanted.

    Args:
        orders: n-grams and weights of the orders 1, 2, ….
        vocabulary: what their words mean.
        shrinking: what is wanted.
        normalised: whether every distribution sums to 1 before.
        progress: told of each stage.

    Raises:
        InvalidInputError: the threshold is out of range, or there are too many words for eight-bit models.
    """
    before = [len(ngrams.words) for ngrams, _ in orders]
    facts: dict[str, Any] = {"ngrams": before}
    if shrinking.prune_entropy != 0:
        progress.start("pruning n-grams", None)
        orders = prune_by_entropy(orders, shrinking.prune_entropy)
        after = [len(ngrams.words) for ngrams, _ in orders]
        facts = {"ngrams": after + [0] * (len(before) - len(after)), "ngrams_before_pruning": before}
        progress.finish()
    progress.start("building the model", None)
    automaton = build_automaton(orders)
    if shrinking.quantise:
        automaton = quantise_automaton(automaton)
    progress.finish()
    model = NGramModel(automaton, vocabulary, normalised=normalised and not shrinking.quantise)
    return CompressedModel(model, [ngrams for ngrams, _ in orders], facts)
