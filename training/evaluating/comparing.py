"""Two models on one text: which one is better, how surely, and how far apart they are."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.protocol import LanguageModel
from training.corpora.encoded import EncodedCorpus
from training.evaluating.distributions import (
    DEFAULT_SAMPLE,
    LogProbRows,
    sample_positions,
    sampled_distributions,
)
from training.evaluating.entropy import SampledMean, num_predicted, sampled_mean
from training.evaluating.scoring import DEFAULT_WINDOW_TOKENS, Context, CorpusScores
from training.progress import Progress

_TWO_SIDED_95 = 1.959964


class LogProbDifference(NamedTuple):
    """By how much a model A gives a text a higher log-probability than a model B.

    Attributes:
        nats_per_token: A's mean log-probability less B's; positive where A is better. None where
            either thinks a token impossible.
        standard_error: of it, from how it varies between sentences; None for fewer than two.
        low: end of the interval that holds it with 95 % probability.
        high: the other end.
        sentences: that it varies between.
    """

    nats_per_token: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    sentences: int


def log_prob_difference(
    a: CorpusScores, b: CorpusScores, corpus: EncodedCorpus, *, context: Context
) -> LogProbDifference:
    """The paired difference of two models' log-probabilities of the same tokens.

    Both read the same sentences, so what makes a sentence hard for both cancels: the difference is
    known far better than either perplexity. It is a ratio of two sums over sentences, nats and
    tokens; its standard error is that of the linearised ratio (Cochran, Sampling Techniques, 1977,
    section 6.4), which a bootstrap over sentences approaches.

    Args:
        a: what A said.
        b: what B said of the same corpus in the same context.
        corpus: the text.
        context: as it was scored; of `document`, texts stand for sentences.
    """
    lengths = np.diff(corpus.offsets) + (context != "document")
    differences = a.log_probs.astype(np.float64) - b.log_probs
    count, sentences = len(differences), len(lengths)
    if not count or not np.isfinite(differences).all():
        return LogProbDifference(None, None, None, None, sentences)
    mean = float(differences.sum()) / count
    if sentences < 2:
        return LogProbDifference(mean, None, None, None, sentences)
    owners = np.repeat(np.arange(sentences), lengths)
    residuals = np.bincount(owners, differences, minlength=sentences) - mean * lengths
    variance = float(residuals @ residuals) * sentences / (sentences - 1)
    error = math.sqrt(variance) / count
    return LogProbDifference(
        mean, error, mean - _TWO_SIDED_95 * error, mean + _TWO_SIDED_95 * error, sentences
    )


def mean_divergence(
    a: LanguageModel[Any],
    b: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    context: Context = "sentence",
    window: int = DEFAULT_WINDOW_TOKENS,
    sample: int = DEFAULT_SAMPLE,
    progress: Progress,
) -> SampledMean:
    """The mean Kullback–Leibler divergence KL(A‖B) of two models' predictions of a text.

    Args:
        a: A, any family.
        b: B, of the same vocabulary.
        corpus: encoded with their tokenizer.
        context: see `training.evaluating.scoring`.
        window: tokens in a window, for `document`.
        sample: predictions looked at, at most.
        progress: told of predictions, once for each model.

    Raises:
        InvalidInputError: the vocabularies differ.
    """
    if a.vocabulary.fingerprint != b.vocabulary.fingerprint:
        raise InvalidInputError(
            f"the models have different vocabularies ({len(a.vocabulary):,} and {len(b.vocabulary):,} tokens): "
            "there is no divergence between them",
            parameter="against",
        )
    places = sample_positions(num_predicted(corpus, context), sample)
    progress.start(f"divergence of the {a.family} from the {b.family}", 2 * len(places))
    of_a, of_b = (
        sampled_distributions(model, corpus, places, context=context, window=window, progress=progress)
        for model in (a, b)
    )
    divergences = [_row_divergences(p, q) for p, q in zip(of_a, of_b, strict=True)]
    progress.finish()
    return sampled_mean(np.concatenate(divergences) if divergences else np.zeros(0))


def _row_divergences(a: LogProbRows, b: LogProbRows) -> npt.NDArray[np.float64]:
    """KL of each row of log-probabilities [n, V], in nats [n]; infinite where only B rules a token out."""
    p = np.exp(a)
    possible = p > 0
    gaps = np.zeros_like(a)
    np.subtract(a, b, out=gaps, where=possible)
    divergences: npt.NDArray[np.float64] = np.sum(p * gaps, axis=1, where=possible)
    return np.maximum(divergences, 0.0)  # rounding
