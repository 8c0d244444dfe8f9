"""Log-probabilities of many sequences in bounded chunks of model work."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np

from models.arrays import FloatArray
from models.scoring import pad_sequences, score_sequences
from service.engine.calls import score
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.reading import Scorer
from service.use_cases.prefill import chunks_by_length, context_groups, prefill
from service.use_cases.shared_prefixes import score_shared_prefixes, shared_prefix_levels
from service.use_cases.tokens import EncodedText


def score_sequence_list(
    loaded: LoadedModel, sequences: Seq[EncodedText], *, bos: bool, scorer: Scorer = score_sequences
) -> Work[Any, list[FloatArray]]:
    """Score each sequence's text given its context; a use case.

    Contexts that several sequences share are read once, and so are their beginnings where that
    spares work. Rows are sorted by length, so that a chunk holds little padding.

    Args:
        loaded: any.
        sequences: what to score; equal contexts are one array (`ContextInterner`).
        bos: whether `<s>` stands before the context.
        scorer: of rows of text after a state.

    Returns:
        One array of natural-log probabilities [T] a text, in order.
    """
    scores: list[FloatArray] = []
    for group in context_groups(_new_context_lengths(sequences)):
        scores += yield from _score_group(loaded, sequences[group], bos=bos, scorer=scorer)
    return scores


def _new_context_lengths(sequences: Seq[EncodedText]) -> list[int]:
    """The length of each sequence's context; 0 where it was there before."""
    seen: set[int] = set()
    lengths = []
    for context, _ in sequences:
        lengths.append(0 if id(context) in seen else len(context))
        seen.add(id(context))
    return lengths


def _score_group(
    loaded: LoadedModel, sequences: Seq[EncodedText], *, bos: bool, scorer: Scorer
) -> Work[Any, list[FloatArray]]:
    places: dict[int, int] = {}
    rows = np.array([places.setdefault(id(context), len(places)) for context, _ in sequences])
    contexts = list({id(context): context for context, _ in sequences}.values())
    states = yield from prefill(loaded, contexts, bos=bos)
    scores: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(sequences)
    shares = scorer is score_sequences and loaded.model.family != "ngram"
    for chunk in chunks_by_length(np.array([len(text) for _, text in sequences], dtype=np.int64)):
        tokens, lengths = pad_sequences([sequences[i].text for i in chunk])
        used, numbers = np.unique(rows[chunk], return_inverse=True)
        levels = shared_prefix_levels(numbers, tokens, lengths) if shares and len(chunk) > 1 else []
        if levels:
            scored = yield from score_shared_prefixes(
                loaded.model, states.select(used), levels, tokens, lengths
            )
        else:
            state = states.select(rows[chunk])
            scored = yield from score(loaded.model, state, tokens, lengths, scorer=scorer)
        for row, i in enumerate(chunk):
            scores[i] = scored[row, : lengths[row]]
    return scores
