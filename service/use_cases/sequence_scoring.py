"""Scoring of many texts in bounded chunks; prefixes common to several texts are read once.

The texts are a prefix tree of tokens. `score_tree` reads it level by level, where a prefix of each
length is one row of a state, and scores next tokens when enough rows are pending, since products of
many rows are the cheapest. It is chosen when its estimated cost is lower than that of reading all
texts side by side (costs measured on small int8 mixtures and on a float32 LSTM of 2x512).

`score_shared_prefixes` serves models without a `ChoiceScorer`: levels are read as long as texts
share most of their prefixes, the remainder of each text as usual. Lookup models score without
padding.
"""

from collections.abc import Sequence
from collections.abc import Sequence as Seq
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.language_model import (
    ChoiceScorer,
    LanguageModel,
    RaggedScorer,
    pad_sequences,
    score_sequences,
    supports,
)
from models.vocabulary import EOS
from service.engine.batching import concatenate_states
from service.engine.calls import consume, read, score, score_choices, score_ragged
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.engine.prefill import Scorer
from service.engine.state_store import StoredState
from service.use_cases.candidate_texts import RaggedTexts
from service.use_cases.inputs import EncodedText
from service.use_cases.prefill import chunks_by_length, context_groups, prefill

_MAX_PREFIX_RATIO = 0.75
"""Beginnings for each text of a level from which on the level is not worth being one: a level costs a turn."""

_MIN_SAVED_SHARE = 0.15
"""The share of all tokens that the tree must spare."""

Indices = npt.NDArray[np.int64]


class PrefixLevel(NamedTuple):
    """The beginnings of one length.

    Attributes:
        nodes: of each of N texts, its beginning; −1 where the text is shorter.
        parents: of each of K beginnings, the one a token shorter.
        tokens: of each, its last token [K].
    """

    nodes: Indices
    parents: Indices
    tokens: TokenIds


def shared_prefix_levels(contexts: Indices, tokens: TokenIds, lengths: TokenIds) -> list[PrefixLevel]:
    """The levels that texts share, the first of the contexts; none if walking them is not worth it.

    Args:
        contexts: which context stands before each text [N]; below C, and each is there.
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    levels = [PrefixLevel(contexts, np.zeros(0, np.int64), np.zeros(0, np.int64))]
    spared = 0
    for depth in range(tokens.shape[1]):
        level = _next_prefix_level(levels[-1].nodes, tokens[:, depth], lengths > depth)
        alive = int(np.count_nonzero(lengths > depth))
        if len(level.tokens) > _MAX_PREFIX_RATIO * alive:
            break
        spared += alive - len(level.tokens)
        levels.append(level)
    return levels if spared > _MIN_SAVED_SHARE * lengths.sum() else []


def score_shared_prefixes(
    model: LanguageModel[Any], state: Any, levels: list[PrefixLevel], tokens: TokenIds, lengths: TokenIds
) -> Work[Any, FloatArray]:
    """Natural-log probabilities [N, T] of texts; 0 past a text's length.

    Args:
        model: any.
        state: after each context [C].
        levels: of the texts; at least two.
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    scores = np.zeros(tokens.shape, dtype=np.float32)
    for depth, level in enumerate(levels[1:]):
        ones = np.ones(len(level.tokens), dtype=np.int64)
        scored, state = yield from read(model, state.select(level.parents), level.tokens[:, None], ones)
        rows = np.flatnonzero(level.nodes >= 0)
        scores[rows, depth] = scored[level.nodes[rows], 0]
    depth = len(levels) - 1
    rows = np.flatnonzero(lengths > depth)
    if rows.size:
        rest = state.select(levels[-1].nodes[rows])
        scores[rows, depth:] = yield from score(model, rest, tokens[rows, depth:], lengths[rows] - depth)
    return scores


def _next_prefix_level(nodes: Indices, tokens: TokenIds, reached: npt.NDArray[np.bool_]) -> PrefixLevel:
    """The beginnings that are longer by one of the tokens [N], of the texts that are long enough."""
    rows = np.flatnonzero(reached)
    width = int(tokens.max()) + 1
    pairs, places = np.unique(nodes[rows] * width + tokens[rows], return_inverse=True)
    after = np.full(len(nodes), -1, dtype=np.int64)
    after[rows] = places
    return PrefixLevel(after, pairs // width, pairs % width)


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


MAX_TREE_ROWS = 256
"""Beginnings whose next tokens are scored together, and which are read together."""

_PREFIX_COST, _LEVEL_COST = 1.75, 12
"""What a beginning, and a level, cost that is read by itself: as much as so many tokens of texts read side by side.

Measured of small int8 mixtures (1.9, 21) and of a float32 LSTM of 2x512 (1.6, 4).
"""


class TreeLevel(NamedTuple):
    """What follows the beginnings of one length.

    Attributes:
        rows: of each choice, the beginning that it follows, never falling [C].
        tokens: of each choice [C].
        choices: of each text, its choice; −1 where it has ended [N].
        continued: choices that something follows, which are the beginnings of the next level.
    """

    rows: Indices
    tokens: TokenIds
    choices: Indices
    continued: Indices


def build_tree(contexts: Indices, tokens: TokenIds, lengths: TokenIds) -> Work[Any, list[TreeLevel]]:
    """The levels of texts, as many as the longest has tokens. A use case.

    Args:
        contexts: which context stands before each text [N].
        tokens: ids [N, T].
        lengths: of the texts [N].
    """
    levels: list[TreeLevel] = []
    nodes = contexts
    for depth in range(int(lengths.max(initial=0))):
        level = _next_tree_level(nodes, tokens[:, depth], lengths - depth)
        levels.append(level)
        after = np.full(len(level.tokens), -1, dtype=np.int64)
        after[level.continued] = np.arange(len(level.continued))
        nodes = after[level.choices]
        yield None
    return levels


def tree_is_cheaper(levels: list[TreeLevel], num_contexts: int, lengths: TokenIds) -> bool:
    """Whether reading beginnings once, level by level, costs less than reading all texts side by side."""
    beginnings = num_contexts + sum(len(level.continued) for level in levels)
    return bool(_PREFIX_COST * beginnings + _LEVEL_COST * len(levels) <= lengths.sum())


def score_tree(
    model: LanguageModel[Any], state: Any, levels: list[TreeLevel], shape: tuple[int, ...]
) -> Work[Any, FloatArray]:
    """Natural-log probabilities [N, T] of texts; 0 past a text's length. A use case.

    Args:
        model: any; it gains most where it is a `ChoiceScorer`.
        state: after each context [K].
        levels: of the texts.
        shape: N and T.
    """
    scores = np.zeros(shape, dtype=np.float32)
    waiting: list[_PendingChoices] = []
    for depth, level in enumerate(levels):
        waiting.append(_PendingChoices(depth, state, level.rows, level.tokens, level.choices))
        while sum(len(some.state) for some in waiting) >= MAX_TREE_ROWS:
            waiting = yield from _score_pending(model, waiting, scores)
        if level.continued.size:
            parents, read = level.rows[level.continued], level.tokens[level.continued]
            state = yield from _advance_rows(model, state, parents, read)
    while waiting:
        waiting = yield from _score_pending(model, waiting, scores)
    return scores


class _PendingChoices(NamedTuple):
    """Choices of one level that are still to be scored.

    Attributes:
        depth: of the level.
        state: the beginnings.
        rows: of each choice.
        tokens: of each choice.
        choices: of each text; negative where it has none of these.
    """

    depth: int
    state: Any
    rows: Indices
    tokens: TokenIds
    choices: Indices

    def split(self, count: int) -> "tuple[_PendingChoices, _PendingChoices | None]":
        """The choices after the first so many beginnings, and the others."""
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


def _next_tree_level(nodes: Indices, tokens: TokenIds, left: TokenIds) -> TreeLevel:
    """The choices after the beginnings that texts have come to [N].

    Args:
        nodes: the beginning of each text; any where none is left.
        tokens: that come next [N].
        left: how many tokens each text has left, the next included.
    """
    alive = np.flatnonzero(left > 0)
    width = int(tokens.max()) + 1
    pairs, places = np.unique(nodes[alive] * width + tokens[alive], return_inverse=True)
    choices = np.full(len(nodes), -1, dtype=np.int64)
    choices[alive] = places
    return TreeLevel(pairs // width, pairs % width, choices, np.unique(choices[left > 1]))


def _advance_rows(model: LanguageModel[Any], state: Any, rows: Indices, tokens: TokenIds) -> Work[Any, Any]:
    """The state after one token each, a bounded number of rows at a time."""
    parts = []
    for first in range(0, len(rows), MAX_TREE_ROWS):
        some = slice(first, first + MAX_TREE_ROWS)
        read = tokens[some, None]
        parts.append(
            (yield from consume(model, state.select(rows[some]), read, np.ones(len(read), np.int64)))
        )
    return parts[0] if len(parts) == 1 else concatenate_states(parts)


def _score_pending(
    model: LanguageModel[Any], waiting: list[_PendingChoices], scores: FloatArray
) -> Work[Any, list[_PendingChoices]]:
    """Score what follows the first beginnings that wait; what waits then."""
    taken: list[_PendingChoices] = []
    room, left = MAX_TREE_ROWS, list(waiting)
    while left and room:
        some, rest = left.pop(0).split(room)
        taken.append(some)
        room -= len(some.state)
        if rest is not None:
            left.insert(0, rest)
    firsts = np.cumsum([0, *(len(some.state) for some in taken)])
    state = taken[0].state if len(taken) == 1 else concatenate_states([some.state for some in taken])
    rows = np.concatenate([some.rows + first for some, first in zip(taken, firsts, strict=False)])
    told = yield from score_choices(model, state, rows, np.concatenate([some.tokens for some in taken]))
    begin = 0
    for some in taken:
        texts = np.flatnonzero(some.choices >= 0)
        scores[texts, some.depth] = told[begin + some.choices[texts]]
        begin += len(some.tokens)
    return left


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
