"""Estimate an n-gram model from an encoded corpus: count, smooth, prune, build."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.ngram.build import build_automaton, quantise_automaton
from models.ngram.model import NGramModel
from models.vocabulary import Vocabulary
from training.corpus import EncodedCorpus
from training.ngram.counts import Observations, count_ngrams
from training.ngram.pruning import history_frequencies, prune_by_entropy
from training.ngram.smoothing.interface import Discounts, Smoothed, Smoothing
from training.ngram.smoothing.kneser_ney import ModifiedKneserNey
from training.progress import SILENT, Progress

DEFAULT_SMOOTHING: Smoothing = ModifiedKneserNey()


class NGramEstimate(NamedTuple):
    """A model and what its estimation found, each by order from 1.

    Attributes:
        model: ready to answer or to be saved.
        num_ngrams: different n-grams that are listed; those of order 1 are the vocabulary. 0 for
            orders that pruning leaves nothing of, although the model may not have them any more.
        discounts: for counts of 1, 2, and 3 or more; empty for smoothings without.
        fallback_orders: the orders whose parameters are constants, as their counts allow no estimate.
        facts: what else the smoothing found, for the model card.
    """

    model: NGramModel
    num_ngrams: tuple[int, ...]
    discounts: tuple[Discounts, ...]
    fallback_orders: tuple[int, ...]
    facts: Mapping[str, Any]


def estimate(
    corpus: EncodedCorpus,
    vocabulary: Vocabulary,
    *,
    order: int,
    smoothing: Smoothing = DEFAULT_SMOOTHING,
    prune: Sequence[int] = (),
    prune_entropy: float = 0.0,
    quantise: bool = False,
    held_out: EncodedCorpus | None = None,
    progress: Progress = SILENT,
) -> NGramEstimate:
    """Estimate an n-gram model.

    Words of the vocabulary that never occur get what `<unk>` gets.

    Args:
        corpus: sentences, without `<s>` and `</s>`.
        vocabulary: what its ids mean.
        order: the length of the longest n-grams, at least 1.
        smoothing: how probabilities are estimated; by default, modified Kneser–Ney.
        prune: by order from 1, n-grams that occur at most so often are dropped; the last
            threshold holds for all higher orders.
        prune_entropy: n-grams whose loss raises the perplexity by a smaller share are dropped.
        quantise: store probabilities and back-offs in eight bits each.
        held_out: other sentences, for what the smoothing fits on them.
        progress: told of each stage.

    Raises:
        InvalidInputError: the order or a threshold is out of range; a text is empty or not of
            this vocabulary; held-out text is needed and there is none.
    """
    smoothed = smooth(
        corpus,
        len(vocabulary),
        order=order,
        smoothing=smoothing,
        prune=prune,
        prune_entropy=prune_entropy,
        held_out=held_out,
        progress=progress,
    )
    progress.start("building the automaton", None)
    automaton = build_automaton(smoothed.orders)
    if quantise:
        automaton = quantise_automaton(automaton)
    progress.finish()
    model = NGramModel(automaton, vocabulary, normalised=not quantise)
    num_ngrams = tuple(len(ngrams.words) for ngrams, _ in smoothed.orders)
    num_ngrams += (0,) * (order - len(num_ngrams))
    return NGramEstimate(model, num_ngrams, smoothed.discounts, smoothed.fallback_orders, smoothed.facts)


def smooth(
    corpus: EncodedCorpus,
    vocab_size: int,
    *,
    order: int,
    smoothing: Smoothing = DEFAULT_SMOOTHING,
    prune: Sequence[int] = (),
    prune_entropy: float = 0.0,
    held_out: EncodedCorpus | None = None,
    progress: Progress,
) -> Smoothed:
    """The same as `estimate`, but for the automaton: n-grams with their weights, order by order.

    The counts are given up on the way, as an automaton is about as large again.
    """
    counted = count_ngrams(corpus, vocab_size, order=order, progress=progress)
    progress.start("smoothing n-grams", None)
    observations = Observations(counted, prune=prune)
    smoothed = smoothing.estimate(observations, held_out)
    progress.finish()
    if prune_entropy > 0:
        progress.start("pruning n-grams", None)
        histories = history_frequencies([one_order.counts for one_order in observations.occurrences()])
        orders = prune_by_entropy(smoothed.orders, prune_entropy, history_probs=histories)
        before = [len(ngrams.words) for ngrams, _ in smoothed.orders]
        facts = {**smoothed.facts, "ngrams_before_pruning": before}
        smoothed = smoothed._replace(orders=orders, facts=facts)
        progress.finish()
    return smoothed
