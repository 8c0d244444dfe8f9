"""Held-out figures of any model: log-probability, perplexities, bits per byte.

Three ways to say what a token's context is:

sentence  every line starts afresh after `<s>`, and its `</s>` is predicted.
stream    the state is carried across lines: …, `</s>`, `<s>`, next line; `</s>` is predicted, `<s>` is not.
document  each text whole, line ends in it, cut into disjoint windows; a window starts from
          nothing but the token before it (`<s>` for the first); `</s>` is not predicted. This is
          how lm-evaluation-harness computes rolling log-likelihoods.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from models.scoring import bits_per, consume, perplexity, score_sequences
from models.vocabulary import BOS, EOS, UNK
from training.corpora.encoded import EncodedCorpus
from training.ngram.hit_rates import HitRate, hit_rates
from training.progress import Progress

Context = Literal["sentence", "stream", "document"]
CONTEXTS: tuple[Context, ...] = ("sentence", "stream", "document")
DEFAULT_WINDOW_TOKENS = 65_534
"""Tokens predicted in one window of a document."""

_BATCH_TOKENS = 16_384
_CHUNK_TOKENS = 2_048


class Evaluation(NamedTuple):
    """Figures over a text.

    Attributes:
        context: how contexts were made.
        tokens: tokens predicted, `</s>` and unknown ones included.
        oov: how many of them were `<unk>`.
        logprob: their natural-log probability.
        perplexity: per token, unknown ones charged at p(<unk>).
        perplexity_without_oov: the same with unknown tokens left out of sum and count.
        word_perplexity: per word between white space; a predicted `</s>` counts as a word.
        bits_per_byte: per byte of UTF-8, line ends aside (`document`: included).
        hit_rates: of an n-gram model: which orders' n-grams were found, by order; else empty.
    """

    context: Context
    tokens: int
    oov: int
    logprob: float
    perplexity: float | None
    perplexity_without_oov: float | None
    word_perplexity: float | None
    bits_per_byte: float | None
    hit_rates: Sequence[HitRate] = ()


class Targets(NamedTuple):
    """What a model says of predicted tokens, in the corpus's order.

    Attributes:
        log_probs: natural-log probabilities [N].
        tokens: the tokens [N].
        matched: of an n-gram model: the length of the longest n-gram found for each [N].
    """

    log_probs: npt.NDArray[np.float32]
    tokens: npt.NDArray[np.int64]
    matched: npt.NDArray[np.integer[Any]] | None


def evaluate(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    context: Context = "sentence",
    window: int = DEFAULT_WINDOW_TOKENS,
    progress: Progress,
) -> Evaluation:
    """Score a corpus and sum up.

    Args:
        model: any family.
        corpus: encoded with the model's tokenizer; for `document` each "sentence" is a whole text.
        context: see the module.
        window: tokens in a window, for `document`.
        progress: told of tokens.
    """
    targets = score_corpus(model, corpus, context=context, window=window, progress=progress)
    known = targets.tokens != UNK
    logprob = float(targets.log_probs.sum(dtype=np.float64))
    known_logprob = float(targets.log_probs[known].sum(dtype=np.float64))
    ends = 0 if context == "document" else corpus.num_sentences
    count = len(targets.tokens)
    found: Sequence[HitRate] = ()
    ngram = _as_ngram(model)
    if targets.matched is not None and ngram is not None:
        found = hit_rates(targets.log_probs, targets.matched, order=ngram.order)
    return Evaluation(
        context=context,
        tokens=count,
        oov=count - int(known.sum()),
        logprob=logprob,
        perplexity=perplexity(logprob, count),
        perplexity_without_oov=perplexity(known_logprob, int(known.sum())),
        word_perplexity=perplexity(logprob, corpus.num_words + ends),
        bits_per_byte=bits_per(logprob, corpus.num_bytes),
        hit_rates=found,
    )


def score_corpus(
    model: LanguageModel[Any],
    corpus: EncodedCorpus,
    *,
    context: Context = "sentence",
    window: int = DEFAULT_WINDOW_TOKENS,
    progress: Progress,
) -> Targets:
    """Log-probabilities of every predicted token of a corpus."""
    progress.start(f"scoring with the {model.family}, {context} context", corpus.num_tokens)
    if context == "sentence":
        targets = _score_sentences(model, corpus, progress)
    else:
        texts = _windows(corpus, window) if context == "document" else iter([_running_text(corpus)])
        targets = _score_long(model, texts, progress)
    progress.finish()
    return targets


def _score_sentences(model: LanguageModel[Any], corpus: EncodedCorpus, progress: Progress) -> Targets:
    lengths = np.diff(corpus.offsets) + 1  # with </s>
    starts = np.concatenate([[0], np.cumsum(lengths)])
    log_probs = np.zeros(starts[-1], dtype=np.float32)
    matched = None if _as_ngram(model) is None else np.zeros(starts[-1], dtype=np.uint8)
    tokens = np.full(starts[-1], EOS, dtype=np.int64)
    tokens[np.arange(len(corpus.tokens)) + np.repeat(np.arange(len(lengths)), lengths - 1)] = corpus.tokens
    for rows in _batches_of_similar_length(lengths):
        width = int(lengths[rows].max())
        inside = np.arange(width) < lengths[rows, None]  # [B, T]
        places = (starts[rows, None] + np.arange(width))[inside]
        batch = np.full((len(rows), width), EOS, dtype=np.int64)
        batch[inside] = tokens[places]
        scores, orders = _score(model, model.initial_state(len(rows)), batch, lengths[rows])
        log_probs[places] = scores[inside]
        if matched is not None and orders is not None:
            matched[places] = orders[inside]
        progress.advance(len(places))
    return Targets(log_probs, tokens, matched)


def _score(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds
) -> tuple[FloatArray, npt.NDArray[np.integer[Any]] | None]:
    """Log-probabilities [B, T] and, of an n-gram model, the lengths of the n-grams found [B, T]."""
    ngram = _as_ngram(model)
    if ngram is not None:
        scores = ngram.score_detailed(state, tokens, lengths)
        return scores.log_probs, scores.orders
    return score_sequences(model, state, tokens, lengths), None


def _as_ngram(model: Any) -> Any:
    """An n-gram model, on whatever device it computes; None for another family."""
    return model if model.family == NGramModel.family else None


def _batches_of_similar_length(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and lengths[order[end]] * (end + 1 - start) <= _BATCH_TOKENS:
            end += 1
        yield order[start:end]
        start = end


def _running_text(corpus: EncodedCorpus) -> tuple[int, TokenIds]:
    text = corpus.with_boundaries().astype(np.int64)
    return BOS, text[1:]


def _windows(corpus: EncodedCorpus, window: int) -> Iterator[tuple[int, TokenIds]]:
    for index in range(corpus.num_sentences):
        document = corpus.sentence(index).astype(np.int64)
        for start in range(0, len(document), window):
            yield (int(document[start - 1]) if start else BOS), document[start : start + window]


def _score_long(
    model: LanguageModel[Any], texts: Iterator[tuple[int, TokenIds]], progress: Progress
) -> Targets:
    """Score texts one after the other, each in chunks with the state carried between them."""
    log_probs: list[npt.NDArray[np.float32]] = []
    matched: list[npt.NDArray[np.integer[Any]]] = []
    targets: list[TokenIds] = []
    for before, text in texts:
        state = model.advance(model.empty_state(1), np.asarray([before]))
        for start in range(0, len(text), _CHUNK_TOKENS):
            chunk = text[None, start : start + _CHUNK_TOKENS]
            lengths = np.asarray([chunk.shape[1]])
            scores, orders = _score(model, state, chunk, lengths)
            state = consume(model, state, chunk, lengths)
            predicted = chunk[0] != BOS
            log_probs.append(scores[0, predicted])
            if orders is not None:
                matched.append(orders[0, predicted])
            targets.append(chunk[0][predicted])
            progress.advance(int(predicted.sum()))
    if not targets:
        return Targets(np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.int64), None)
    found = np.concatenate(matched) if matched else None
    return Targets(np.concatenate(log_probs), np.concatenate(targets), found)


def summary(evaluation: Evaluation) -> dict[str, Any]:
    """The figures by name, as JSON can carry them: a log-probability of minus infinity is null.

    `hit_rates` is there for n-gram models only.
    """
    values = evaluation._asdict()
    values["hit_rates"] = [rate._asdict() for rate in evaluation.hit_rates]
    if not values["hit_rates"]:
        del values["hit_rates"]
    values["oov_rate"] = evaluation.oov / evaluation.tokens if evaluation.tokens else 0.0
    if not math.isfinite(evaluation.logprob):
        values["logprob"] = None
    return values
