"""Details of held-out results: by frequency and position, entropy, a second model, cost of int8.

Full distributions, of V values, are computed only at a few thousand evenly
spread positions. Rows come in small batches, in the same order for all models
with one vocabulary, so two models are compared row by row in bounded memory.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.arrays import Float64s, Int64s, TokenIds, to_numpy
from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.checkpoint.precision import MAX_INT8_COST, int8_problems, to_int8
from models.errors import InputError
from models.language_model import BOS, EOS, UNK, LanguageModel, pad_sequences, prefill_sequences
from training.corpus import EncodedCorpus
from training.evaluation.evaluate import (
    DEFAULT_WINDOW_TOKENS,
    Context,
    CorpusScores,
    context_texts,
    evaluate,
    group_figures,
    score_corpus,
    summarise_scores,
)
from training.progress import Progress

_POWERS_OF_TEN = 10 ** np.arange(1, 18)
_POWERS_OF_TWO = 2 ** np.arange(62)

TokenGroups: TypeAlias = list[dict[str, Any]]
"""Groups of a text's predicted tokens: figures of `group_figures`, and the `name`, such as `10-99`."""

_SampledText: TypeAlias = tuple[TokenIds, TokenIds, TokenIds]
"""Context tokens before a text, at least one; its tokens; number of tokens read before each sampled prediction [n]."""

DEFAULT_SAMPLE = 4096
"""Sampled positions: measure a mean of a few bits to a few hundredths."""

_BATCH_ROWS = 64
_MAX_BATCH_VALUES = 1 << 20  # in a batch of rows
_TWO_SIDED_95 = 1.959964
OOV_POLICY = (
    "unknown tokens have the probability p(<unk>) and are counted in every figure except perplexity_without_oov, "
    "which excludes them from sum and count"
)

COUNTS_FILE = "token_counts.npy"
"""Checkpoint file of token counts in the training text [V], int64."""

INT8_TOKENS = 20_000
"""Maximum compared tokens: measure a ratio of perplexities to a few in ten thousand."""

_STEPS, _FIRST_STEPS = 20, 3


def by_frequency(targets: CorpusScores, counts: npt.NDArray[np.integer[Any]]) -> TokenGroups:
    """Group tokens by powers of ten of their counts in a text [V]; `<unk>` and `</s>` are groups of their own."""
    of_each = counts[targets.tokens]
    powers = np.searchsorted(_POWERS_OF_TEN, of_each, side="right")
    bands = [f"{10**k}-{10 ** (k + 1) - 1}" for k in range(int(powers.max(initial=0)) + 1)]
    names = ["unknown", "0", *bands, "end of sentence"]
    group = np.where(of_each > 0, 2 + powers, 1)
    group[targets.tokens == UNK] = 0
    group[targets.tokens == EOS] = len(names) - 1
    return _token_groups(targets, group, names)


def by_position(targets: CorpusScores, positions: TokenIds) -> TokenGroups:
    """Group tokens by powers of two of their positions, from 1 [N]."""
    powers = np.searchsorted(_POWERS_OF_TWO, positions)  # 1, 2, 3-4, 5-8, …
    ranges = (f"{2 ** (k - 1) + 1}-{2**k}" for k in range(2, int(powers.max(initial=0)) + 1))
    return _token_groups(targets, powers, ["1", "2", *ranges])


def positions_in_sentence(corpus: EncodedCorpus) -> TokenIds:
    """Return each predicted token's position in its sentence, from 1; `</s>` is last [N]."""
    return _counting_ranges(np.diff(corpus.offsets) + 1)


def positions_since_start(corpus: EncodedCorpus, *, context: Context, window: int) -> TokenIds:
    """Return each predicted token's position since the last state reset, from 1 [N].

    For `stream`, the state is reset at the start of the text; for `document`, at each window.
    """
    if context == "stream":
        return np.arange(1, corpus.num_tokens + 1)
    return (_counting_ranges(np.diff(corpus.offsets)) - 1) % window + 1


def token_counts(corpus: EncodedCorpus, vocab_size: int) -> Int64s:
    """Count the tokens of a text, including one `</s>` per sentence [V]."""
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


class EvaluationOptions(NamedTuple):
    """Options of an evaluation.

    Attributes:
        context: context of the tokens; see `training.evaluation.evaluate`.
        window: tokens per window, for `document`.
        sample: maximum predictions with full distributions.
    """

    context: Context = "sentence"
    window: int = DEFAULT_WINDOW_TOKENS
    sample: int = DEFAULT_SAMPLE


def sample_positions(num_tokens: int, most: int) -> TokenIds:
    """Sample up to `most` predicted tokens of a text, evenly spread and ascending [n]."""
    count = min(num_tokens, most)
    return (2 * np.arange(count, dtype=np.int64) + 1) * num_tokens // (2 * max(count, 1))


def sampled_distributions(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    positions: TokenIds,
    options: EvaluationOptions,
    progress: Progress,
) -> Iterator[Float64s]:
    """Compute the model's distributions over tokens at positions, given the tokens before.

    Positions are ascending indices of predicted tokens, in the order of `score_corpus`.

    Yields:
        Batches of natural-log probabilities [b, V] of normalised rows; their order depends on the text,
        the positions and V, not on the model.
    """
    texts = sorted(_sampled_texts(corpus, positions, options), key=lambda text: -len(text[2]))
    most = max(1, min(_BATCH_ROWS, _MAX_BATCH_VALUES // len(model.vocabulary)))
    for start in range(0, len(texts), most):
        for state in _rebatch_states(_states_at_stops(model, texts[start : start + most]), most):
            progress.advance(len(state))
            rows = to_numpy(model.next_log_probs(state)).astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                rows -= np.log(np.exp(rows).sum(axis=1, keepdims=True))
            yield rows


def _sampled_texts(
    corpus: EncodedCorpus, positions: TokenIds, options: EvaluationOptions
) -> list[_SampledText]:
    texts, done = [], 0
    for before, text in context_texts(corpus, options.context, options.window):
        predicted = np.flatnonzero(text != BOS)
        first, end = np.searchsorted(positions, [done, done + len(predicted)])
        if first < end:
            texts.append((before, text, predicted[positions[first:end] - done]))
        done += len(predicted)
    return texts


def _states_at_stops(model: LanguageModel[Any], texts: Sequence[_SampledText]) -> Iterator[Any]:
    """Yield states at all texts' first stops, second stops, …; most stops first."""
    before = pad_sequences([context for context, _, _ in texts])
    state = prefill_sequences(model, model.empty_state(len(texts)), *before)
    for number in range(len(texts[0][2])):
        live = [(text, stops) for _, text, stops in texts if len(stops) > number]
        if len(live) < len(state):
            state = state.select(np.arange(len(live)))
        segments = [text[stops[number - 1] if number else 0 : stops[number]] for text, stops in live]
        state = prefill_sequences(model, state, *pad_sequences(segments))
        yield state


def _rebatch_states(states: Iterator[Any], rows: int) -> Iterator[Any]:
    """Concatenate states into batches of at least `rows` rows, for which an output layer is faster."""
    while pending := list(islice(states, 1)):
        while sum(map(len, pending)) < rows and (state := next(states, None)) is not None:
            pending.append(state)
        yield pending[0].concatenate(pending[1:])


def mean_over_positions(
    title: str,
    quantity: Callable[..., Float64s],
    models: Sequence[LanguageModel[Any]],
    corpus: EncodedCorpus,
    options: EvaluationOptions,
    progress: Progress,
) -> dict[str, Any]:
    """Average a quantity of predictions over sampled positions of a text.

    Args:
        title: title of the quantity, for progress.
        quantity: maps the models' distributions [n, V] to values [n]: `entropies_of` or `divergences_of`.
        models: models of any family with one vocabulary.
        corpus: text encoded with their tokenizer.
        options: options of the evaluation.
        progress: counts predictions, once per model.

    Returns:
        The mean in `nats` and `bits`, None if infinite or without positions; its standard error
        `standard_error_bits` for independent positions, None for fewer than two; the number of `positions`.
    """
    positions = sample_positions(num_predicted(corpus, options.context), options.sample)
    with progress.stage(title, len(models) * len(positions)):
        read = (sampled_distributions(model, corpus, positions, options, progress) for model in models)
        values = np.concatenate([np.zeros(0), *(quantity(*rows) for rows in zip(*read, strict=True))])
    count, found = len(values), dict.fromkeys(("nats", "bits", "standard_error_bits"))
    if count and np.isfinite(values).all():
        mean = float(values.mean())
        error = float(values.std(ddof=1)) / math.sqrt(count) / math.log(2) if count > 1 else None
        found = {"nats": mean, "bits": mean / math.log(2), "standard_error_bits": error}
    return {**found, "positions": count}


def entropies_of(rows: Float64s) -> Float64s:
    """Compute the entropy in nats [n] of each row of natural-log probabilities [n, V].

    The mean entropy of a calibrated model is close to its cross-entropy.
    """
    entropies: Float64s = -np.sum(np.exp(rows) * np.where(np.isfinite(rows), rows, 0.0), axis=1)
    return entropies


def num_predicted(corpus: EncodedCorpus, context: Context) -> int:
    """Count the predicted tokens of a corpus."""
    return len(corpus.tokens) if context == "document" else corpus.num_tokens


def log_prob_difference(
    a: CorpusScores, b: CorpusScores, corpus: EncodedCorpus, *, context: Context
) -> dict[str, float | None]:
    """Compute the paired difference of two models' log-probabilities of the same tokens.

    A sentence's difficulty, common to both, cancels, so the difference is far more
    precise than either perplexity. It is a ratio of two sums over sentences: nats
    and tokens. Its standard error comes from the linearised ratio (Cochran, Sampling
    Techniques, 1977, section 6.4) and is close to a bootstrap over sentences.

    For `document`, texts count as sentences.

    Returns:
        `nats_per_token`, A's mean log-probability minus B's, positive if A is better, None if a model
        gives a token the probability 0; its `standard_error`, from the variance between sentences, None
        for fewer than two; the ends of the 95 % interval, `low` and `high`; and the number of `sentences`.
    """
    lengths = np.diff(corpus.offsets) + (context != "document")
    differences = a.log_probs.astype(np.float64) - b.log_probs
    count, sentences = len(differences), len(lengths)
    mean = error = low = high = None
    if count and np.isfinite(differences).all():
        mean = float(differences.sum()) / count
    if mean is not None and sentences > 1:
        owners = np.repeat(np.arange(sentences), lengths)
        residuals = np.bincount(owners, differences, minlength=sentences) - mean * lengths
        variance = float(residuals @ residuals) * sentences / (sentences - 1)
        error = math.sqrt(variance) / count
        low, high = mean - _TWO_SIDED_95 * error, mean + _TWO_SIDED_95 * error
    found = {"nats_per_token": mean, "standard_error": error, "low": low, "high": high}
    return {**found, "sentences": sentences}


def divergences_of(a: Float64s, b: Float64s) -> Float64s:
    """Compute the Kullback–Leibler divergences KL(A‖B) in nats [n] of rows of log-probabilities [n, V].

    One is infinite if only B gives some token the probability 0.
    """
    p = np.exp(a)
    possible = p > 0
    gaps = np.zeros_like(a)
    np.subtract(a, b, out=gaps, where=possible)
    divergences: Float64s = np.sum(p * gaps, axis=1, where=possible)
    return np.maximum(divergences, 0.0)  # rounding


def evaluation_details(
    checkpoint: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    options: EvaluationOptions,
    *,
    with_entropy: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Compute predictions' entropy, if requested, and figures by frequency and position, by name.

    Frequencies are of the training text if the checkpoint has its counts, else of the evaluated text.
    """
    vocab_size = len(checkpoint.model.vocabulary)
    known = training_counts(checkpoint.path, vocab_size)
    counts = token_counts(corpus, vocab_size) if known is None else known
    details: dict[str, Any] = {
        "frequency_in": "evaluated text" if known is None else "training text",
        "by_frequency": by_frequency(targets, counts),
    }
    if with_entropy:
        title = f"entropy of the {checkpoint.model.family}"
        details["entropy"] = mean_over_positions(
            title, entropies_of, [checkpoint.model], corpus, options, progress
        )
    if options.context != "document":
        details["by_position_in_sentence"] = by_position(targets, positions_in_sentence(corpus))
    if options.context != "sentence":
        since_start = positions_since_start(corpus, context=options.context, window=options.window)
        details["by_position_since_start"] = by_position(targets, since_start)
    return details


def compare_models(
    a: Checkpoint,
    b: Checkpoint,
    corpus: EncodedCorpus,
    targets: CorpusScores,
    options: EvaluationOptions,
    *,
    progress: Progress,
) -> dict[str, Any]:
    """Compute a second model's figures on the same text, paired difference and divergence, by name.

    `targets` are the first model's scores of the text; see also `check_comparable`.
    """
    of_b = score_corpus(b.model, corpus, context=options.context, window=options.window, progress=progress)
    difference = log_prob_difference(targets, of_b, corpus, context=options.context)
    title = f"divergence of the {a.model.family} from the {b.model.family}"
    divergence = mean_over_positions(title, divergences_of, [a.model, b.model], corpus, options, progress)
    return {
        "model": version_address(b.path),
        **summarise_scores(b.model, corpus, of_b, context=options.context).facts(),
        "difference": difference,
        "divergence": divergence,
    }


def check_comparable(a: Checkpoint, b: Checkpoint) -> None:
    """Check that two models' predictions can be compared token by token.

    Raises:
        InputError: their vocabularies, tokenizers or reading directions differ.
    """
    (name_a, of_a), (name_b, of_b) = ((version_address(c.path), c.model.vocabulary) for c in (a, b))
    problem = None
    if of_a.fingerprint != of_b.fingerprint:
        problem = (
            " requires a model with the same vocabulary; the vocabularies have "
            f"{len(of_a):,} tokens ({name_a}) and {len(of_b):,} tokens ({name_b}); "
            "evaluate each model alone and compare perplexities per word or byte"
        )
    elif a.tokenizer.fingerprint != b.tokenizer.fingerprint:
        problem = f" requires a model with the same tokenizer; {name_a} and {name_b} split texts differently"
    elif a.manifest.direction != b.manifest.direction:
        problem = f": {name_a} reads {a.manifest.direction}, but {name_b} reads {b.manifest.direction}"
    if problem is not None:
        raise InputError(f"--against{problem}", param="against")


def training_counts(directory: Path, vocab_size: int) -> Int64s | None:
    """Read the token counts of a checkpoint's training text [V]; None if missing or of another size."""
    path = directory / COUNTS_FILE
    counts: Int64s | None = np.load(path, allow_pickle=False) if path.is_file() else None
    return counts if counts is not None and counts.shape == (vocab_size,) else None


def int8_facts(
    model: LanguageModel[Any], text: EncodedCorpus, *, context: Context, progress: Progress
) -> dict[str, Any]:
    """Measure the cost of int8 for metrics.json; empty for a model without networks.

    Returns:
        Under `int8`: `perplexity` in int8 and `perplexity_float32` over `tokens`
        of the text; `cost`, their ratio minus 1; `default`, True if the cost is
        at most `MAX_INT8_COST`; `problems`, why a network stays in float32.
    """
    problems = int8_problems(model)
    rounded = to_int8(model)
    if rounded is model or not text.num_sentences:
        return {"int8": {"problems": problems}} if problems else {}
    sample = first_sentences(text, INT8_TOKENS)
    single, integers = (
        evaluate(m, sample, context=context, progress=progress).perplexity for m in (model, rounded)
    )
    facts = {"tokens": sample.num_tokens, "perplexity_float32": single, "perplexity": integers}
    if single and integers:
        cost = integers / single - 1
        facts |= {"cost": cost, "default": cost <= MAX_INT8_COST}
    return {"int8": facts | ({"problems": problems} if problems else {})}


def step_milliseconds(model: LanguageModel[Any]) -> float:
    """Measure one text's step: the next distribution and the state after a token.

    Networks are in int8 if possible.

    Returns:
        The median over some steps, in milliseconds.
    """
    served, times = to_int8(model), []
    state = served.initial_state(1)
    for _ in range(_FIRST_STEPS + _STEPS):
        began = time.perf_counter()
        served.next_log_probs(state)
        state = served.advance(state, np.array([UNK]))
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times[_FIRST_STEPS:]), 3)


def first_sentences(text: EncodedCorpus, tokens: int) -> EncodedCorpus:
    """Return the first sentences, up to `tokens` tokens but at least one; words and bytes are 0."""
    ends = text.offsets[1:] + np.arange(1, len(text.offsets))
    count = max(1, int(np.searchsorted(ends, tokens, side="right")))
    return EncodedCorpus(text.tokens[: text.offsets[count]], text.offsets[: count + 1], 0, 0)
