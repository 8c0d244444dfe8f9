"""How sure a model is of what comes next: the mean entropy of its predictions."""

import math
from typing import Any, NamedTuple

import numpy as np

from models.protocol import LanguageModel
from training.corpora.encoded import EncodedCorpus
from training.evaluating.distributions import (
    DEFAULT_SAMPLE,
    LogProbRows,
    sample_positions,
    sampled_distributions,
)
from training.evaluating.scoring import DEFAULT_WINDOW_TOKENS, Context
from training.progress import Progress


class SampledMean(NamedTuple):
    """The mean of a quantity over places sampled from a text.

    Attributes:
        nats: the mean; None where it is infinite, or no place was looked at.
        bits: the same in bits.
        standard_error_bits: of the mean, places taken as independent; None for fewer than two.
        positions: places looked at.
    """

    nats: float | None
    bits: float | None
    standard_error_bits: float | None
    positions: int


def mean_entropy(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    context: Context = "sentence",
    window: int = DEFAULT_WINDOW_TOKENS,
    sample: int = DEFAULT_SAMPLE,
    progress: Progress,
) -> SampledMean:
    """The mean entropy of a model's predictions of a text.

    A model that knows how sure it may be has a cross-entropy close to it.

    Args:
        model: any family.
        corpus: encoded with its tokenizer.
        context: see `training.evaluating.scoring`.
        window: tokens in a window, for `document`.
        sample: predictions looked at, at most.
        progress: told of predictions.
    """
    places = sample_positions(num_predicted(corpus, context), sample)
    progress.start(f"entropy of the {model.family}", len(places))
    read = sampled_distributions(model, corpus, places, context=context, window=window, progress=progress)
    entropies = [entropies_of(rows) for rows in read]
    progress.finish()
    return sampled_mean(np.concatenate(entropies) if entropies else np.zeros(0))


def entropies_of(rows: LogProbRows) -> LogProbRows:
    """The entropy of each distribution in nats [n], of natural-log probabilities [n, V]."""
    entropies: LogProbRows = -np.sum(np.exp(rows) * np.where(np.isfinite(rows), rows, 0.0), axis=1)
    return entropies


def num_predicted(corpus: EncodedCorpus, context: Context) -> int:
    """How many tokens of a corpus are predicted."""
    return len(corpus.tokens) if context == "document" else corpus.num_tokens


def sampled_mean(values: LogProbRows) -> SampledMean:
    """The mean of values in nats [n]."""
    count = len(values)
    if not count or not np.isfinite(values).all():
        return SampledMean(None, None, None, count)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count) / math.log(2) if count > 1 else None
    return SampledMean(mean, mean / math.log(2), error, count)
