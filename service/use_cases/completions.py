"""Completions as in OpenAI's API: prompts echoed, scored and continued, with token log-probabilities.

A text is read after `<s>`, which is not shown. Token ids are used exactly as given: if the first
is `<s>` the model starts there, else from its empty state. Hence the ids of `/tokenize` give the
same result as the text.

Distributions of all positions of a long prompt would fill the memory, as each has V numbers: states
are collected until their distributions fill a block of bounded size; only the most probable tokens
of a block are kept.

A token's name is the text it adds, its space included, so that joined names give the text apart
from the space that a tokenizer puts before the first word. A byte of a character is named `<0xE2>`;
names are unique within a vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.calls import Predict, Read
from models.decoding.parameters import DecodingParameters
from models.decoding.top_k import top_tokens_of_rows
from models.errors import InvalidInputError
from models.language_model import SCORES, STATE, LanguageModel, TopTokens, finite_logprob, pad_sequences
from models.reranking.candidates import map_in_steps
from models.tokenizers import Detokenizer
from models.vocabulary import BOS, CONTROL_TOKENS, EOS
from service.engine.batching import StateView, concatenate_states
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.choices import LENGTH, Continuation, TokenEvent
from service.use_cases.constants import BLOCK_ENTRIES, PROMPT_TOKENS_PER_STEP
from service.use_cases.generate import continue_prompts
from service.use_cases.inputs import (
    MAX_CHARACTERS_PER_TOKEN,
    Limits,
    TextOrIds,
    check_reads_forward,
    encode_within,
)
from service.use_cases.prefill import chunks_by_length


@dataclass(slots=True)
class TokenEntries:
    """Tokens of a text, in four lists of one length.

    Attributes:
        names: name of each token.
        logprobs: the model's own, natural and finite; None for a token without a context.
        tops: by name, the most probable tokens at its position and the token itself; None likewise.
        offsets: start of each token, in characters of the text.
    """

    names: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[dict[str, float] | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, after: "TokenEntries") -> "TokenEntries":
        """Concatenate two lists of entries."""
        return TokenEntries(
            self.names + after.names,
            self.logprobs + after.logprobs,
            self.tops + after.tops,
            self.offsets + after.offsets,
        )


class EntryBuilder:
    """Builder of the entries of one text's tokens, token by token.

    Args:
        loaded: the model.
        continues: whether text precedes the first token, so that its leading space is kept.
        offset: start of the first token.
        as_ids: whether token names are `token_id:7` instead of texts.
    """

    def __init__(
        self, loaded: LoadedModel, *, continues: bool, offset: int = 0, as_ids: bool = False
    ) -> None:
        self._loaded = loaded
        self._detokenizer = Detokenizer(loaded.tokenizer, continues=continues)
        self._offset = offset
        self._as_ids = as_ids

    def add(
        self, entries: TokenEntries, token: int, logprob: float | None, top: TopTokens | None = None
    ) -> None:
        """Append the next token.

        Args:
            entries: the entries to extend.
            token: its id.
            logprob: its log-probability; None for a token without a context.
            top: the most probable tokens at its position.
        """
        name = self.name(token)
        entries.names.append(name)
        entries.offsets.append(self._offset)
        self._offset += len(self._detokenizer.push(token))
        if logprob is None:
            entries.logprobs.append(None)
            entries.tops.append(None)
            return
        logprob = finite_logprob(logprob)
        entries.logprobs.append(logprob)
        entries.tops.append(self._by_name(top) | {name: logprob})  # the same number in both

    def name(self, token: int) -> str:
        """Return the name of a token."""
        if self._as_ids:
            return f"token_id:{token}"
        surface = self._loaded.token_texts[token]
        if token < len(CONTROL_TOKENS):
            return surface
        added = f" {surface}"
        return added if self._loaded.tokenizer.token_bytes[token] == added.encode() else surface

    def _by_name(self, top: TopTokens | None) -> dict[str, float]:
        if top is None:
            return {}
        pairs = zip(top.ids.tolist(), top.log_probs.tolist(), strict=True)
        return {self.name(token): finite_logprob(logprob) for token, logprob in pairs}


def generated_entries(
    builder: EntryBuilder,
    token_ids: Iterable[int],
    logprobs: Iterable[float],
    tops: Sequence[TopTokens],
) -> TokenEntries:
    """Build the entries of generated tokens; `tops` is empty if not requested."""
    entries = TokenEntries()
    for index, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        builder.add(entries, token, logprob, tops[index] if tops else None)
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCommand:
    """A valid request for completions.

    Attributes:
        prompts: each with its name in the request, for messages.
        parameters: decoding parameters; None to only echo the prompts.
        n: choices per prompt.
        echo: whether a choice begins with its prompt.
        logprobs: number of most probable tokens to report at each position; None for no log-probabilities
            at all.
        as_ids: whether token names are `token_id:7`.
        model: address; None for the default.
    """

    prompts: tuple[tuple[str, TextOrIds], ...]
    parameters: DecodingParameters | None
    n: int
    echo: bool
    logprobs: int | None
    as_ids: bool
    model: str | None


class ChoiceChunk(NamedTuple):
    """A choice, or as an event the next part of it.

    Attributes:
        choice: its number, prompt by prompt.
        text: added text.
        entries: entries of its tokens, if log-probabilities are requested.
        finish_reason: `stop` or `length`; None if the choice continues.
        num_generated: tokens generated for it, including `</s>`.
    """

    choice: int
    text: str
    entries: TokenEntries | None
    finish_reason: str | None
    num_generated: int


@dataclass(slots=True)
class EncodedPrompt:
    """A prompt, tokenised or with checked ids.

    Attributes:
        text: the text to echo.
        ids: the ids to show [T], possibly none.
        after_bos: whether the model reads `<s>` before them.
        continues: whether text precedes the continuation, whose first space is then kept.
        entries: of its tokens, once they are scored.
    """

    text: str
    ids: TokenIds
    after_bos: bool
    continues: bool
    entries: TokenEntries = field(default_factory=TokenEntries)

    @property
    def starts_with_bos(self) -> bool:
        """Return whether the first id is `<s>`, given by the caller as the start."""
        return not self.after_bos and len(self.ids) > 0 and self.ids[0] == BOS


class ChunkBuilder:
    """Builder of the parts of a request's choices.

    Args:
        loaded: the model.
        command: the request.
        prompts: its prompts.
    """

    def __init__(
        self, loaded: LoadedModel, command: CompletionCommand, prompts: Sequence[EncodedPrompt]
    ) -> None:
        self._loaded = loaded
        self._command = command
        self._prompts = prompts
        self._builders: dict[int, EntryBuilder] = {}

    def echo(self, choice: int, finish_reason: str | None) -> ChoiceChunk:
        """Build the part with the prompt of a choice."""
        prompt = self._prompt_of(choice)
        return ChoiceChunk(choice, prompt.text, self._if_requested(prompt.entries), finish_reason, 0)

    def token(self, event: TokenEvent) -> ChoiceChunk:
        """Build the part of one token."""
        return ChoiceChunk(event.choice, event.text, self._entries_of(event), None, 1)

    def last(self, event: TokenEvent | None, done: Continuation) -> ChoiceChunk:
        """Build the last part of a choice: its last token, if not sent yet, and its end."""
        entries = self._entries_of(event) if event is not None else self._if_requested(TokenEntries())
        if entries is not None:
            self._add_end(entries, done)
        text = (event.text if event is not None else "") + done.rest
        count = (event is not None) + done.ended_by_eos
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, count)

    def complete_choice(self, done: Continuation) -> ChoiceChunk:
        """Build a complete choice, with its prompt if requested."""
        prompt = self._prompt_of(done.choice)
        text, entries = done.text, None
        if self._command.logprobs is not None:
            builder = self._builder_of(done.choice)
            entries = generated_entries(builder, done.token_ids, done.logprobs, done.tops)
            self._add_end(entries, done)
        if self._command.echo:
            text = prompt.text + text
            entries = prompt.entries + entries if entries is not None else None
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, num_generated(done))

    def _prompt_of(self, choice: int) -> EncodedPrompt:
        return self._prompts[choice // self._command.n]

    def _if_requested(self, entries: TokenEntries) -> TokenEntries | None:
        return entries if self._command.logprobs is not None else None

    def _entries_of(self, event: TokenEvent) -> TokenEntries | None:
        if self._command.logprobs is None:
            return None
        tops = [event.top] if event.top is not None else []
        return generated_entries(self._builder_of(event.choice), [event.token_id], [event.logprob], tops)

    def _add_end(self, entries: TokenEntries, done: Continuation) -> None:
        """Add the entry of the `</s>` at the end of a choice: it was predicted like any other token."""
        if done.eos_logprob is not None:
            self._builder_of(done.choice).add(entries, EOS, done.eos_logprob, done.eos_top)

    def _builder_of(self, choice: int) -> EntryBuilder:
        builder = self._builders.get(choice)
        if builder is None:
            prompt = self._prompt_of(choice)
            offset = len(prompt.text) if self._command.echo else 0
            builder = self._builders[choice] = EntryBuilder(
                self._loaded, continues=prompt.continues, offset=offset, as_ids=self._command.as_ids
            )
        return builder


def num_generated(done: Continuation) -> int:
    """Count the tokens generated for a choice, `</s>` included."""
    return len(done.token_ids) + done.ended_by_eos


class PromptTokens(NamedTuple):
    """Tokens of a prompt to score.

    Attributes:
        ids: [T], at least one.
        after_bos: whether the model reads `<s>` before them, else it starts from its empty state.
    """

    ids: TokenIds
    after_bos: bool


class PromptScores(NamedTuple):
    """Scores of a prompt's tokens.

    Attributes:
        log_probs: natural-log probability of each token given those before it [T]; the first value is meaningless.
        tops: the most probable tokens at each position [T, k], k possibly 0; likewise.
    """

    log_probs: FloatArray
    tops: TopTokens

    def at(self, index: int) -> TopTokens:
        """Return the most probable tokens at one position."""
        return TopTokens(self.tops.ids[index], self.tops.log_probs[index])


def score_prompt_tokens(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], *, top: int
) -> Work[Any, list[PromptScores]]:
    """Score all tokens of prompts except the first of each; a use case.

    Args:
        model: any.
        prompts: equal prompts are read once.
        top: number of most probable tokens to find at each position; 0 scores each sequence in one call.
    """
    row_of_prompt: dict[tuple[bytes, bool], int] = {}
    distinct: list[PromptTokens] = []
    rows = []
    for prompt in prompts:
        row = row_of_prompt.setdefault((prompt.ids.tobytes(), prompt.after_bos), len(distinct))
        if row == len(distinct):
            distinct.append(prompt)
        rows.append(row)
    scores_of_row: dict[int, PromptScores] = {}
    read = _score_with_top if top else _score_plain
    for chunk in chunks_by_length(np.array([len(prompt.ids) for prompt in distinct], dtype=np.int64)):
        scores = yield from read(model, [distinct[row] for row in chunk], top)
        scores_of_row.update(zip(chunk.tolist(), scores, strict=True))
    return [scores_of_row[row] for row in rows]


def _score_plain(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], _top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    result = yield from Read(model, _initial_states(model, prompts), tokens, lengths, SCORES)
    none = np.zeros((tokens.shape[1], 0))
    return [
        PromptScores(
            row[:length], TopTokens(none[:length].astype(np.int64), none[:length].astype(np.float32))
        )
        for row, length in zip(result.log_probs, lengths.tolist(), strict=True)
    ]


def _score_with_top(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    size = len(model.vocabulary)
    scores = _PromptTopScores(tokens, min(top, size))
    pending: list[tuple[Any, TokenIds]] = []
    capacity = limit = max(BLOCK_ENTRIES // size, 1)
    rows = np.arange(len(prompts))
    state: Any = _initial_states(model, prompts)
    for position in range(1, tokens.shape[1]):
        unfinished = lengths[rows] > position
        if not unfinished.all():
            rows, state = rows[unfinished], state.select(np.flatnonzero(unfinished))
        read = tokens[rows, position - 1 : position]
        result = yield from Read(model, state, read, np.ones(len(rows), np.int64), STATE)
        state = result.state
        pending.append((state, rows + position * len(prompts)))
        capacity -= len(rows)
        if capacity <= 0:
            yield from _score_pending(model, pending, scores, limit)
            capacity = limit
    yield from _score_pending(model, pending, scores, limit)
    return scores.answers(lengths)


def _score_pending(
    model: LanguageModel[Any], pending: list[tuple[Any, TokenIds]], scores: "_PromptTopScores", limit: int
) -> Work[Any, None]:
    """Compute the distributions of pending states, one block at a time."""
    if not pending:
        return
    states = concatenate_states([state for state, _ in pending])
    slots = np.concatenate([slot for _, slot in pending])  # column · B + row [N]
    pending.clear()
    for first in range(0, len(slots), limit):
        block = np.arange(first, min(first + limit, len(slots)))
        log_probs = yield from Predict(model, states.select(block))
        scores.keep(slots[block], log_probs)


class _PromptTopScores:
    """Log-probabilities and most probable tokens at the positions of tokens [B, T]."""

    def __init__(self, tokens: TokenIds, top: int) -> None:
        self._tokens = tokens
        self._log_probs = np.zeros(tokens.shape, dtype=np.float32)
        self._top_ids = np.zeros((*tokens.shape, top), dtype=np.int32)
        self._tops = np.zeros((*tokens.shape, top), dtype=np.float32)

    def keep(self, slots: TokenIds, log_probs: FloatArray) -> None:
        """Store the results of distributions [N, V]; slots [N] number positions as column · B + row."""
        column, row = np.divmod(slots, len(self._tokens))
        all_rows = np.arange(len(slots))
        self._log_probs[row, column] = log_probs[all_rows, self._tokens[row, column]]
        best = top_tokens_of_rows(log_probs, self._tops.shape[2])
        self._top_ids[row, column] = best.ids
        self._tops[row, column] = best.log_probs

    def answers(self, lengths: TokenIds) -> list[PromptScores]:
        """Return the scores of each row."""
        return [
            PromptScores(
                self._log_probs[row, :length],
                TopTokens(self._top_ids[row, :length].astype(np.int64), self._tops[row, :length]),
            )
            for row, length in enumerate(lengths.tolist())
        ]


def _initial_states(model: LanguageModel[Any], prompts: Sequence[PromptTokens]) -> StateView:
    """Build the state before each prompt."""
    both = concatenate_states([model.initial_state(1), model.empty_state(1)])
    return both.select(np.array([0 if prompt.after_bos else 1 for prompt in prompts], dtype=np.int64))


class CompletionResult(NamedTuple):
    """Result of a request.

    Attributes:
        parts: the choices in order; empty if streamed.
        num_prompt_tokens: total over the prompts, as given or tokenised.
        num_generated: total over the choices, `</s>` included.
        finish_reasons: of the choices, in order.
    """

    parts: list[ChoiceChunk]
    num_prompt_tokens: int
    num_generated: int
    finish_reasons: list[str]


def complete_prompts(
    loaded: LoadedModel, command: CompletionCommand, limits: Limits, *, stream: bool = False
) -> Work[ChoiceChunk, CompletionResult]:
    """Echo, score and continue the prompts of a request.

    Args:
        loaded: the model.
        command: the request.
        limits: of one request.
        stream: whether to yield the choices as events, part by part.

    Raises:
        InvalidInputError: a prompt has a wrong id or too many tokens, or the reply would be too long.
        UnsupportedParameterError: the model reads from right to left.
    """
    check_reads_forward(loaded)
    prompts = yield from _prepare(loaded, command, limits)
    _check_entries(prompts, command, limits)
    if command.echo and command.logprobs is not None:
        yield from _score_prompts(loaded, prompts, command)
    choices = ChunkBuilder(loaded, command, prompts)
    num_prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    if command.parameters is None:
        echoes = [choices.echo(choice, LENGTH) for choice in range(len(prompts) * command.n)]
        if stream:
            yield from echoes
        return CompletionResult([] if stream else echoes, num_prompt_tokens, 0, [LENGTH] * len(echoes))
    if stream and command.echo:
        for choice in range(len(prompts) * command.n):
            yield choices.echo(choice, None)
    continuing: Work[Any, list[Continuation]] = continue_prompts(
        loaded,
        [prompt.ids[1:] if prompt.starts_with_bos else prompt.ids for prompt in prompts],
        command.parameters,
        continues=[prompt.continues for prompt in prompts],
        bos=[prompt.after_bos or prompt.starts_with_bos for prompt in prompts],
        limits=limits,
        top=command.logprobs or None,
        stream=stream,
    )
    if stream:
        done = yield from _stream_chunks(continuing, choices)
    else:
        done = yield from continuing
    parts: list[ChoiceChunk] = []
    for item in [] if stream else done:
        if parts:
            yield None
        parts.append(choices.complete_choice(item))
    generated = sum(num_generated(item) for item in done)
    return CompletionResult(parts, num_prompt_tokens, generated, [item.finish_reason for item in done])


def _prepare(
    loaded: LoadedModel, command: CompletionCommand, limits: Limits
) -> Work[Any, list[EncodedPrompt]]:
    def prepare(named: tuple[str, TextOrIds]) -> EncodedPrompt:
        parameter, given = named
        ids = encode_within(loaded, given, limits, parameter=parameter)
        if isinstance(given, str):
            return EncodedPrompt(
                given, ids, after_bos=True, continues=len(ids) > 0 and not given[-1].isspace()
            )
        if not len(ids):
            raise InvalidInputError(
                f'{parameter} is an empty list; "" or [{BOS}] is the start of a sentence', parameter=parameter
            )
        text = loaded.tokenizer.decode(ids.tolist())
        spells = any(loaded.tokenizer.token_bytes[token] for token in ids[-PROMPT_TOKENS_PER_STEP:].tolist())
        return EncodedPrompt(text, ids, after_bos=False, continues=spells)

    return (yield from map_in_steps(command.prompts, prepare, size=lambda named: len(named[1])))


def _check_entries(prompts: Sequence[EncodedPrompt], command: CompletionCommand, limits: Limits) -> None:
    """Refuse a reply with too many entries."""
    if command.echo and command.n > 1:
        _check_echoes(prompts, command.n, limits)
    if command.logprobs is None:
        return
    tokens = sum(len(prompt.ids) for prompt in prompts) if command.echo else 0
    if command.parameters is not None:
        tokens += len(prompts) * command.parameters.max_tokens
    limits.check_entries(
        tokens * command.n * max(command.logprobs, 1),
        parameter="logprobs",
        description=f"logprobs is {command.logprobs} for {tokens * command.n} tokens",
        instead="ask for fewer prompts at once",
    )


def _check_echoes(prompts: Sequence[EncodedPrompt], n: int, limits: Limits) -> None:
    """Refuse to repeat too many characters of prompts: each choice echoes its prompt."""
    characters = n * sum(len(prompt.text) for prompt in prompts)
    limit = MAX_CHARACTERS_PER_TOKEN * limits.max_reply_entries
    if characters > limit:
        raise InvalidInputError(
            f"n is {n}, so that with echo the choices repeat {characters} characters of prompts; at most {limit} are "
            "repeated in one reply",
            parameter="n",
        )


def _score_prompts(
    loaded: LoadedModel, prompts: Sequence[EncodedPrompt], command: CompletionCommand
) -> Work[Any, None]:
    """Score the tokens of prompts and fill in their entries."""
    nonempty = [prompt for prompt in prompts if len(prompt.ids)]
    scores = yield from score_prompt_tokens(
        loaded.model,
        [PromptTokens(prompt.ids, prompt.after_bos) for prompt in nonempty],
        top=command.logprobs or 0,
    )
    for prompt, scored in zip(nonempty, scores, strict=True):
        builder = EntryBuilder(loaded, continues=False, as_ids=command.as_ids)
        logprobs = scored.log_probs.tolist()
        for index, token in enumerate(prompt.ids.tolist()):
            if index % PROMPT_TOKENS_PER_STEP == PROMPT_TOKENS_PER_STEP - 1:
                yield None
            builder.add(prompt.entries, token, logprobs[index] if index else None, scored.at(index))


def _stream_chunks(
    continuing: Work[Any, list[Continuation]], choices: ChunkBuilder
) -> Work[ChoiceChunk, list[Continuation]]:
    """Convert token events to parts; the last token of a choice shares a part with its end.

    Clients measure the time per token by the parts, so a part without a token is avoided. A token
    is held until the next event of its choice or the next model call.
    """
    held: dict[int, TokenEvent] = {}

    def release() -> Iterator[ChoiceChunk]:
        for event in held.values():
            yield choices.token(event)
        held.clear()

    answer: Any = None
    try:
        while True:
            try:
                item = continuing.send(answer)
            except StopIteration as stopped:
                yield from release()
                done: list[Continuation] = stopped.value
                return done
            answer = None
            if isinstance(item, TokenEvent):
                if item.choice in held:
                    yield choices.token(held.pop(item.choice))
                held[item.choice] = item
            elif isinstance(item, Continuation):
                yield choices.last(held.pop(item.choice, None), item)
            else:
                yield from release()
                answer = yield item
    finally:
        continuing.close()
