"""Prompts and the continuations being generated: tokens, emitted text and finish reasons."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Rank, Read, Work, join_states
from models.completion.prefix import take_back
from models.decoding.parameters import DecodingParameters
from models.decoding.rules import StopStrings, TokenBias
from models.decoding.top_k import TokenChoice, top_of_rows
from models.errors import UnsupportedError
from models.language_model import (
    SCORES,
    LanguageModel,
    TopKPredictor,
    TopTokens,
    Want,
    pad_sequences,
    supports,
)
from models.scoring.constants import BLOCK_ENTRIES, MAX_CHOICE_ENTRIES, MAX_CHOICE_ROWS
from models.scoring.sequences import chunks_by_length, prefill
from models.text_model import Limits, TextModel, TextOrIds, encode_within
from models.tokenizers import Detokenizer

T = TypeVar("T")
STOP, LENGTH = "stop", "length"

GeneratedToken: TypeAlias = tuple[int, float, TopTokens | None]
"""Id of a token; its finite natural log-probability by the model alone, before bias, penalties and temperature; and
the most probable tokens there by the model alone (log-probabilities may be -inf), None unless requested."""

PromptScores: TypeAlias = tuple[FloatArray, TopTokens]
"""Natural-log probability of each token of a prompt given the earlier tokens [T], and the most probable tokens at
each position [T, k], k possibly 0; the first values are meaningless."""


class Piece(NamedTuple):
    """One step's addition to a choice: a token, its end, or both; `</s>` is part of the end.

    Attributes:
        choice: number of the continuation, `prompt * n + j`.
        text: text made final by the token; may be empty.
        token: the token; None with `</s>`.
        end: the complete continuation if this piece ends it.
    """

    choice: int
    text: str
    token: GeneratedToken | None
    end: "Continuation | None"


Emit: TypeAlias = Callable[[Sequence[Piece]], Iterable[Any]]
"""Build the events of a step's pieces."""


class Prompt(NamedTuple):
    """A prompt to continue.

    Attributes:
        number: index of the prompt in the request.
        ids: token ids [T].
        bos: true if `<s>` precedes the tokens.
        continues: true if text precedes the continuation or the text taken back.
        taken: end of the prompt not in `ids`, to be spelled by the first tokens (token healing).
    """

    number: int
    ids: TokenIds
    bos: bool
    continues: bool
    taken: bytes = b""


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """Decoding settings, common to all prompts.

    Attributes:
        loaded: model.
        parameters: decoding parameters, with a seed.
        biases: biases of tokens, for sequences that must not or should be generated.
        top: tokens to report at each position.
        emit: builds the events of one step's pieces; None for no events.
    """

    loaded: TextModel
    parameters: DecodingParameters
    biases: TokenBias
    top: TokenChoice
    emit: Emit | None

    @property
    def stops(self) -> Sequence[str]:
        """Stop strings in the Unicode form and case of the model."""
        return self.loaded.tokenizer.normaliser.all(self.parameters.stop)

    def parts(self, items: Sequence[T], rows: int) -> Iterator[Sequence[T]]:
        """Split items of `rows` rows each into parts decoded together, to bound memory."""
        max_rows = min(MAX_CHOICE_ROWS, MAX_CHOICE_ENTRIES // self.loaded.vocab_size)
        size = max(1, max_rows // rows)
        for first in range(0, len(items), size):
            yield items[first : first + size]


@dataclass(slots=True)
class Continuation:
    """A continuation, built token by token.

    Attributes:
        task: settings of decoding.
        prompt: the prompt that it continues.
        choice: number of the continuation, `prompt * n + j`.
        text: text before a stop string.
        rest: end of `text` buffered until the end, in no token's piece.
        token_ids: all generated tokens but `</s>`, with those cut off by a stop string.
        logprobs: natural-log probability of each token by the model alone.
        tops: most probable tokens at each position; empty unless requested.
        finish_reason: `stop` at `</s>` or a stop string, `length` at `max_tokens`.
        eos_logprob: likewise of the final `</s>`; None without it.
        eos_top: most probable tokens at its position, if requested.
        score: ranking score, higher first: with beams the sum of token scores over
            length ** length_penalty, else the mean of `logprobs`, both with `</s>`.
    """

    task: DecodeTask = field(repr=False, compare=False)
    prompt: Prompt = field(repr=False, compare=False)
    choice: int
    text: str = ""
    rest: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[TopTokens] = field(default_factory=list)
    finish_reason: str = LENGTH
    eos_logprob: float | None = None
    eos_top: TopTokens | None = None
    score: float = 0.0
    _stops: StopStrings = field(init=False, repr=False, compare=False)
    _detokenizer: Detokenizer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._stops = StopStrings(self.task.stops)
        skip = len(self.prompt.taken)
        continues = self.prompt.continues or skip > 0
        self._detokenizer = Detokenizer(self.task.loaded.tokenizer, continues=continues, skip=skip)

    @property
    def ended_by_eos(self) -> bool:
        """True if the model ended it with `</s>`."""
        return self.eos_logprob is not None

    @property
    def full(self) -> bool:
        """True at a stop string or `max_tokens` tokens."""
        return self._stops.stopped or len(self.token_ids) == self.task.parameters.max_tokens

    def push(self, tokens: Sequence[int], logprobs: Sequence[float], tops: Sequence[TopTokens]) -> str:
        """Add tokens; return the text that they make final.

        Args:
            tokens: ids [T]; T is 1 if there are stop strings.
            logprobs: log-probability of each by the model alone [T].
            tops: most probable tokens at each position [T]; empty unless requested.
        """
        self.token_ids += tokens
        self.logprobs += logprobs
        self.tops += tops
        text = self._stops.push(self._detokenizer.push(*tokens))
        self.text += text
        return text

    def end(self, eos: GeneratedToken | None = None) -> Self:
        """Finish at `</s>`, else at a stop string, at `max_tokens`, or without a possible token."""
        log_probs = list(self.logprobs)
        if eos is not None:
            _, self.eos_logprob, self.eos_top = eos
            log_probs.append(self.eos_logprob)
        if not self._stops.stopped:
            self.rest = self._stops.push(self._detokenizer.flush()) + self._stops.flush()
            self.text += self.rest
        is_full = len(self.token_ids) == self.task.parameters.max_tokens
        if eos is not None or self._stops.stopped or not is_full:
            self.finish_reason = STOP
        self.score = sum(log_probs) / len(log_probs) if log_probs else 0.0
        return self


def encode_prompt(
    loaded: TextModel, number: int, given: TextOrIds, limits: Limits, *, param: str, healing: bool
) -> Prompt:
    """Tokenise a prompt that follows `<s>`, or check its ids.

    Args:
        loaded: model.
        number: index of the prompt in the request.
        given: the prompt.
        limits: of one request.
        param: name of the prompt in the request, for messages.
        healing: true to take back the tokens of the prompt's last word.

    Raises:
        InputError: an id is outside the vocabulary.
        ContextLengthError: there are too many tokens.
        UnsupportedError: a prompt of token ids is to be healed.
    """
    ids = encode_within(loaded, given, limits, param=param)
    if healing and not isinstance(given, str):
        raise UnsupportedError(
            f"{param} is a list of token ids; token_healing requires a string", param="token_healing"
        )
    if healing and isinstance(given, str) and given:
        kept, taken = take_back(loaded.tokenizer, loaded.token_trie, given)
        if taken:
            kept_ids = np.array(kept, np.int64)
            return Prompt(number, kept_ids, bos=True, continues=len(kept) > 0, taken=taken)
    continues = len(ids) > 0 and not (isinstance(given, str) and given[-1].isspace())
    return Prompt(number, ids, bos=True, continues=continues)


def distinct_prompts(prompts: Sequence[Prompt]) -> tuple[list[Prompt], list[int]]:
    """Return the distinct prompts, and each prompt's index among them."""
    index_of: dict[tuple[bool, bytes], int] = {}
    indices = [index_of.setdefault((one.bos, one.ids.tobytes()), len(index_of)) for one in prompts]
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
    return join_states(states).select(np.argsort(order)[rows]).materialized


def score_prompt_tokens(
    model: LanguageModel, prompts: Sequence[Prompt], *, top: int
) -> Work[Any, list[PromptScores]]:
    """Score all tokens of prompts but the first of each.

    Args:
        model: any model.
        prompts: nonempty prompts; equal ones are read once.
        top: most probable tokens to find at each position; 0 scores each sequence in one call.
    """
    distinct, rows = distinct_prompts(prompts)
    scores_of_row = {}
    for chunk in chunks_by_length(np.array([len(prompt.ids) for prompt in distinct], np.int64)):
        tokens, lengths = pad_sequences([distinct[row].ids for row in chunk])
        both = join_states([model.initial_state(1), model.empty_state(1)])
        state: Any = both.select(np.array([not distinct[row].bos for row in chunk], np.int64))
        top_shape = (*tokens.shape, min(top, len(model.vocabulary)))
        tops = TopTokens(np.zeros(top_shape, np.int64), np.zeros(top_shape, np.float32))
        if top:
            log_probs = np.zeros(tokens.shape, np.float32)
            yield from _score_with_top(model, state, tokens, lengths, log_probs, tops)
        else:
            log_probs = (yield from Read(model, state, tokens, lengths, SCORES)).log_probs
        for place, (row, length) in enumerate(zip(chunk.tolist(), lengths.tolist(), strict=True)):
            own = place, slice(length)
            scores_of_row[row] = log_probs[own], TopTokens(tops.ids[own], tops.log_probs[own])
    return [scores_of_row[row] for row in rows]


def _score_with_top(
    model: LanguageModel,
    state: Any,
    tokens: TokenIds,
    lengths: TokenIds,
    log_probs: FloatArray,
    tops: TopTokens,
) -> Work[Any, None]:
    """Fill in log-probabilities [B, T] and the most probable tokens [B, T, k].

    The texts are read a few columns at a time: all distributions of a long prompt would fill the memory.
    """
    k = tops.ids.shape[2]
    ranks = supports(model, TopKPredictor)
    limit = max(BLOCK_ENTRIES // len(model.vocabulary), 1)
    width = max(limit // len(tokens), 1)
    for start in range(0, tokens.shape[1], width):
        read = tokens[:, start : start + width]
        counts = np.clip(lengths - start, 0, width)
        want = Want(scores=ranks, state=start + width < tokens.shape[1], before=True)
        result = yield from Read(model, state, read, counts, want)
        state = result.state
        row, column = np.nonzero(np.arange(read.shape[1]) < counts[:, None])
        scored = np.flatnonzero(column + start)  # all but the first column of the texts
        for first in range(0, len(scored), limit):
            block = scored[first : first + limit]
            at = row[block], column[block] + start
            before = result.before.select(block)
            if ranks:
                log_probs[at] = result.log_probs[row[block], column[block]]
                best = yield from Rank(model, before, k)
            else:
                distributions = yield from Predict(model, before)
                log_probs[at] = distributions[np.arange(len(distributions)), tokens[at]]
                best = top_of_rows(distributions, k)
            tops.ids[at] = best.ids
            tops.log_probs[at] = best.log_probs
