"""Scoring sentences by the million: from text or ids to log-probabilities, on as many cores as are given."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.ngram.model import NGramModel
from models.tokenizers import Tokenizer
from models.vocabulary import EOS


class SentenceScores(NamedTuple):
    """Natural-log probabilities of B sentences' tokens, `</s>` included.

    Attributes:
        log_probs: of all sentences, one after the other [N].
        offsets: where each sentence's begin, and N at the end [B + 1].
    """

    log_probs: FloatArray
    offsets: TokenIds

    @property
    def sums(self) -> npt.NDArray[np.float64]:
        """The log-probability of each sentence [B]."""
        return np.add.reduceat(self.log_probs, self.offsets[:-1], dtype=np.float64)


def score_lines(
    model: NGramModel, tokenizer: Tokenizer, lines: Sequence[str], *, threads: int = 1
) -> SentenceScores:
    """Score each line as a sentence after `<s>`, its `</s>` included.

    Args:
        model: what to score with.
        tokenizer: the model's.
        lines: one sentence each.
        threads: how many cores to use, for tokenising too; the answer is the same.
    """
    cuts = np.linspace(0, len(lines), max(1, min(threads, len(lines))) + 1).astype(int).tolist()
    shares = [lines[begin:end] for begin, end in pairwise(cuts)]

    def run(share: Sequence[str]) -> SentenceScores:
        return score_sentences(model, *tokenizer.encode_ragged(share))

    if len(shares) == 1:
        return run(shares[0])
    with ThreadPoolExecutor(len(shares)) as pool:
        parts = list(pool.map(run, shares))
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return SentenceScores(
        np.concatenate([part.log_probs for part in parts]), np.concatenate([[0], np.cumsum(lengths)])
    )


def score_sentences(
    model: NGramModel, ids: npt.NDArray[np.integer], offsets: TokenIds, *, threads: int = 1
) -> SentenceScores:
    """Score B sentences of ids, each after `<s>` and with its `</s>`.

    Args:
        model: what to score with.
        ids: of all sentences, without `<s>` and `</s>` [N].
        offsets: where each sentence starts, and N at the end [B + 1].
        threads: how many cores to use; the answer is the same.

    Raises:
        InvalidInputError: an id is outside the vocabulary.
    """
    ends = offsets + np.arange(len(offsets))  # with one </s> a sentence
    tokens = np.full(int(ends[-1]), EOS, dtype=np.int64)
    is_word = np.ones(len(tokens), dtype=np.bool_)
    is_word[ends[1:] - 1] = False
    tokens[is_word] = ids
    log_probs = model.score_ragged(model.initial_state(len(offsets) - 1), tokens, ends, threads=threads)
    return SentenceScores(log_probs, ends)
