"""Several n-gram models to one, with weights that suit held-out text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from models.ngram.build import build_automaton, list_ngrams
from models.ngram.model import NGramModel
from models.vocabulary import Vocabulary
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import score_corpus
from training.mixture_weights import fit_weights
from training.ngram.interpolation import interpolate_models
from training.ngram.shrinking import NO_COMPRESSION, CompressionSettings, compress
from training.ngram.vocabularies import id_translation, remap
from training.progress import Progress


class StaticMixture(NamedTuple):
    """A mixture and how it came about.

    Attributes:
        model: the one model.
        weights: of the parts, by EM.
        facts: what it lists, by order from 1, and what it listed before it was pruned.
    """

    model: NGramModel
    weights: tuple[float, ...]
    facts: dict[str, Any]


def mix_statically(
    parts: Sequence[NGramModel],
    vocabulary: Vocabulary,
    held_out: EncodedCorpus,
    *,
    shrinking: CompressionSettings = NO_COMPRESSION,
    progress: Progress,
) -> StaticMixture:
    """Mix n-gram models into one; weights are those that make held-out text most probable.

    Args:
        parts: the models; each one's words are among the vocabulary's.
        vocabulary: of the mixture. A word that a part does not have is impossible for that part.
        held_out: sentences in the mixture's vocabulary.
        shrinking: what to do to the one model that comes out.
        progress: told of each stage.

    Raises:
        InvalidInputError: there is no held-out token, or the model cannot be shrunk so.
    """
    models = [_over_vocabulary(vocabulary, part) for part in parts]
    scores = [score_corpus(model, held_out, progress=progress).log_probs for model in models]
    weights = fit_weights(np.stack(scores, axis=1))
    progress.start("mixing n-grams", None)
    orders = interpolate_models([list_ngrams(model.automaton) for model in models], weights)
    progress.finish()
    normalised = all(part.normalised for part in parts)
    made = compress(orders, vocabulary, shrinking, normalised=normalised, progress=progress)
    return StaticMixture(made.model, weights, made.facts)


def _over_vocabulary(vocabulary: Vocabulary, part: NGramModel) -> NGramModel:
    """The part over the mixture's vocabulary."""
    if part.vocabulary.fingerprint == vocabulary.fingerprint:
        return part
    orders = remap(list_ngrams(part.automaton), id_translation(part.vocabulary, vocabulary), len(vocabulary))
    return NGramModel(build_automaton(orders), vocabulary, normalised=part.normalised)
