"""Held-out figures of any model: log-probability, cross-entropy, perplexities, bits per byte.

What a token's context is, is said in `training.evaluating.scoring`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from models.protocol import LanguageModel
from models.scoring import bits_per_unit, perplexity
from models.vocabulary import UNK
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import (
    CONTEXTS,
    DEFAULT_WINDOW_TOKENS,
    Context,
    CorpusScores,
    as_ngram,
    score_corpus,
)
from training.ngram.hit_rates import HitRate, hit_rates
from training.progress import Progress

__all__ = [
    "CONTEXTS",
    "Context",
    "Evaluation",
    "CorpusScores",
    "evaluate",
    "summarise_scores",
    "score_corpus",
    "evaluation_facts",
]


class Evaluation(NamedTuple):
    """Figures over a text.

    What depends on the tokenizer: all that is per token. What does not, so that models with
    different tokenizers compare on the same text: all that is per word or byte.

    Attributes:
        context: how contexts were made.
        tokens: tokens predicted, `</s>` and unknown ones included.
        oov: how many of them were `<unk>`.
        logprob: their natural-log probability.
        nats_per_token: the cross-entropy, −logprob / tokens; None where a probability was zero.
        bits_per_token: the same in bits.
        perplexity: per token, unknown ones charged at p(<unk>).
        perplexity_without_oov: the same with unknown tokens left out of sum and count.
        word_perplexity: per word between white space; a predicted `</s>` counts as a word.
        byte_perplexity: per byte of UTF-8, line ends aside (`document`: included).
        bits_per_byte: its logarithm.
        hit_rates: of an n-gram model: which orders' n-grams were found, by order; else empty.
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
    hit_rates: Sequence[HitRate] = ()


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
        context: see `training.evaluating.scoring`.
        window: tokens in a window, for `document`.
        progress: told of tokens.
    """
    targets = score_corpus(model, corpus, context=context, window=window, progress=progress)
    return summarise_scores(model, corpus, targets, context=context)


def summarise_scores(
    model: LanguageModel[Any], corpus: EncodedCorpus, targets: CorpusScores, *, context: Context
) -> Evaluation:
    """Sum up what a model said of a corpus."""
    known = targets.tokens != UNK
    logprob = float(targets.log_probs.sum(dtype="float64"))
    known_logprob = float(targets.log_probs[known].sum(dtype="float64"))
    ends = 0 if context == "document" else corpus.num_sentences
    count = len(targets.tokens)
    found: Sequence[HitRate] = ()
    ngram = as_ngram(model)
    if targets.matched is not None and ngram is not None:
        found = hit_rates(targets.log_probs, targets.matched, order=ngram.order)
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
        hit_rates=found,
    )


def evaluation_facts(evaluation: Evaluation) -> dict[str, Any]:
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
