"""Log-probabilities of many texts that lie one after the other, in bounded chunks of model work."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.protocol import ChoiceScorer, LanguageModel, RaggedScorer, supports
from models.scoring import score_sequences
from models.vocabulary import EOS
from service.engine.calls import score
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.ragged import score_ragged
from service.engine.reading import Scorer
from service.engine.rows import concatenate_states
from service.engine.states import StoredState
from service.use_cases.candidate_texts import RaggedTexts
from service.use_cases.prefill import chunks_by_length, context_groups, prefill
from service.use_cases.prefix_tree import build_tree, score_tree, tree_is_cheaper
from service.use_cases.shared_prefixes import score_shared_prefixes, shared_prefix_levels

Indices = npt.NDArray[np.int64]
MAX_TREE_TOKENS = 1 << 15
"""Padded tokens of texts that are looked at together for what they share."""

MAX_LOOKUP_TOKENS = 8192
"""Tokens that one call looks up in a table: about a millisecond."""


def score_ragged_texts(
    loaded: LoadedModel,
    texts: RaggedTexts,
    list_of: Indices,
    *,
    bos: bool,
    starts: Sequence[StoredState] = (),
    scorer: Scorer = score_sequences,
) -> Work[Any, FloatArray]:
    """Score each text given what stands before it; a use case.

    Contexts are read once. Texts of one list, which begin alike, are read side by side, and what several share is read
    once where that spares work. Tables are asked without padding.

    Args:
        loaded: any.
        texts: what to score.
        list_of: the list that each text is of, never falling [U].
        bos: whether `<s>` stands before the contexts.
        starts: the model's states that texts may follow.
        scorer: of rows of text after a state.

    Returns:
        Natural-log probabilities of all ids [T].
    """
    lengths = np.diff(texts.offsets)
    ragged = (
        supports(loaded.model, RaggedScorer)
        and scorer is score_sequences
        and lengths.max(initial=0) <= MAX_LOOKUP_TOKENS
    )
    order = np.arange(len(lengths)) if ragged else _lists_by_length(lengths, list_of)
    out = np.zeros(len(texts.ids), dtype=np.float32)
    for run in context_groups(_new_ragged_context_lengths(texts, order)):
        rows = order[run]
        used, numbers = np.unique(texts.context_of[rows], return_inverse=True)
        states = yield from _context_states(loaded, texts, used, starts, bos=bos)
        if ragged:
            yield from _score_by_lookup(loaded, texts, rows, states, numbers, out)
        else:
            yield from _score_by_reading(loaded, texts, rows, states, numbers, out, scorer)
    return out


def _lists_by_length(lengths: Indices, list_of: Indices) -> Indices:
    """Texts list by list, the lists with the shortest texts first."""
    begins = np.flatnonzero(np.diff(list_of, prepend=-1))
    longest = np.maximum.reduceat(lengths, begins)
    of_list = np.repeat(longest, np.diff(begins, append=len(lengths)))
    return np.argsort(of_list, kind="stable")


def _new_ragged_context_lengths(texts: RaggedTexts, order: Indices) -> list[int]:
    """The length of each text's context, in an order; 0 where it was there before."""
    fresh = np.zeros(len(order), dtype=np.int64)
    contexts, first = np.unique(texts.context_of[order], return_index=True)
    known = len(texts.contexts)
    fresh[first] = [len(texts.contexts[i]) if i < known else 0 for i in contexts]
    return fresh.tolist() if fresh.any() else [0] * len(order)


def _context_states(
    loaded: LoadedModel, texts: RaggedTexts, used: Indices, starts: Sequence[StoredState], *, bos: bool
) -> Work[Any, Any]:
    """The states after what stands before texts, one row each."""
    known = len(texts.contexts)
    kept = [starts[i - known].state for i in used if i >= known]
    contexts = [texts.contexts[i] for i in used if i < known]
    if not contexts:
        return concatenate_states(kept)
    states = yield from prefill(loaded, contexts, bos=bos)
    return concatenate_states([states, *kept]) if kept else states


def _score_by_lookup(
    loaded: LoadedModel, texts: RaggedTexts, rows: Indices, states: Any, numbers: Indices, out: FloatArray
) -> Work[Any, None]:
    """Score consecutive texts by table, a bounded number of tokens a call."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    at = first
    while at < last:
        limit = texts.offsets[at] + MAX_LOOKUP_TOKENS
        end = max(int(np.searchsorted(texts.offsets, limit, side="right")) - 1, at + 1)
        end = min(end, last)
        offsets = texts.offsets[at : end + 1]
        cut = slice(int(offsets[0]), int(offsets[-1]))
        state = states.select(numbers[at - first : end - first])
        out[cut] = yield from score_ragged(loaded.model, state, texts.ids[cut], offsets - offsets[0])
        at = end


def _score_by_reading(
    loaded: LoadedModel,
    texts: RaggedTexts,
    rows: Indices,
    states: Any,
    numbers: Indices,
    out: FloatArray,
    scorer: Scorer,
) -> Work[Any, None]:
    """Score texts side by side, in chunks of bounded size."""
    for chunk in _padded_chunks(np.diff(texts.offsets)[rows]):
        tokens, lengths, places = _pad_rows(texts, rows[chunk])
        if not places.size:  # empty texts without an end
            continue
        used, contexts = np.unique(numbers[chunk], return_inverse=True)
        scored = yield from _score_padded(
            loaded.model, states.select(used), contexts, tokens, lengths, scorer
        )
        within = places >= 0
        out[places[within]] = scored[within]


def _score_padded(
    model: LanguageModel[Any],
    state: Any,
    contexts: Indices,
    tokens: TokenIds,
    lengths: TokenIds,
    scorer: Scorer,
) -> Work[Any, FloatArray]:
    """Log-probabilities [N, T] of texts after some of K contexts [N], what they share read once if that spares work."""
    shares = scorer is score_sequences and len(lengths) > 1 and model.family != "ngram"
    if shares and supports(model, ChoiceScorer):
        levels = yield from build_tree(contexts, tokens, lengths)
        if tree_is_cheaper(levels, len(state), lengths):
            return (yield from score_tree(model, state, levels, tokens.shape))
    elif shares:
        shared = shared_prefix_levels(contexts, tokens, lengths)
        if shared:
            return (yield from score_shared_prefixes(model, state, shared, tokens, lengths))
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for some in chunks_by_length(lengths):
        width = int(lengths[some].max())
        before = state.select(contexts[some])
        told = yield from score(model, before, tokens[some, :width], lengths[some], scorer=scorer)
        scores[some, :width] = told
    return scores


def _padded_chunks(lengths: Indices) -> list[slice]:
    """Neighbours in runs of at most `MAX_TREE_TOKENS` padded tokens, or one text."""
    runs, first, widest = [], 0, 0
    for last, length in enumerate(lengths.tolist()):
        wider = max(widest, length)
        if last > first and (last + 1 - first) * wider > MAX_TREE_TOKENS:
            runs.append(slice(first, last))
            first, wider = last, length
        widest = wider
    runs.append(slice(first, len(lengths)))
    return runs


def _pad_rows(texts: RaggedTexts, rows: Indices) -> tuple[TokenIds, TokenIds, Indices]:
    """Some texts' ids [R, T], their lengths [R], and where each id stands among all; −1 past a text's end [R, T]."""
    begins, lengths = texts.offsets[rows], np.diff(texts.offsets)[rows]
    steps = np.arange(int(lengths.max(initial=0)))
    places = np.where(steps < lengths[:, None], begins[:, None] + steps, -1)
    tokens = np.where(places >= 0, texts.ids[np.maximum(places, 0)], EOS)
    return tokens, lengths, places
