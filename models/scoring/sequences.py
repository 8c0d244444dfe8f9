"""Prefill of contexts, and scoring of many texts in bounded chunks.

Common prefixes are read once: the texts form a prefix tree of tokens. `score_tree`
reads it level by level, one state row per prefix, and scores next tokens when
enough rows are pending, because matrix products of many rows are cheapest. It is
used if its estimated cost is below that of reading all texts side by side (costs
measured on small int8 mixtures and on a float32 LSTM of 2x512).
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self, cast

import numpy as np

from models.arrays import Float64s, FloatArray, Int64s, TokenIds, runs_by_cost
from models.calls import (
    Predict,
    Read,
    ScoreChoices,
    ScoreRagged,
    Work,
    join_states,
    map_in_steps,
    materialize,
    view,
)
from models.errors import InputError
from models.language_model import (
    BOS,
    EOS,
    SCORES,
    STATE,
    LanguageModel,
    RaggedScorer,
    Want,
    is_lookup,
    pad_sequences,
    supports,
)
from models.prefix_cache import NextTokenEntry, PrefixCache, Readings, context_key
from models.scoring.candidate_texts import RaggedTexts
from models.scoring.constants import (
    LEVEL_COST,
    MAX_CACHED_CONTEXTS,
    MAX_CALL_TOKENS,
    MAX_GROUP_TOKENS,
    MAX_LOOKUP_TOKENS,
    MAX_STATE_ENTRIES,
    MAX_TREE_ROWS,
    MAX_TREE_TOKENS,
    PREFIX_COST,
)
from models.text_model import ContextEncoder, EncodedText, Limits, TextModel, TextOrIds, TextState, encode

_AFTER_LINES = "\n"
"""Context of the state after earlier lines, before any text."""


def prefill(loaded: TextModel, contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
    """Read B contexts.

    States of a few are cached, at the end and at the start of the last word, which
    changes while it is typed; cached prefixes are not read again.

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
    return states[0] if len(states) == 1 else join_states(states)


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


def _prefill_all(model: LanguageModel, contexts: Sequence[TokenIds], *, bos: bool) -> Work[Any, Any]:
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
    return join_states(states).select(np.argsort(np.concatenate(orders)))


def _padded_runs(lengths: Sequence[int], most: int) -> Iterator[slice]:
    """Split sequences into runs of at most `most` tokens, each padded to its run's longest; or of one sequence."""
    first = longest = 0
    for last, length in enumerate(lengths):
        longest = max(longest, length)
        if last > first and (last + 1 - first) * longest > most:
            yield slice(first, last)
            first, longest = last, length
    if lengths:
        yield slice(first, len(lengths))


def chunks_by_length(lengths: Int64s) -> Iterator[Int64s]:
    """Split indices, sorted by length, into runs of at most `MAX_CALL_TOKENS` padded tokens, or one."""
    order = np.argsort(lengths, kind="stable")
    for run in _padded_runs(lengths[order].tolist(), MAX_CALL_TOKENS):
        yield order[run]


def predict_next(
    loaded: TextModel, context: str, limits: Limits, *, param: str, before: str = ""
) -> Work[Any, NextTokenEntry]:
    """Compute or find the state and distribution after a context; cached for a word's keystrokes.

    Too long a context is also cached, to avoid tokenising it at every keystroke.
    `before` are earlier lines.
    """
    key = context_key(context, before)
    entry = loaded.next_token_cache.find(key)
    if entry is None:
        ids = encode(loaded, context, param=param)
        first = (yield from _read_lines(loaded, before, limits)) if before else NextTokenEntry(0)
        entry = NextTokenEntry(first.num_tokens + len(ids))
        if entry.num_tokens <= limits.max_tokens_per_sequence:
            if first.num_tokens == 0:
                state = yield from prefill(loaded, [ids], bos=True)
            elif len(ids):
                rest = np.array([ids], np.int64)
                state = (
                    yield from Read(loaded.model, view(first.state), rest, np.array([len(ids)]), STATE)
                ).state
            else:
                state = view(first.state)
            log_probs = yield from Predict(loaded.model, state)
            entry = NextTokenEntry(
                entry.num_tokens, materialize(state), np.array(log_probs), longer=Readings()
            )
        loaded.next_token_cache.put(key, entry)
    return entry


def _read_lines(loaded: TextModel, before: str, limits: Limits) -> Work[Any, NextTokenEntry]:
    """Read lines, each as a sentence, and the `<s>` after them; states of models of running text go on."""
    key = before, _AFTER_LINES
    entry = loaded.next_token_cache.find(key)
    if entry is None:
        lines = [line for line in before.splitlines() if line.strip()]
        encoded = yield from map_in_steps(lines, lambda line: encode(loaded, line, param="before"), size=len)
        ids = np.array([token for line in encoded for token in (*line, EOS, BOS)], np.int64)
        entry = NextTokenEntry(len(ids))
        if 0 < len(ids) <= limits.max_tokens_per_sequence:
            state = yield from prefill(loaded, [ids], bos=True)
            entry = NextTokenEntry(len(ids), materialize(state))
        loaded.next_token_cache.put(key, entry)
    return entry


def score_sequence_list(
    loaded: TextModel, sequences: Sequence[EncodedText], *, bos: bool
) -> Work[Any, list[FloatArray]]:
    """Score each sequence's text given its context.

    Args:
        loaded: model.
        sequences: texts with contexts; equal contexts are one array
            (`ContextEncoder`).
        bos: true if `<s>` precedes the context.

    Returns:
        One array of natural-log probabilities [T] per text, in order.
    """
    if not sequences:
        return []
    if len(sequences) == 1:
        return [(yield from _score_one(loaded, sequences[0], bos=bos))]
    texts = RaggedTexts.of(sequences)
    scores = yield from score_ragged_texts(loaded, texts, bos=bos)
    return [scores[begin:end] for begin, end in pairwise(texts.offsets.tolist())]


def _score_one(loaded: TextModel, sequence: EncodedText, *, bos: bool) -> Work[Any, FloatArray]:
    """Score one text, without the overhead for many: natural-log probabilities [T]."""
    context, text = sequence
    states = yield from prefill(loaded, [context], bos=bos)
    if supports(loaded.model, RaggedScorer) and len(text) <= MAX_LOOKUP_TOKENS:
        return (yield from ScoreRagged(loaded.model, states, text, np.array([0, len(text)])))
    result = yield from Read(loaded.model, states, text[None], np.array([len(text)]), SCORES)
    return cast("FloatArray", result.log_probs[0])


class ScoreItem(NamedTuple):
    """One sequence to score.

    Attributes:
        param: its name in the request, for messages.
        given: the text or ids to score; not empty, see `checked`.
        context: text or ids before it; may be empty.
        name: the client's id for it, if any.
    """

    param: str
    given: TextOrIds
    context: TextOrIds = ""
    name: str | None = None

    def checked(self) -> Self:
        """Return the sequence.

        Raises:
            InputError: there is nothing to score.
        """
        if not self.given:
            raise InputError.of(self.param, "is empty; there is nothing to score")
        return self

    def size(self) -> int:
        """Number of characters or ids."""
        return len(self.context) + len(self.given)


def score_pairs(
    loaded: TextModel, pairs: Sequence[ScoreItem], limits: Limits, *, exact: bool = False
) -> Work[Any, tuple[list[EncodedText], Float64s]]:
    """Score texts after contexts, tokenised as one; equal contexts and prefixes are read once.

    Args:
        loaded: model.
        pairs: at least one text with its context.
        limits: of one text with its context.
        exact: see `score_ragged_texts`.

    Returns:
        Each pair's ids, and the natural-log probability of each text [N].

    Raises:
        InputError: a text has no token, or a context of ids.
        ContextLengthError: a text with its context is too long.
    """
    encoder = ContextEncoder(loaded)

    def encode_pair(pair: ScoreItem) -> EncodedText:
        context, text, param = pair.context, pair.given, pair.param
        limits.check_characters(context, text, param=param)
        encoded = encoder.encode(context, text, param=param)
        limits.check_length(len(encoded.context) + len(encoded.text), param=param)
        if not len(encoded.text):
            raise InputError(f"{text!r} has no token, so it cannot be scored after a context", param=param)
        return encoded

    sequences = yield from map_in_steps(pairs, encode_pair, size=ScoreItem.size)
    texts = RaggedTexts.of(sequences)
    log_probs = yield from score_ragged_texts(loaded, texts, bos=True, exact=exact)
    return sequences, np.add.reduceat(log_probs, texts.offsets[:-1], dtype=np.float64)


class TreeLevel(NamedTuple):
    """Choices: the distinct next tokens after the prefixes of one length.

    Attributes:
        rows: prefix of each choice, ascending [C].
        tokens: token of each choice [C].
        choices: choice of each text; −1 after its end [N].
        continued: choices with further tokens, the prefixes of the next level.
    """

    rows: Int64s
    tokens: TokenIds
    choices: Int64s
    continued: Int64s


def build_tree(contexts: Int64s, tokens: TokenIds, lengths: TokenIds) -> Work[Any, list[TreeLevel]]:
    """Build the levels of texts, one per token of the longest.

    Args:
        contexts: index of each text's context [N].
        tokens: ids [N, T].
        lengths: lengths of the texts [N].
    """
    levels: list[TreeLevel] = []
    nodes = contexts  # prefix of each text; arbitrary for finished texts
    for depth in range(int(lengths.max(initial=0))):
        alive, next_tokens = np.flatnonzero(lengths > depth), tokens[:, depth]
        width = int(next_tokens.max()) + 1
        pairs, choice_of_row = np.unique(nodes[alive] * width + next_tokens[alive], return_inverse=True)
        choices = np.full(len(nodes), -1, np.int64)
        choices[alive] = choice_of_row
        level = TreeLevel(pairs // width, pairs % width, choices, np.unique(choices[lengths > depth + 1]))
        levels.append(level)
        after = np.full(len(level.tokens), -1, np.int64)
        after[level.continued] = np.arange(len(level.continued))
        nodes = after[level.choices]
        yield None
    return levels


def tree_is_cheaper(levels: list[TreeLevel], num_contexts: int, lengths: TokenIds) -> bool:
    """True if reading prefixes by level costs less than texts side by side."""
    num_prefixes = num_contexts + sum(len(level.continued) for level in levels)
    return _is_cheaper(num_prefixes, len(levels), lengths)


def may_be_cheaper(contexts: Int64s, tokens: TokenIds, lengths: TokenIds) -> bool:
    """True if a tree may be cheaper, by a bound: the longest text after each first token.

    Args:
        contexts: index of each text's context [N].
        tokens: ids [N, T].
        lengths: lengths of the texts [N].
    """
    starts, start_of = np.unique(contexts * (int(tokens[:, 0].max()) + 1) + tokens[:, 0], return_inverse=True)
    longest = np.zeros(len(starts), np.int64)
    np.maximum.at(longest, start_of, lengths)
    return _is_cheaper(int(np.maximum(longest - 1, 0).sum()), int(lengths.max()), lengths)


def _is_cheaper(num_prefixes: int, num_levels: int, lengths: TokenIds) -> bool:
    return bool(PREFIX_COST * num_prefixes + LEVEL_COST * num_levels <= lengths.sum())


def score_tree(
    model: LanguageModel,
    state: Any,
    levels: list[TreeLevel],
    shape: tuple[int, ...],
    *,
    exact: bool = False,
) -> Work[Any, FloatArray]:
    """Score texts [N, T] by levels, in natural logarithms; 0 past a text's length.

    Args:
        model: any model; a `ChoiceScorer` gains most.
        state: state after each context [K].
        levels: levels of the texts.
        shape: N and T.
        exact: see `score_ragged_texts`.
    """
    size = max(1, MAX_STATE_ENTRIES // len(model.vocabulary)) if exact else MAX_TREE_ROWS
    scores = np.zeros(shape, np.float32)
    pending: list[_PendingChoices] = []
    for depth, level in enumerate(levels):
        pending.append(_PendingChoices(depth, state, level.rows, level.tokens, level.choices))
        while sum(len(choices.state) for choices in pending) >= size:
            pending = yield from _score_pending(model, pending, scores, size, exact=exact)
        if level.continued.size:
            parents, read = level.rows[level.continued], level.tokens[level.continued]
            state = yield from _advance_rows(model, state, parents, read)
    while pending:
        pending = yield from _score_pending(model, pending, scores, size, exact=exact)
    return scores


class _PendingChoices(NamedTuple):
    """Unscored choices of a level, after the prefixes of a state; see `TreeLevel` for the arrays."""

    depth: int
    state: Any
    rows: Int64s
    tokens: TokenIds
    choices: Int64s

    def split(self, count: int) -> "tuple[_PendingChoices, _PendingChoices | None]":
        """Split into choices after the first `count` prefixes and the rest."""
        if count >= len(self.state):
            return self, None
        cut = int(np.searchsorted(self.rows, count))
        first = self._replace(
            state=self.state.select(np.arange(count)),
            rows=self.rows[:cut],
            tokens=self.tokens[:cut],
            choices=np.where(self.choices < cut, self.choices, -1),
        )
        rest = self._replace(
            state=self.state.select(np.arange(count, len(self.state))),
            rows=self.rows[cut:] - count,
            tokens=self.tokens[cut:],
            choices=self.choices - cut,
        )
        return first, rest


def _advance_rows(model: LanguageModel, state: Any, rows: Int64s, tokens: TokenIds) -> Work[Any, Any]:
    """Advance rows by one token each, in calls of bounded size."""
    parts = []
    for first in range(0, len(rows), MAX_TREE_ROWS):
        block = slice(first, first + MAX_TREE_ROWS)
        read = tokens[block, None]
        before = state.select(rows[block])
        result = yield from Read(model, before, read, np.ones(len(read), np.int64), STATE)
        parts.append(result.state)
    return parts[0] if len(parts) == 1 else join_states(parts)


def _score_pending(
    model: LanguageModel,
    pending: list[_PendingChoices],
    scores: FloatArray,
    capacity: int,
    *,
    exact: bool,
) -> Work[Any, list[_PendingChoices]]:
    """Score at most `capacity` pending prefixes; return the rest."""
    batch: list[_PendingChoices] = []
    rest = list(pending)
    while rest and capacity:
        part, remainder = rest.pop(0).split(capacity)
        batch.append(part)
        capacity -= len(part.state)
        if remainder is not None:
            rest.insert(0, remainder)
    firsts = np.cumsum([0, *(len(part.state) for part in batch)])  # first row of each part
    state = batch[0].state if len(batch) == 1 else join_states([part.state for part in batch])
    rows = np.concatenate([part.rows + first for part, first in zip(batch, firsts, strict=False)])
    tokens = np.concatenate([part.tokens for part in batch])
    if exact:
        log_probs = (yield from Predict(model, state))[rows, tokens]
    else:
        log_probs = yield from ScoreChoices(model, state, rows, tokens)
    begin = 0
    for part in batch:
        texts = np.flatnonzero(part.choices >= 0)
        scores[texts, part.depth] = log_probs[begin + part.choices[texts]]
        begin += len(part.tokens)
    return rest


def score_ragged_texts(
    loaded: TextModel,
    texts: RaggedTexts,
    list_of: Int64s | None = None,
    *,
    bos: bool,
    starts: Sequence[TextState] = (),
    normalised: bool = True,
    exact: bool = False,
) -> Work[Any, FloatArray]:
    """Score each text given its context or start state.

    Contexts are read once. Texts of a list, which often share prefixes, are read
    side by side, and shared prefixes once if that saves work.

    Args:
        loaded: model.
        texts: the texts.
        list_of: each text's list, ascending [U]; None if each text is a list.
        bos: true if `<s>` precedes the contexts.
        starts: the model's stored states, for texts without a context.
        normalised: False for logits instead of log-probabilities.
        exact: True for the values of distributions, from which float32 networks'
            scores differ by rounding.

    Returns:
        Natural-log probabilities of all ids [T].
    """
    lengths = texts.offsets[1:] - texts.offsets[:-1]
    ragged = (
        supports(loaded.model, RaggedScorer) and normalised and lengths.max(initial=0) <= MAX_LOOKUP_TOKENS
    )
    order = np.arange(len(lengths)) if ragged else _lists_by_length(lengths, list_of)
    out = np.zeros(len(texts.ids), np.float32)
    for run in runs_by_cost(_new_ragged_context_lengths(texts, order), MAX_GROUP_TOKENS):
        rows = order[run]
        used, numbers = _distinct(texts.context_of[rows])
        states = yield from _context_states(loaded, texts, used, starts, bos=bos)
        if ragged:
            yield from _score_by_lookup(loaded, texts, rows, states, numbers, out)
        else:
            for chunk in _padded_runs(lengths[rows].tolist(), MAX_TREE_TOKENS):
                tokens, widths, positions = _pad_rows(texts, rows[chunk])
                if not positions.size:  # empty texts without `</s>`
                    continue
                shared, contexts = _distinct(numbers[chunk])
                scored = yield from _score_padded(
                    loaded.model,
                    states.select(shared),
                    contexts,
                    tokens,
                    widths,
                    normalised=normalised,
                    exact=exact,
                )
                within = positions >= 0
                out[positions[within]] = scored[within]
    return out


def _distinct(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Return distinct numbers in ascending order, and each number's index among them."""
    if not numbers.any():  # the common case, several times as fast
        return np.zeros(1, np.int64), numbers
    used, indices = np.unique(numbers, return_inverse=True)
    return used, indices


def _lists_by_length(lengths: Int64s, list_of: Int64s | None) -> Int64s:
    """Order texts by list, lists with short texts first."""
    if list_of is None:
        return np.argsort(lengths, kind="stable")
    starts = np.flatnonzero(np.diff(list_of, prepend=-1))
    longest = np.maximum.reduceat(lengths, starts)  # in each list
    of_list = np.repeat(longest, np.diff(starts, append=len(lengths)))
    return np.argsort(of_list, kind="stable")


def _new_ragged_context_lengths(texts: RaggedTexts, order: Int64s) -> list[int]:
    """Return each text's context length, in an order; 0 after an earlier equal context."""
    if not any(map(len, texts.contexts)):
        return [0] * len(order)
    fresh = np.zeros(len(order), np.int64)
    contexts, first = np.unique(texts.context_of[order], return_index=True)
    known = len(texts.contexts)
    fresh[first] = [len(texts.contexts[i]) if i < known else 0 for i in contexts]
    return fresh.tolist()


def _context_states(
    loaded: TextModel, texts: RaggedTexts, used: Int64s, starts: Sequence[TextState], *, bos: bool
) -> Work[Any, Any]:
    """Compute states after contexts and append stored ones, one row each."""
    known = len(texts.contexts)
    stored = [starts[i - known].state for i in used if i >= known]
    contexts = [texts.contexts[i] for i in used if i < known]
    if not contexts:
        return join_states(stored)
    states = yield from prefill(loaded, contexts, bos=bos)
    return join_states([states, *stored]) if stored else states


def _score_by_lookup(
    loaded: TextModel, texts: RaggedTexts, rows: Int64s, states: Any, numbers: Int64s, out: FloatArray
) -> Work[Any, None]:
    """Score consecutive texts by lookup, in calls of bounded size."""
    first, last = int(rows[0]), int(rows[-1]) + 1
    begin = first
    while begin < last:
        limit = texts.offsets[begin] + MAX_LOOKUP_TOKENS
        end = max(int(np.searchsorted(texts.offsets, limit, side="right")) - 1, begin + 1)
        end = min(end, last)
        offsets = texts.offsets[begin : end + 1]
        cut = slice(int(offsets[0]), int(offsets[-1]))
        state = states.select(numbers[begin - first : end - first])
        out[cut] = yield from ScoreRagged(loaded.model, state, texts.ids[cut], offsets - offsets[0])
        begin = end


def _score_padded(
    model: LanguageModel,
    state: Any,
    contexts: Int64s,
    tokens: TokenIds,
    lengths: TokenIds,
    *,
    normalised: bool,
    exact: bool,
) -> Work[Any, FloatArray]:
    """Score texts [N, T] after contexts [N] of K, shared prefixes once if that saves work or `exact`."""
    may_save = normalised and len(lengths) > 1 and not is_lookup(model)
    if exact or (may_save and may_be_cheaper(contexts, tokens, lengths)):
        levels = yield from build_tree(contexts, tokens, lengths)
        if exact or tree_is_cheaper(levels, len(state), lengths):
            return (yield from score_tree(model, state, levels, tokens.shape, exact=exact))
    scores = np.zeros(tokens.shape, np.float32)
    for chunk in chunks_by_length(lengths):
        width = int(lengths[chunk].max())
        before = state.select(contexts[chunk])
        result = yield from Read(
            model, before, tokens[chunk, :width], lengths[chunk], Want(scores=True, normalised=normalised)
        )
        scores[chunk, :width] = result.log_probs
    return scores


def _pad_rows(texts: RaggedTexts, rows: Int64s) -> tuple[TokenIds, TokenIds, Int64s]:
    """Pad texts' ids [R, T]; also return lengths [R] and positions in all ids, −1 past the end [R, T]."""
    starts = texts.offsets[rows]
    lengths = texts.offsets[rows + 1] - starts
    steps = np.arange(int(lengths.max(initial=0)))  # [T]
    positions = np.where(steps < lengths[:, None], starts[:, None] + steps, -1)
    tokens = np.where(positions >= 0, texts.ids[np.maximum(positions, 0)], EOS)
    return tokens, lengths, positions
