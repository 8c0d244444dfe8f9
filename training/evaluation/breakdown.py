"""Breakdowns of held-out results: by frequency and position, entropy, and two models compared.

Full distributions are computed at sampled positions only: a row has V numbers, so a few thousand
positions, evenly spread, represent the text. Rows come in small batches, in the same order for every
model with the same vocabulary, so that two models are compared row by row in bounded memory.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds, to_numpy
from models.language_model import LanguageModel
from models.vocabulary import BOS, EOS, UNK
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import (
    DEFAULT_WINDOW_TOKENS,
    Context,
    CorpusScores,
    group_figures,
    read_segments,
    running_text,
    windows,
)
from training.progress import Progress

_POWERS_OF_TEN = 10 ** np.arange(1, 18)
_POWERS_OF_TWO = 2 ** np.arange(62)


TokenGroups: TypeAlias = list[dict[str, Any]]
"""Figures of groups of a text's predicted tokens: `group_figures`, and the group's `name`, such as `10-99`."""


def by_frequency(targets: CorpusScores, counts: npt.NDArray[np.integer[Any]]) -> TokenGroups:
    """Group tokens by powers of ten of their counts; `<unk>` and `</s>` are groups of their own.

    Args:
        targets: scores of a model.
        counts: of each vocabulary token in a reference text [V].
    """
    of_each = counts[targets.tokens]
    powers = np.searchsorted(_POWERS_OF_TEN, of_each, side="right")
    top = int(powers.max(initial=0))
    bands = [f"{10**k}-{10 ** (k + 1) - 1}" for k in range(top + 1)]
    names = ["unknown", "0", *bands, "end of sentence"]
    group = np.where(of_each > 0, 2 + powers, 1)
    group[targets.tokens == UNK] = 0
    group[targets.tokens == EOS] = len(names) - 1
    return _token_groups(targets, group, names)


def by_position(targets: CorpusScores, positions: TokenIds) -> TokenGroups:
    """Group tokens by powers of two of their positions.

    Args:
        targets: scores of a model.
        positions: of each token, from 1 [N].
    """
    powers = np.searchsorted(_POWERS_OF_TWO, positions)  # 1, 2, 3-4, 5-8, …
    ranges = (f"{2 ** (k - 1) + 1}-{2**k}" for k in range(2, int(powers.max(initial=0)) + 1))
    return _token_groups(targets, powers, ["1", "2", *ranges])


def positions_in_sentence(corpus: EncodedCorpus) -> TokenIds:
    """Return each predicted token's position in its sentence, from 1; `</s>` is last [N]."""
    return _counting_ranges(np.diff(corpus.offsets) + 1)


def positions_since_start(corpus: EncodedCorpus, *, context: Context, window: int) -> TokenIds:
    """Return each predicted token's position, from 1, since the model's state was reset [N].

    The state is reset at each sentence; for `stream` at the text's start only, for `document` at each window.
    """
    if context == "sentence":
        return positions_in_sentence(corpus)
    if context == "stream":
        return np.arange(1, corpus.num_tokens + 1)
    return (_counting_ranges(np.diff(corpus.offsets)) - 1) % window + 1


def token_counts(corpus: EncodedCorpus, vocab_size: int) -> npt.NDArray[np.int64]:
    """Count the tokens of a text, one `</s>` per sentence included [V]."""
    counts = np.bincount(corpus.tokens, minlength=vocab_size).astype(np.int64)
    counts[EOS] += corpus.num_sentences
    return counts


def _token_groups(targets: CorpusScores, group: TokenIds, names: Sequence[str]) -> TokenGroups:
    """Return the non-empty groups, in the order of `names`."""
    figures = group_figures(targets.log_probs, group, len(names))
    return [{"name": name, **own} for name, own in zip(names, figures, strict=True) if own["tokens"]]


def _counting_ranges(lengths: TokenIds) -> TokenIds:
    """Concatenate the ranges 1, 2, …, n of each length n."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(1, int(lengths.sum()) + 1) - np.repeat(starts, lengths)


DEFAULT_SAMPLE = 4096
"""Sampled positions: enough to measure a mean of a few bits to a few hundredths."""

_BATCH_ROWS = 64
_MAX_BATCH_VALUES = 1 << 20  # in a batch of rows

LogProbRows: TypeAlias = npt.NDArray[np.float64]


class EvaluationOptions(NamedTuple):
    """Options of an evaluation.

    Attributes:
        context: see `training.evaluation.evaluate`.
        window: tokens in a window, for `document`.
        sample: maximum number of predictions with full distributions.
    """

    context: Context = "sentence"
    window: int = DEFAULT_WINDOW_TOKENS
    sample: int = DEFAULT_SAMPLE


class _SampledText(NamedTuple):
    """A text and its sampled positions.

    Attributes:
        before: context tokens before the text, at least one.
        text: its tokens.
        stops: numbers of tokens read before each sampled prediction, ascending [n].
    """

    before: TokenIds
    text: TokenIds
    stops: TokenIds


def sample_positions(num_tokens: int, most: int) -> TokenIds:
    """Sample up to `most` of a text's predicted tokens, evenly spread and ascending [n]."""
    count = min(num_tokens, most)
    return (2 * np.arange(count, dtype=np.int64) + 1) * num_tokens // (2 * max(count, 1))


def sampled_distributions(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    positions: TokenIds,
    options: EvaluationOptions,
    progress: Progress,
) -> Iterator[LogProbRows]:
    """Compute the model's distributions over the token at each position, given the tokens before it.

    Args:
        model: any family.
        corpus: encoded with its tokenizer.
        positions: indices of predicted tokens, as `score_corpus` counts them, ascending.
        options: context and window.
        progress: counts rows.

    Yields:
        Natural-log probabilities [b, V] in batches, each row summing to 1; their order depends on
        the text, the positions and V, not on the model.
    """
    texts = sorted(_sampled_texts(corpus, positions, options), key=lambda text: -len(text.stops))
    most = max(1, min(_BATCH_ROWS, _MAX_BATCH_VALUES // len(model.vocabulary)))
    for start in range(0, len(texts), most):
        for state in _rebatch_states(_states_at_stops(model, texts[start : start + most]), most):
            progress.advance(len(state))
            yield renormalised(to_numpy(model.next_log_probs(state)))


def _sampled_texts(
    corpus: EncodedCorpus, positions: TokenIds, options: EvaluationOptions
) -> list[_SampledText]:
    """Return the texts that contain the positions."""
    if not len(positions):
        return []
    if options.context == "stream":
        text = running_text(corpus)
        return [_SampledText(np.array([BOS]), text, np.flatnonzero(text != BOS)[positions])]
    if options.context == "sentence":
        starts = corpus.offsets + np.arange(len(corpus.offsets))  # with one `</s>` per sentence
        owners = np.searchsorted(starts, positions, side="right") - 1
        numbers, first = np.unique(owners, return_index=True)
        groups = np.split(positions, first[1:])
        return [
            _SampledText(np.array([BOS]), corpus.sentence(number).astype(np.int64), group - starts[number])
            for number, group in zip(numbers.tolist(), groups, strict=True)
        ]
    texts, begin = [], 0
    for preceding, text in windows(corpus, options.window):
        inside = positions[np.searchsorted(positions, begin) : np.searchsorted(positions, begin + len(text))]
        if len(inside):
            texts.append(_SampledText(preceding, text, inside - begin))
        begin += len(text)
    return texts


def _states_at_stops(model: LanguageModel[Any], texts: Sequence[_SampledText]) -> Iterator[Any]:
    """Yield the states at all first stops, all second stops, …; texts with the most stops come first."""
    state = read_segments(model, [text.before for text in texts], model.empty_state(len(texts)))
    for number in range(len(texts[0].stops)):
        live = [text for text in texts if len(text.stops) > number]
        if len(live) < len(state):
            state = state.select(np.arange(len(live)))
        segments = [text.text[text.stops[number - 1] if number else 0 : text.stops[number]] for text in live]
        state = read_segments(model, segments, state)
        yield state


def _rebatch_states(states: Iterator[Any], rows: int) -> Iterator[Any]:
    """Concatenate states into batches of at least `rows` rows, which an output layer computes faster."""
    pending: list[Any] = []
    for state in states:
        pending.append(state)
        if sum(map(len, pending)) >= rows:
            yield pending[0].concatenate(pending[1:])
            pending = []
    if pending:
        yield pending[0].concatenate(pending[1:])


def renormalised(log_probs: npt.NDArray[np.float32]) -> LogProbRows:
    """Normalise rows of log-probabilities, in float64."""
    rows = log_probs.astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    rows -= peak
    with np.errstate(divide="ignore"):
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


class SampledMean(NamedTuple):
    """The mean of a quantity over sampled positions of a text.

    Attributes:
        nats: the mean; None where it is infinite, or no position was sampled.
        bits: the same in bits.
        standard_error_bits: of the mean, positions taken as independent; None for fewer than two.
        positions: number of sampled positions.
    """

    nats: float | None
    bits: float | None
    standard_error_bits: float | None
    positions: int


def mean_over_positions(
    title: str,
    quantity: Callable[..., LogProbRows],
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    options: EvaluationOptions,
    progress: Progress,
) -> SampledMean:
    """Compute the mean of a quantity of models' predictions at sampled positions of a text.

    Args:
        title: of the quantity, for progress.
        quantity: computes it [n] of each model's distributions [n, V]: `entropies_of` or `divergences_of`.
        models: any families, of one vocabulary.
        corpus: encoded with their tokenizer.
        options: of the evaluation.
        progress: counts predictions, once for each model.
    """
    positions = sample_positions(num_predicted(corpus, options.context), options.sample)
    progress.start(title, len(models) * len(positions))
    read = (sampled_distributions(model, corpus, positions, options, progress) for model in models)
    values = [quantity(*rows) for rows in zip(*read, strict=True)]
    progress.finish()
    return sampled_mean(np.concatenate(values) if values else np.zeros(0))


def entropies_of(rows: LogProbRows) -> LogProbRows:
    """Compute the entropy in nats [n] of each row of natural-log probabilities [n, V].

    The cross-entropy of a calibrated model is close to its mean.
    """
    entropies: LogProbRows = -np.sum(np.exp(rows) * np.where(np.isfinite(rows), rows, 0.0), axis=1)
    return entropies


def num_predicted(corpus: EncodedCorpus, context: Context) -> int:
    """Return the number of predicted tokens of a corpus."""
    return len(corpus.tokens) if context == "document" else corpus.num_tokens


def sampled_mean(values: LogProbRows) -> SampledMean:
    """Compute the mean of values in nats [n]."""
    count = len(values)
    if not count or not np.isfinite(values).all():
        return SampledMean(None, None, None, count)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count) / math.log(2) if count > 1 else None
    return SampledMean(mean, mean / math.log(2), error, count)


_TWO_SIDED_95 = 1.959964


def log_prob_difference(
    a: CorpusScores, b: CorpusScores, corpus: EncodedCorpus, *, context: Context
) -> dict[str, float | None]:
    """Compute the paired difference of two models' log-probabilities of the same tokens.

    Both read the same sentences, so the difficulty that a sentence has for both cancels: the difference is
    measured far more precisely than either perplexity. It is a ratio of two sums over sentences, nats and
    tokens; its standard error is that of the linearised ratio (Cochran, Sampling Techniques, 1977,
    section 6.4), which a bootstrap over sentences approaches.

    Args:
        a: scores of A.
        b: scores of B on the same corpus in the same context.
        corpus: the text.
        context: of the scores; for `document`, texts count as sentences.

    Returns:
        A's mean log-probability less B's, `nats_per_token`, positive where A is better and None where either gives
        a token the probability 0; its `standard_error`, from its variance between sentences, None for fewer than
        two; the ends of the 95 % interval, `low` and `high`; and the number of `sentences`.
    """
    lengths = np.diff(corpus.offsets) + (context != "document")
    differences = a.log_probs.astype(np.float64) - b.log_probs
    count, sentences = len(differences), len(lengths)
    found: dict[str, float | None] = dict.fromkeys(("nats_per_token", "standard_error", "low", "high"))
    found["sentences"] = sentences
    if not count or not np.isfinite(differences).all():
        return found
    mean = float(differences.sum()) / count
    found["nats_per_token"] = mean
    if sentences < 2:
        return found
    owners = np.repeat(np.arange(sentences), lengths)
    residuals = np.bincount(owners, differences, minlength=sentences) - mean * lengths
    variance = float(residuals @ residuals) * sentences / (sentences - 1)
    error = math.sqrt(variance) / count
    low, high = mean - _TWO_SIDED_95 * error, mean + _TWO_SIDED_95 * error
    return {**found, "standard_error": error, "low": low, "high": high}


def divergences_of(a: LogProbRows, b: LogProbRows) -> LogProbRows:
    """Compute the Kullback–Leibler divergences KL(A‖B) in nats [n] of rows of log-probabilities [n, V].

    They are infinite where only B rules a token out.
    """
    p = np.exp(a)
    possible = p > 0
    gaps = np.zeros_like(a)
    np.subtract(a, b, out=gaps, where=possible)
    divergences: LogProbRows = np.sum(p * gaps, axis=1, where=possible)
    return np.maximum(divergences, 0.0)  # rounding
