"""Prefill of contexts: the model state after each sequence, with the prefix cache.

States of a few contexts are cached, at the end and at the start of the last word, because a word
changes while it is typed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from models.arrays import Int64s, TokenIds
from models.calls import Predict, Read, Work
from models.language_model import STATE, LanguageModel, pad_sequences
from models.prefix_cache import NextTokenEntry, PrefixCache
from models.scoring.constants import MAX_CACHED_CONTEXTS, MAX_CALL_TOKENS, MAX_GROUP_TOKENS
from models.scoring.texts import Limits, encode
from models.states import concatenate_states, materialize
from models.text_model import TextModel
from models.vocabulary import BOS


def prefill(loaded: TextModel, contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read B contexts.

    States of a few contexts are cached; cached prefixes are not read again.

    Args:
        loaded: model.
        contexts: B ≥ 1 sequences of ids, each [T_b] and possibly empty.
        bos: true if `<s>` precedes them.

    Returns:
        A state of B rows, in the contexts' order.
    """
    if not any(map(len, contexts)):
        model = loaded.model
        return model.initial_state(len(contexts)) if bos else model.empty_state(len(contexts))
    cache = loaded.prefix_cache
    if cache is None or len(contexts) > MAX_CACHED_CONTEXTS:
        return (yield from _prefill_all(loaded.model, contexts, bos=bos))
    states = []
    for context in contexts:
        state = yield from _prefill_cached(loaded, cache, context, bos=bos)
        states.append(state)
    return states[0] if len(states) == 1 else concatenate_states(states)


def _prefill_cached(loaded: TextModel, cache: PrefixCache, context: TokenIds, *, bos: bool) -> Work[Any, Any]:
    """Read a context's uncached rest; also cache the state before its last word."""
    model = loaded.model
    begin = model.initial_state if bos else model.empty_state
    if not len(context):
        return begin(1)
    ids = np.concatenate([[BOS], context]) if bos else np.asarray(context)
    count, state = cache.longest_match(ids)
    if count == 0:
        count, state = int(bos), begin(1)
    word = count + _last_word_start(loaded, ids[count:])
    for end in (word, len(ids)):
        if end > count:
            result = yield from Read(model, state, ids[None, count:end], np.array([end - count]), STATE)
            state = materialize(result.state)
            cache.put(ids[:end], state)
            count = end
    return state


def _last_word_start(loaded: TextModel, ids: TokenIds) -> int:
    """Find the start of the last word of ids [T]; the last token if none begins with a space."""
    spelled = loaded.tokenizer.token_bytes
    starts = (index for index in reversed(range(len(ids))) if spelled[ids[index]][:1] == b" ")
    return next(starts, max(len(ids) - 1, 0))


def _prefill_all(model: LanguageModel[Any], contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read contexts in chunks of similar length."""
    begin = model.initial_state if bos else model.empty_state
    states: list[Any] = []
    orders: list[Int64s] = []
    for rows in chunks_by_length(np.array([len(context) for context in contexts], np.int64)):
        tokens, lengths = pad_sequences([contexts[i] for i in rows])
        state = begin(len(rows))
        if tokens.shape[1]:
            state = (yield from Read(model, state, tokens, lengths, STATE)).state
        states.append(state)
        orders.append(rows)
    if len(contexts) == 1:
        return states[0]
    return concatenate_states(states).select(np.argsort(np.concatenate(orders)))


def token_runs(lengths: Sequence[int], most: int | None = None, *, padded: bool = False) -> Iterator[slice]:
    """Split sequences into runs of bounded length, at least one in each.

    Args:
        lengths: lengths of the sequences, in order.
        most: maximum tokens of a run; None for `MAX_GROUP_TOKENS`.
        padded: true to count each sequence as long as the longest in its run.
    """
    most = MAX_GROUP_TOKENS if most is None else most
    first = total = longest = 0
    for last, length in enumerate(lengths):
        total, longest = total + length, max(longest, length)
        if last > first and ((last + 1 - first) * longest if padded else total) > most:
            yield slice(first, last)
            first, total, longest = last, length, length
    if lengths:
        yield slice(first, len(lengths))


def chunks_by_length(lengths: Int64s) -> Iterator[Int64s]:
    """Split indices, sorted by length, into runs of at most `MAX_CALL_TOKENS` padded tokens, or one."""
    order = np.argsort(lengths, kind="stable")
    for run in token_runs(lengths[order].tolist(), MAX_CALL_TOKENS, padded=True):
        yield order[run]


def predict_next(loaded: TextModel, context: str, limits: Limits, *, param: str) -> Work[Any, NextTokenEntry]:
    """Compute or find the state and distribution after a context; cached for a word's keystrokes.

    Too long a context is also cached, to avoid tokenising it at every keystroke.
    """
    entry = loaded.next_token_cache.find(context)
    if entry is None:
        ids = encode(loaded, context, param=param)
        entry = NextTokenEntry(len(ids))
        if len(ids) <= limits.max_tokens_per_sequence:
            state = yield from prefill(loaded, [ids], bos=True)
            log_probs = yield from Predict(loaded.model, state)
            entry = NextTokenEntry(len(ids), materialize(state), np.array(log_probs))
        loaded.next_token_cache.put(context, entry)
    return entry
