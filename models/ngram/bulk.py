"""Scoring sentences by the million: from text or ids to log-probabilities, on as many cores as are given."""

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from models.arrays import FloatArray, TokenIds
from models.ngram.access import readonly
from models.ngram.inputs import check_offsets
from models.ngram.model import NGramModel
from models.ngram.threads import run_slices
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


def score_sentence_lines(
    model: NGramModel, tokenizer: Tokenizer, lines: Sequence[str], *, threads: int = 1
) -> SentenceScores:
    """Score each line as a sentence after `<s>`, its `</s>` included.

    Args:
        model: what to score with.
        tokenizer: the model's.
        lines: one sentence each.
        threads: how many cores to use, for tokenising too; the answer is the same.

    Raises:
        InvalidInputError: the tokenizer has ids that are outside the model's vocabulary.
    """
    cuts = np.linspace(0, len(lines), max(1, min(threads, len(lines))) + 1).astype(int).tolist()
    parts = run_slices(lambda share: score_sentences(model, *tokenizer.encode_ragged(lines[share])), cuts)
    if len(parts) == 1:
        return parts[0]
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
        InvalidInputError: the offsets do not fit, or an id is outside the vocabulary.
    """
    words: TokenIds = np.ascontiguousarray(ids, dtype=np.int64)
    offsets = np.ascontiguousarray(offsets, dtype=np.int64)
    check_offsets(words, offsets, max(len(offsets) - 1, 0))
    begins = offsets + np.arange(len(offsets))  # with one </s> a sentence
    tokens = np.empty(int(begins[-1]), dtype=np.int64)
    _append_eos(words, offsets, tokens)
    log_probs = model.score_ragged(model.initial_state(len(offsets) - 1), tokens, begins, threads=threads)
    return SentenceScores(log_probs, begins)


@numba.njit(
    types.void(readonly("int64"), readonly("int64"), types.int64[::1]),
    nogil=True,
    cache=True,
)
def _append_eos(
    ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]
) -> None:
    """Put `</s>` behind each sentence; `tokens` has as many more places as there are sentences."""
    for row in range(len(offsets) - 1):
        for place in range(offsets[row], offsets[row + 1]):
            tokens[place + row] = ids[place]
        tokens[offsets[row + 1] + row] = EOS
