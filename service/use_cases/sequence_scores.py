"""Log-probabilities of many sequences in bounded chunks of model work."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.protocol import LanguageModel
from models.scoring import consume, pad, score_sequences
from service.engine.job import Work
from service.use_cases.prefill import chunks, groups, pieces, prefill
from service.use_cases.tokens import Sequence

Scorer: TypeAlias = Callable[[LanguageModel[Any], Any, TokenIds, TokenIds], FloatArray]


def score_all(
    model: LanguageModel[Any], sequences: Seq[Sequence], *, bos: bool, scorer: Scorer = score_sequences
) -> Work[Any, list[FloatArray]]:
    """Score each sequence's text given its context; a use case.

    Contexts that several sequences share are read once. Rows are sorted by length, so that
    a chunk holds little padding; a long text is scored in pieces.

    Args:
        model: any.
        sequences: what to score; equal contexts are one array (`SharedContexts`).
        bos: whether `<s>` stands before the context.
        scorer: of rows of text after a state.

    Returns:
        One array of natural-log probabilities [T] a text, in order.
    """
    scores: list[FloatArray] = []
    for group in groups(_new_tokens(sequences)):
        scores += yield from _score_some(model, sequences[group], bos=bos, scorer=scorer)
    return scores


def _new_tokens(sequences: Seq[Sequence]) -> list[int]:
    """The length of each sequence's context; 0 where it was there before."""
    seen: set[int] = set()
    lengths = []
    for context, _ in sequences:
        lengths.append(0 if id(context) in seen else len(context))
        seen.add(id(context))
    return lengths


def _score_some(
    model: LanguageModel[Any], sequences: Seq[Sequence], *, bos: bool, scorer: Scorer
) -> Work[Any, list[FloatArray]]:
    places: dict[int, int] = {}
    contexts: list[TokenIds] = []
    rows = np.empty(len(sequences), dtype=np.int64)
    for i, (context, _) in enumerate(sequences):
        rows[i] = places.setdefault(id(context), len(contexts))
        if rows[i] == len(contexts):
            contexts.append(context)
    states = yield from prefill(model, contexts, bos=bos)
    scores: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    for chunk in chunks(np.array([len(text) for _, text in sequences], dtype=np.int64)):
        tokens, lengths = pad([sequences[i].text for i in chunk])
        state = states.select(rows[chunk])
        scored = np.zeros(tokens.shape, dtype=np.float32)
        for first, part, left in pieces(tokens, lengths):
            end = first + part.shape[1]
            scored[:, first:end] = scorer(model, state, part, left)
            yield None
            if end < tokens.shape[1]:
                state = consume(model, state, part, left)
                yield None
        for row, i in enumerate(chunk):
            scores[i] = scored[row, : lengths[row]]
    return scores
