"""Breakdowns of held-out results: by frequency and position, entropy, and two models compared.

Whole distributions are computed at sampled positions only: a row has V numbers, so a few thousand
positions, evenly spread, stand for the text. Rows come in small batches, in the same order for every
model with the same vocabulary, so that two models are compared row by row in bounded memory.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds, to_numpy
from models.errors import InvalidInputError
from models.language_model import LanguageModel, perplexity
from models.vocabulary import BOS, EOS, UNK
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import (
    DEFAULT_WINDOW_TOKENS,
    Context,
    CorpusScores,
    read_segments,
    running_text,
    windows,
)
from training.progress import Progress

_POWERS_OF_TEN = 10 ** np.arange(1, 18)
_POWERS_OF_TWO = 2 ** np.arange(62)


class TokenGroup(NamedTuple):
    """Some of a text's predicted tokens.

    Attributes:
        name: which: such as `10-99`, `unknown` or `end of sentence`.
        tokens: how many there are.
        share: of all tokens.
        logprob: their mean natural-log probability; None where one is impossible.
        perplexity: of them alone; None likewise.
    """

    name: str
    tokens: int
    share: float
    logprob: float | None
    perplexity: float | None


def by_frequency(targets: CorpusScores, counts: npt.NDArray[np.integer[Any]]) -> list[TokenGroup]:
    """Figures by powers of ten of the tokens' counts; `<unk>` and `</s>` apart.

    Args:
        targets: what a model said.
        counts: how often each token of the vocabulary occurs in some text [V].
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


def by_position(targets: CorpusScores, positions: TokenIds) -> list[TokenGroup]:
    """Figures by powers of two of the tokens' positions.

    Args:
        targets: what a model said.
        positions: of each token, from 1 [N].
    """
    powers = np.searchsorted(_POWERS_OF_TWO, positions)  # 1, 2, 3-4, 5-8, …
    names = [_span(2 ** (k - 1) + 1 if k else 1, 2**k) for k in range(int(powers.max(initial=0)) + 1)]
    return _token_groups(targets, powers, names)


def positions_in_sentence(corpus: EncodedCorpus) -> TokenIds:
    """Where each predicted token stands in its sentence, from 1; `</s>` stands last [N]."""
    return _counting_ranges(np.diff(corpus.offsets) + 1)


def positions_since_start(corpus: EncodedCorpus, *, context: Context, window: int) -> TokenIds:
    """How many tokens a model was asked for since it knew nothing, this one included [N].

    Of `stream` since the text's start, of `document` since the window's.
    """
    if context == "sentence":
        return positions_in_sentence(corpus)
    if context == "stream":
        return np.arange(1, corpus.num_tokens + 1)
    return (_counting_ranges(np.diff(corpus.offsets)) - 1) % window + 1


def token_counts(corpus: EncodedCorpus, vocab_size: int) -> npt.NDArray[np.int64]:
    """How often each token occurs in a text, an `</s>` a sentence included [V]."""
    counts = np.bincount(corpus.tokens, minlength=vocab_size).astype(np.int64)
    counts[EOS] += corpus.num_sentences
    return counts


def _token_groups(targets: CorpusScores, group: TokenIds, names: Sequence[str]) -> list[TokenGroup]:
    """Groups that have a token, in the order of their names."""
    tokens = np.bincount(group, minlength=len(names))
    totals = np.bincount(group, targets.log_probs, minlength=len(names))
    return [
        TokenGroup(
            name=name,
            tokens=count,
            share=count / len(group),
            logprob=total / count if np.isfinite(total) else None,
            perplexity=perplexity(total, count),
        )
        for name, count, total in zip(names, tokens.tolist(), totals.tolist(), strict=True)
        if count
    ]


def _counting_ranges(lengths: TokenIds) -> TokenIds:
    """1, 2, …, n for each length n, one after the other."""
    starts = np.cumsum(lengths) - lengths
    return np.arange(1, int(lengths.sum()) + 1) - np.repeat(starts, lengths)


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


DEFAULT_SAMPLE = 4096
"""Places looked at: the mean of a few bits is then known to a few hundredths."""

_BATCH_ROWS = 64
_MAX_BATCH_VALUES = 1 << 20  # in a batch of rows

LogProbRows: TypeAlias = npt.NDArray[np.float64]


class _SampledText(NamedTuple):
    """A text that is read from its start, and where it is stopped at.

    Attributes:
        before: the tokens that stand before it, at least one.
        text: its tokens.
        stops: how many tokens are read when a row is wanted, ascending [n].
    """

    before: TokenIds
    text: TokenIds
    stops: TokenIds


def sample_positions(num_tokens: int, most: int) -> TokenIds:
    """Up to so many of a text's predicted tokens, evenly spread and ascending [n]."""
    count = min(num_tokens, most)
    return (2 * np.arange(count, dtype=np.int64) + 1) * num_tokens // (2 * max(count, 1))


def sampled_distributions(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    places: TokenIds,
    *,
    context: Context,
    window: int,
    progress: Progress,
) -> Iterator[LogProbRows]:
    """The model's distributions over the token at each place, given the tokens before it.

    Args:
        model: any family.
        corpus: encoded with its tokenizer.
        places: numbers of predicted tokens, as `score_corpus` counts them, ascending.
        context: see `training.evaluation.evaluate`.
        window: tokens in a window, for `document`.
        progress: told of rows.

    Yields:
        Natural-log probabilities [b, V] in batches, each row summing to 1; their order depends on
        the text, the places and V, not on the model.
    """
    walks = sorted(_sampled_texts(corpus, places, context, window), key=lambda walk: -len(walk.stops))
    most = max(1, min(_BATCH_ROWS, _MAX_BATCH_VALUES // len(model.vocabulary)))
    for start in range(0, len(walks), most):
        for state in _rebatch_states(_states_at_stops(model, walks[start : start + most]), most):
            progress.advance(len(state))
            yield renormalised(to_numpy(model.next_log_probs(state)))


def _sampled_texts(
    corpus: EncodedCorpus, places: TokenIds, context: Context, window: int
) -> list[_SampledText]:
    """The texts that places lie in."""
    if not len(places):
        return []
    if context == "stream":
        before, text = running_text(corpus)
        return [_SampledText(np.array([before]), text, np.flatnonzero(text != BOS)[places])]
    if context == "sentence":
        starts = corpus.offsets + np.arange(len(corpus.offsets))  # with one `</s>` each
        owners = np.searchsorted(starts, places, side="right") - 1
        numbers, first = np.unique(owners, return_index=True)
        groups = np.split(places, first[1:])
        return [
            _SampledText(np.array([BOS]), corpus.sentence(number).astype(np.int64), group - starts[number])
            for number, group in zip(numbers.tolist(), groups, strict=True)
        ]
    walks, begin = [], 0
    for preceding, text in windows(corpus, window):
        inside = places[np.searchsorted(places, begin) : np.searchsorted(places, begin + len(text))]
        if len(inside):
            walks.append(_SampledText(preceding, text, inside - begin))
        begin += len(text)
    return walks


def _states_at_stops(model: LanguageModel[Any], walks: Sequence[_SampledText]) -> Iterator[Any]:
    """The states at all first stops, at all second ones, …; walks with the most stops come first."""
    state = read_segments(model, [walk.before for walk in walks], model.empty_state(len(walks)))
    for number in range(len(walks[0].stops)):
        live = [walk for walk in walks if len(walk.stops) > number]
        if len(live) < len(state):
            state = state.select(np.arange(len(live)))
        stretches = [walk.text[walk.stops[number - 1] if number else 0 : walk.stops[number]] for walk in live]
        state = read_segments(model, stretches, state)
        yield state


def _rebatch_states(states: Iterator[Any], rows: int) -> Iterator[Any]:
    """The same rows in larger batches: an output layer is faster on many."""
    waiting: list[Any] = []
    for state in states:
        waiting.append(state)
        if sum(map(len, waiting)) >= rows:
            yield waiting[0].concatenate(waiting[1:])
            waiting = []
    if waiting:
        yield waiting[0].concatenate(waiting[1:])


def renormalised(log_probs: npt.NDArray[np.float32]) -> LogProbRows:
    """Rows of a model that is not quite normalised, as of one that is."""
    rows = log_probs.astype(np.float64)
    peak = rows.max(axis=1, keepdims=True)
    rows -= peak
    with np.errstate(divide="ignore"):
        rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return rows


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
        context: see `training.evaluation.evaluate`.
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
        context: see `training.evaluation.evaluate`.
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
