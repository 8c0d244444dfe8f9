"""Log-probabilities of many sequences in bounded chunks of model work."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from models.scoring import pad, score_sequences
from service.engine.job import Work
from service.use_cases.prefill import TOKENS_PER_STEP, prefill
from service.use_cases.tokens import Sequence


def score_all(
    model: LanguageModel[Any], sequences: Seq[Sequence], *, bos: bool
) -> Work[Any, list[FloatArray]]:
    """Score the part of each sequence that follows its context; a use case.

    Contexts that several sequences share are read once. Rows are sorted by length, so that
    a chunk holds little padding.

    Args:
        model: any.
        sequences: each with the number of ids that are context.
        bos: whether `<s>` stands before the context.

    Returns:
        One array of natural-log probabilities [T − num_context] a sequence, in order.
    """
    if not sequences:
        return []
    places: dict[bytes, int] = {}
    contexts: list[TokenIds] = []
    rows = np.empty(len(sequences), dtype=np.int64)
    for i, (ids, num_context) in enumerate(sequences):
        context = ids[:num_context]
        rows[i] = places.setdefault(context.tobytes(), len(contexts))
        if rows[i] == len(contexts):
            contexts.append(context)
    state = yield from prefill(model, contexts, bos=bos)
    scores: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    texts = [ids[num_context:] for ids, num_context in sequences]
    for chunk in _chunks(np.array([len(text) for text in texts], dtype=np.int64)):
        tokens, lengths = pad([texts[i] for i in chunk])
        scored = score_sequences(model, state.select(rows[chunk]), tokens, lengths)
        for row, i in enumerate(chunk):
            scores[i] = scored[row, : lengths[row]]
        yield None
    return scores


def _chunks(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Indices in order of length, in runs of at most `TOKENS_PER_STEP` padded tokens, or one sequence."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    for last in range(len(order)):
        if (last + 1 - first) * lengths[order[last]] > TOKENS_PER_STEP and last > first:
            yield order[first:last]
            first = last
    if len(order):
        yield order[first:]
