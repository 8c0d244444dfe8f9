"""Held-out evaluation of any model: log-probability, perplexity, bits per byte.

The context of a token is one of:

sentence  Every line starts from the initial state after `<s>`, and its `</s>` is predicted.
stream    The state is carried across lines: …, `</s>`, `<s>`, next line; `</s>` is predicted, `<s>`
          is not.
document  Each text, with its line ends, is cut into disjoint windows. The context of a window is the
          token before it (`<s>` for the first); a shorter last window gets more context tokens, to
          reach the full length. `</s>` is not predicted. lm-evaluation-harness computes rolling
          log-likelihoods in the same way.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import Float32s, FloatArray, Int64s, TokenIds
from models.language_model import (
    BOS,
    EOS,
    SCORES,
    UNK,
    LanguageModel,
    ReadResult,
    Want,
    bits_per_unit,
    ngram_order,
    pad_sequences,
    perplexity,
    prefill_sequences,
    read_sequences,
)
from training.corpus import EncodedCorpus
from training.progress import SILENT, Progress

Context = Literal["sentence", "stream", "document"]
DEFAULT_WINDOW_TOKENS = 65_534
"""Tokens predicted in one window of a document."""

_BATCH_TOKENS = 16_384
CHUNK_TOKENS = 2_048
"""Tokens of a long text per model call."""


class CorpusScores(NamedTuple):
    """Scores of predicted tokens, in the corpus's order.

    Attributes:
        log_probs: natural-log probabilities [N].
        tokens: the tokens [N].
        matched: length of the longest n-gram found for each token [N]; n-gram models only.
    """

    log_probs: Float32s
    tokens: Int64s
    matched: npt.NDArray[np.integer[Any]] | None


def score_corpus(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    context: Context = "sentence",
    window: int = DEFAULT_WINDOW_TOKENS,
    progress: Progress,
) -> CorpusScores:
    """Compute the log-probabilities of a corpus's predicted tokens."""
    with progress.stage(f"scoring with the {model.family}, {context} context", corpus.num_tokens):
        if context == "sentence":
            return _score_sentences(model, corpus, progress)
        return _score_long(model, context_texts(corpus, context, window), progress)


def _score_sentences(model: LanguageModel[Any], corpus: EncodedCorpus, progress: Progress) -> CorpusScores:
    lengths = np.diff(corpus.offsets) + 1  # with </s>
    starts = np.concatenate([[0], np.cumsum(lengths)])
    log_probs = np.zeros(starts[-1], np.float32)
    matched = None if ngram_order(model) is None else np.zeros(starts[-1], np.uint8)
    tokens = np.insert(corpus.tokens.astype(np.int64), corpus.offsets[1:], EOS)
    for rows in _batches_of_similar_length(lengths):
        width = int(lengths[rows].max())
        inside = np.arange(width) < lengths[rows, None]  # [B, T]
        indices = (starts[rows, None] + np.arange(width))[inside]  # flat, of the row's tokens
        batch = np.full((len(rows), width), EOS, np.int64)
        batch[inside] = tokens[indices]
        scores, orders, _ = _read(model, model.initial_state(len(rows)), batch, lengths[rows], SCORES)
        log_probs[indices] = scores[inside]
        if matched is not None and orders is not None:
            matched[indices] = orders[inside]
        progress.advance(len(indices))
    return CorpusScores(log_probs, tokens, matched)


def _read(
    model: Any, state: Any, tokens: TokenIds, lengths: TokenIds, want: Want
) -> tuple[FloatArray, npt.NDArray[np.integer[Any]] | None, Any]:
    """Return log-probabilities [B, T], lengths of n-grams found by an n-gram model [B, T], and the new state."""
    if ngram_order(model) is None:
        read = read_sequences(model, state, tokens, lengths, want)
        return read.log_probs, None, read.state
    scores = model.score_detailed(state, tokens, lengths)
    after = prefill_sequences(model, state, tokens, lengths) if want.state else None
    return scores.log_probs, scores.orders, after


def _batches_of_similar_length(lengths: Int64s) -> Iterator[Int64s]:
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and lengths[order[end]] * (end + 1 - start) <= _BATCH_TOKENS:
            end += 1
        yield order[start:end]
        start = end


def running_text(corpus: EncodedCorpus) -> TokenIds:
    """Return a corpus as one text after `<s>`, including the `<s>`, which are not predicted."""
    return corpus.with_boundaries().astype(np.int64)[1:]


def read_stream(
    model: LanguageModel[Any], text: TokenIds, want: Want, *, progress: Progress = SILENT
) -> Iterator[tuple[TokenIds, ReadResult]]:
    """Yield consecutive chunks [T] of a running text with the results of reading them.

    The progress counts tokens.
    """
    state = model.advance(model.empty_state(1), np.array([BOS]))
    for chunk in chunks(text, progress):
        reading = read_sequences(
            model, state, chunk[None], np.asarray([len(chunk)]), want._replace(state=True)
        )
        state = reading.state
        yield chunk, reading


def chunks(text: TokenIds, progress: Progress) -> Iterator[TokenIds]:
    """Yield consecutive chunks [T] of a text; the progress counts the predicted tokens of those read."""
    for start in range(0, len(text), CHUNK_TOKENS):
        chunk = text[start : start + CHUNK_TOKENS]
        yield chunk
        progress.advance(int((chunk != BOS).sum()))


def context_texts(
    corpus: EncodedCorpus, context: Context, window: int
) -> Iterator[tuple[TokenIds, TokenIds]]:
    """Yield a corpus's texts with independent states, each after the tokens before it.

    Context and window of a document have `window` + 1 tokens together, except in the first window.
    """
    first = np.array([BOS])
    if context == "stream":
        yield first, running_text(corpus)
        return
    for index in range(corpus.num_sentences):
        text = corpus.sentence(index).astype(np.int64)
        if context == "sentence":
            yield first, np.append(text, EOS)
            continue
        for start in range(0, len(text), window):
            end = min(start + window, len(text))
            yield text[end - window - 1 : start] if start else first, text[start:end]


def _score_long(
    model: LanguageModel[Any], texts: Iterable[tuple[TokenIds, TokenIds]], progress: Progress
) -> CorpusScores:
    """Score texts in turn, each in chunks with carried state."""
    log_probs, targets = [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
    matched: list[npt.NDArray[np.integer[Any]]] = []
    for before, text in texts:
        state = prefill_sequences(model, model.empty_state(1), *pad_sequences([before]))
        for chunk in chunks(text, progress):
            lengths, predicted = np.asarray([len(chunk)]), chunk != BOS
            scores, orders, state = _read(model, state, chunk[None], lengths, SCORES._replace(state=True))
            log_probs.append(scores[0, predicted])
            if orders is not None:
                matched.append(orders[0, predicted])
            targets.append(chunk[predicted])
    match_lengths = np.concatenate(matched) if matched else None
    return CorpusScores(np.concatenate(log_probs), np.concatenate(targets), match_lengths)


class Evaluation(NamedTuple):
    """Figures over a text.

    Figures per token depend on the tokenizer; those per word and byte do
    not, so they compare models with different tokenizers on one text.

    Attributes:
        context: context of the tokens.
        tokens: predicted tokens, including `</s>` and `<unk>`.
        oov: number of predicted `<unk>` tokens.
        logprob: natural-log probability of the tokens.
        nats_per_token: cross-entropy, −logprob / tokens; None if a probability is zero.
        bits_per_token: cross-entropy in bits.
        perplexity: perplexity per token; unknown tokens have the probability p(<unk>).
        perplexity_without_oov: perplexity per token, without unknown tokens in sum and count.
        word_perplexity: perplexity per white-space word; a predicted `</s>` counts as a word.
        byte_perplexity: perplexity per UTF-8 byte, without line ends (`document`: with line ends).
        bits_per_byte: base-2 logarithm of `byte_perplexity`.
        hit_rates: `group_figures` of the tokens whose longest n-gram found has the length `order`, from 1;
            empty for models of other families.
    """

    context: Context
    tokens: int
    oov: int
    logprob: float
    nats_per_token: float | None
    bits_per_token: float | None
    perplexity: float | None
    perplexity_without_oov: float | None
    word_perplexity: float | None
    byte_perplexity: float | None
    bits_per_byte: float | None
    hit_rates: Sequence[dict[str, Any]] = ()

    def facts(self) -> dict[str, Any]:
        """Return figures by name, as JSON values: a log-probability of minus infinity is null.

        Only n-gram models have `hit_rates`.
        """
        values = {**self._asdict(), "oov_rate": self.oov / self.tokens if self.tokens else 0.0}
        if not self.hit_rates:
            del values["hit_rates"]
        if not math.isfinite(self.logprob):
            values["logprob"] = None
        return values


def evaluate(
    model: LanguageModel[Any], corpus: EncodedCorpus, *, context: Context = "sentence", progress: Progress
) -> Evaluation:
    """Score a corpus and summarise the scores; for `document`, each "sentence" is an entire text."""
    targets = score_corpus(model, corpus, context=context, progress=progress)
    return summarise_scores(model, corpus, targets, context=context)


def summarise_scores(
    model: LanguageModel[Any], corpus: EncodedCorpus, targets: CorpusScores, *, context: Context
) -> Evaluation:
    """Summarise a model's scores of a corpus."""
    known = targets.tokens != UNK
    logprob = float(targets.log_probs.sum(dtype="float64"))
    known_logprob = float(targets.log_probs[known].sum(dtype="float64"))
    ends = 0 if context == "document" else corpus.num_sentences
    count = len(targets.tokens)
    rates = []
    order = ngram_order(model)
    if targets.matched is not None and order is not None:
        figures = group_figures(targets.log_probs, targets.matched, order + 1)
        rates = [{"order": length, **own} for length, own in enumerate(figures) if length]
    bits = bits_per_unit(logprob, count)
    return Evaluation(
        context=context,
        tokens=count,
        oov=count - int(known.sum()),
        logprob=logprob,
        nats_per_token=None if bits is None else -logprob / count,
        bits_per_token=bits,
        perplexity=perplexity(logprob, count),
        perplexity_without_oov=perplexity(known_logprob, int(known.sum())),
        word_perplexity=perplexity(logprob, corpus.num_words + ends),
        byte_perplexity=perplexity(logprob, corpus.num_bytes),
        bits_per_byte=bits_per_unit(logprob, corpus.num_bytes),
        hit_rates=rates,
    )


def group_figures(
    log_probs: npt.NDArray[np.floating[Any]], group: npt.NDArray[np.integer[Any]], count: int
) -> list[dict[str, Any]]:
    """Compute figures of each of `count` groups of a text's tokens [N], as JSON values.

    Returns:
        Per group the number of `tokens`, their `share` of all tokens, their mean natural-log probability
        `logprob` and their `perplexity`; the last two are None without tokens or with an impossible one.
    """
    tokens = np.bincount(group, minlength=count)
    totals = np.bincount(group, log_probs, minlength=count)
    return [
        {
            "tokens": size,
            "share": size / max(len(group), 1),
            "logprob": total / size if size and np.isfinite(total) else None,
            "perplexity": perplexity(total, size),
        }
        for size, total in zip(tokens.tolist(), totals.tolist(), strict=True)
    ]
