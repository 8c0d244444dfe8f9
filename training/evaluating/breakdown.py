"""Figures over a text in parts: by how frequent the tokens are, and by how far along they stand."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.scoring import perplexity
from models.vocabulary import EOS, UNK
from training.corpora.encoded import EncodedCorpus
from training.evaluating.scoring import Context, CorpusScores

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
