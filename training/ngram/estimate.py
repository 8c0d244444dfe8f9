"""From an encoded corpus to an n-gram model: count, smooth, build."""

from typing import NamedTuple

from models.ngram.build import build_automaton
from models.ngram.model import NGramModel
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.ngram.counting import count_ngrams
from training.ngram.kneser_ney import Discounts, modified_kneser_ney
from training.progress import Progress


class NGramEstimate(NamedTuple):
    """A model and what its estimation found, each by order from 1.

    Attributes:
        model: ready to answer or to be saved.
        num_ngrams: different n-grams; those of order 1 are the vocabulary.
        discounts: for counts of 1, 2, and 3 or more.
        fallback_orders: the orders whose discounts are constants, as their counts allow no estimate.
    """

    model: NGramModel
    num_ngrams: tuple[int, ...]
    discounts: tuple[Discounts, ...]
    fallback_orders: tuple[int, ...]


def estimate(
    corpus: EncodedCorpus, vocabulary: Vocabulary, *, order: int, progress: Progress
) -> NGramEstimate:
    """Estimate an n-gram model by interpolated modified Kneser–Ney smoothing.

    Words of the vocabulary that never occur get what `<unk>` gets: the unigrams' freed mass,
    shared evenly.

    Args:
        corpus: sentences, without `<s>` and `</s>`.
        vocabulary: what its ids mean.
        order: the length of the longest n-grams, at least 1.
        progress: told of each stage.

    Raises:
        InvalidInputError: the order is out of range, or the corpus is empty or not of this vocabulary.
    """
    counted = count_ngrams(corpus, len(vocabulary), order=order, progress=progress)
    progress.start("smoothing n-grams", None)
    smoothed = modified_kneser_ney(counted)
    ngrams = [one_order.ngrams for one_order in counted]
    num_ngrams = tuple(len(one_order.counts) for one_order in counted)
    del counted  # the automaton is about as large again
    automaton = build_automaton(list(zip(ngrams, smoothed.weights, strict=True)))
    progress.finish()
    model = NGramModel(automaton, vocabulary)
    return NGramEstimate(model, num_ngrams, smoothed.discounts, smoothed.fallback_orders)
