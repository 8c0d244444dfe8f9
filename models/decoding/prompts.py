"""Prompts to continue: tokenised, read once if equal, and their own tokens scored."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Read, Work
from models.completion.prefix import take_back
from models.decoding.top_k import top_tokens_of_rows
from models.errors import UnsupportedParameterError
from models.language_model import SCORES, STATE, LanguageModel, TopTokens, pad_sequences
from models.scoring.constants import BLOCK_ENTRIES
from models.scoring.prefill import chunks_by_length, prefill
from models.scoring.texts import Limits, TextOrIds, encode_within
from models.states import concatenate_states, materialize
from models.text_model import TextModel

PromptScores: TypeAlias = tuple[FloatArray, TopTokens]
"""Natural-log probability of each token of a prompt given the preceding tokens [T], and the most probable tokens at
each position [T, k], k possibly 0; the first values are meaningless."""


class Prompt(NamedTuple):
    """A prompt to continue.

    Attributes:
        number: index of the prompt in the request.
        ids: token ids [T].
        bos: true if `<s>` precedes the tokens.
        continues: true if text precedes the continuation or the text taken back.
        taken: end of the prompt not in `ids`; the first tokens must spell it again (token healing).
    """

    number: int
    ids: TokenIds
    bos: bool
    continues: bool
    taken: bytes = b""


def encode_prompt(
    loaded: TextModel, number: int, given: TextOrIds, limits: Limits, *, parameter: str, healing: bool
) -> Prompt:
    """Tokenise a prompt that follows `<s>`, or check its ids.

    Args:
        loaded: model.
        number: index of the prompt in the request.
        given: the prompt.
        limits: of one request.
        parameter: name of the prompt in the request, for messages.
        healing: true to take back the tokens of the prompt's last word.

    Raises:
        InvalidInputError: an id is outside the vocabulary.
        ContextLengthError: there are too many tokens.
        UnsupportedParameterError: a prompt of token ids is to be healed.
    """
    ids = encode_within(loaded, given, limits, parameter=parameter)
    if healing and not isinstance(given, str):
        raise UnsupportedParameterError(
            f"{parameter} is a list of token ids; token_healing requires a string", parameter="token_healing"
        )
    if healing and isinstance(given, str) and given:
        kept, taken = take_back(loaded.tokenizer, loaded.token_trie, given)
        if taken:
            kept_ids = np.array(kept, dtype=np.int64)
            return Prompt(number, kept_ids, bos=True, continues=len(kept) > 0, taken=taken)
    continues = len(ids) > 0 and not (isinstance(given, str) and given[-1].isspace())
    return Prompt(number, ids, bos=True, continues=continues)


def distinct_prompts(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[int]]:
    """Return the distinct prompts, and each prompt's index among them."""
    index_of: dict[tuple[bool, bytes], int] = {}
    indices = [index_of.setdefault((prompt.bos, prompt.ids.tobytes()), len(index_of)) for prompt in prompts]
    return list(dict(zip(indices, prompts, strict=True)).values()), indices


def prefill_prompts(loaded: TextModel, prompts: Sequence[Prompt]) -> Work[Any, Any]:
    """Read the prompts of R rows, equal ones once.

    Returns:
        The state after each row's prompt [R].
    """
    distinct, rows = distinct_prompts(prompts)
    order = sorted(range(len(distinct)), key=lambda index: distinct[index].bos)
    states = []
    for bos in (False, True):
        contexts = [distinct[index].ids for index in order if distinct[index].bos == bos]
        if contexts:
            states.append((yield from prefill(loaded, contexts, bos=bos)))
    state = states[0] if len(states) == 1 else concatenate_states(states)
    selected = np.argsort(order)[rows]
    return materialize(state if selected.tolist() == list(range(len(distinct))) else state.select(selected))


def score_prompt_tokens(
    model: LanguageModel[Any], prompts: Sequence[Prompt], *, top: int
) -> Work[Any, list[PromptScores]]:
    """Score all tokens of prompts but the first of each.

    Args:
        model: any model.
        prompts: nonempty prompts; equal ones are read once.
        top: most probable tokens to find at each position; 0 scores each sequence in one call.
    """
    distinct, rows = distinct_prompts(prompts)
    scores_of_row: dict[int, PromptScores] = {}
    for chunk in chunks_by_length(np.array([len(prompt.ids) for prompt in distinct], dtype=np.int64)):
        scores = yield from _score_chunk(model, [distinct[row] for row in chunk], top)
        scores_of_row.update(zip(chunk.tolist(), scores, strict=True))
    return [scores_of_row[row] for row in rows]


def _score_chunk(
    model: LanguageModel[Any], prompts: Sequence[Prompt], top: int
) -> Work[Any, list[PromptScores]]:
    """Score tokens of prompts [B, T]; find the most probable at each position if `top` is not 0."""
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    both = concatenate_states([model.initial_state(1), model.empty_state(1)])
    state: Any = both.select(np.array([0 if prompt.bos else 1 for prompt in prompts], dtype=np.int64))
    top_shape = (*tokens.shape, min(top, len(model.vocabulary)))
    tops = TopTokens(np.zeros(top_shape, dtype=np.int64), np.zeros(top_shape, dtype=np.float32))
    if top:
        log_probs = np.zeros(tokens.shape, dtype=np.float32)
        yield from _score_with_top(model, state, tokens, lengths, log_probs, tops)
    else:
        result = yield from Read(model, state, tokens, lengths, SCORES)
        log_probs = result.log_probs
    return [
        (log_probs[row, :length], TopTokens(tops.ids[row, :length], tops.log_probs[row, :length]))
        for row, length in enumerate(lengths.tolist())
    ]


def _score_with_top(
    model: LanguageModel[Any],
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    log_probs: FloatArray,
    tops: TopTokens,
) -> Work[Any, None]:
    """Fill in log-probabilities of tokens [B, T] and the most probable tokens [B, T, k].

    All distributions of a long prompt would fill the memory. States are collected until their
    distributions fill a bounded block, and only a block's most probable tokens are kept.
    """
    pending: list[tuple[Any, TokenIds, int]] = []
    limit = max(BLOCK_ENTRIES // len(model.vocabulary), 1)
    rows, num_pending = np.arange(len(tokens)), 0
    for position in range(1, tokens.shape[1]):
        unfinished = lengths[rows] > position
        if not unfinished.all():
            rows, state = rows[unfinished], state.select(np.flatnonzero(unfinished))
        read = tokens[rows, position - 1 : position]
        state = (yield from Read(model, state, read, np.ones(len(rows), np.int64), STATE)).state
        pending.append((state, rows, position))
        num_pending += len(rows)
        if num_pending < limit and position + 1 < tokens.shape[1]:
            continue
        states = concatenate_states([state for state, _, _ in pending])
        row = np.concatenate([part for _, part, _ in pending])  # [N]
        column = np.repeat([at for _, _, at in pending], [len(part) for _, part, _ in pending])
        pending, num_pending = [], 0
        for first in range(0, len(row), limit):
            block = np.arange(first, min(first + limit, len(row)))
            row_of, column_of = row[block], column[block]
            distributions = yield from Predict(model, states.select(block))
            log_probs[row_of, column_of] = distributions[np.arange(len(block)), tokens[row_of, column_of]]
            best = top_tokens_of_rows(distributions, tops.ids.shape[2])
            tops.ids[row_of, column_of] = best.ids
            tops.log_probs[row_of, column_of] = best.log_probs
