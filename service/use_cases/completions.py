"""Completions as in OpenAI's API: prompts echoed, scored and continued, with token log-probabilities.

A text is read after `<s>`, which is not shown. Token ids are taken exactly as given: if the first
is `<s>` the model starts there, else from its empty state. So ids are scored as given, and the ids
of `/tokenize` give the same result as the text.

Distributions of all positions of a long prompt would fill the memory, as each has V numbers: states
are collected until their distributions fill a block of bounded size, of which only the most
probable tokens are kept.

A token is named by the text that it adds, its space included, so that joined names give the text
but for the space that a tokenizer puts before the first word. A byte of a character is named
`<0xE2>`; every token of a vocabulary has a name of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.decoding.parameters import DecodingParameters
from models.decoding.top_k import top_tokens_of_rows
from models.errors import InvalidInputError
from models.language_model import LanguageModel, TopTokens, finite_logprob, pad_sequences
from models.reranking.candidates import map_in_steps
from models.tokenizers import Detokenizer
from models.vocabulary import BOS, CONTROL_TOKENS, EOS
from service.engine.batching import StateView, concatenate_states
from service.engine.calls import consume, next_log_probs, score
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel
from service.use_cases.choices import LENGTH, Continuation, TokenEvent
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
        names: what each is called.
        logprobs: the model's own, natural and finite; None where nothing stands before the token.
        tops: by name, the most probable tokens in its place and the token itself; None likewise.
        offsets: where it begins, in characters of the text.
    """

    names: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[dict[str, float] | None] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.names)

    def __add__(self, after: "TokenEntries") -> "TokenEntries":
        """These, then those."""
        return TokenEntries(
            self.names + after.names,
            self.logprobs + after.logprobs,
            self.tops + after.tops,
            self.offsets + after.offsets,
        )


class EntryBuilder:
    """Makes entries of one text's tokens as they come.

    Args:
        loaded: whose tokens.
        continues: whether text stands before the first token, so that its leading space is real.
        offset: where the first token begins.
        as_ids: whether tokens are called `token_id:7` instead.
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
            entries: which grow.
            token: its id.
            logprob: its own; None where nothing stands before it.
            top: the most probable tokens in its place.
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
        entries.tops.append(self._by_name(top) | {name: logprob})  # the very same number in both

    def name(self, token: int) -> str:
        """What a token is called."""
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
    speller: EntryBuilder,
    token_ids: Iterable[int],
    logprobs: Iterable[float],
    tops: Sequence[TopTokens],
) -> TokenEntries:
    """Entries of generated tokens; `tops` is empty if none were asked for."""
    entries = TokenEntries()
    for place, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        speller.add(entries, token, logprob, tops[place] if tops else None)
    return entries


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCommand:
    """A valid request for completions.

    Attributes:
        prompts: each with its name in the request, for messages.
        parameters: how to continue them; None for prompts that are only said again.
        n: choices a prompt.
        echo: whether a choice begins with its prompt.
        logprobs: how many of the most probable tokens to report in the place of each token; None for no
            log-probabilities at all.
        as_ids: whether tokens are called `token_id:7`.
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
        text: what it adds.
        entries: the tokens of it, where log-probabilities are asked for.
        finish_reason: `stop` or `length`; None if the choice goes on.
        num_generated: tokens generated for it, `</s>` among them.
    """

    choice: int
    text: str
    entries: TokenEntries | None
    finish_reason: str | None
    num_generated: int


@dataclass(slots=True)
class EncodedPrompt:
    """A prompt that is read: tokenised or checked.

    Attributes:
        text: as it is said again.
        ids: as they are shown [T], possibly none.
        after_bos: whether the model stands after `<s>` before them.
        continues: whether a text stands before the continuation, whose first space is then real.
        entries: of its tokens, once they are scored.
    """

    text: str
    ids: TokenIds
    after_bos: bool
    continues: bool
    entries: TokenEntries = field(default_factory=TokenEntries)

    @property
    def starts_with_bos(self) -> bool:
        """Whether the first id is the `<s>` that the model starts after."""
        return not self.after_bos and len(self.ids) > 0 and self.ids[0] == BOS


class ChunkBuilder:
    """Makes parts of a request's choices.

    Args:
        loaded: whose tokens.
        command: what is asked.
        prompts: of the request.
    """

    def __init__(
        self, loaded: LoadedModel, command: CompletionCommand, prompts: Sequence[EncodedPrompt]
    ) -> None:
        self._loaded = loaded
        self._command = command
        self._prompts = prompts
        self._spellers: dict[int, EntryBuilder] = {}

    def echo(self, choice: int, finish_reason: str | None) -> ChoiceChunk:
        """The prompt of a choice."""
        prompt = self._prompt_of(choice)
        return ChoiceChunk(choice, prompt.text, self._if_wanted(prompt.entries), finish_reason, 0)

    def token(self, piece: TokenEvent) -> ChoiceChunk:
        """One token."""
        return ChoiceChunk(piece.choice, piece.text, self._entries_of(piece), None, 1)

    def last(self, piece: TokenEvent | None, done: Continuation) -> ChoiceChunk:
        """A choice's last token, if it was not told yet, and its end."""
        entries = self._entries_of(piece) if piece is not None else self._if_wanted(TokenEntries())
        if entries is not None:
            self._add_end(entries, done)
        text = (piece.text if piece is not None else "") + done.rest
        count = (piece is not None) + done.ended_by_eos
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, count)

    def complete_choice(self, done: Continuation) -> ChoiceChunk:
        """A choice, with its prompt if that was asked for."""
        prompt = self._prompt_of(done.choice)
        text, entries = done.text, None
        if self._command.logprobs is not None:
            speller = self._speller(done.choice)
            entries = generated_entries(speller, done.token_ids, done.logprobs, done.tops)
            self._add_end(entries, done)
        if self._command.echo:
            text = prompt.text + text
            entries = prompt.entries + entries if entries is not None else None
        return ChoiceChunk(done.choice, text, entries, done.finish_reason, num_generated(done))

    def _prompt_of(self, choice: int) -> EncodedPrompt:
        return self._prompts[choice // self._command.n]

    def _if_wanted(self, entries: TokenEntries) -> TokenEntries | None:
        return entries if self._command.logprobs is not None else None

    def _entries_of(self, piece: TokenEvent) -> TokenEntries | None:
        if self._command.logprobs is None:
            return None
        tops = [piece.top] if piece.top is not None else []
        return generated_entries(self._speller(piece.choice), [piece.token_id], [piece.logprob], tops)

    def _add_end(self, entries: TokenEntries, done: Continuation) -> None:
        """The entry of the `</s>` that ended a choice: it was predicted like any other token."""
        if done.eos_logprob is not None:
            self._speller(done.choice).add(entries, EOS, done.eos_logprob, done.eos_top)

    def _speller(self, choice: int) -> EntryBuilder:
        speller = self._spellers.get(choice)
        if speller is None:
            prompt = self._prompt_of(choice)
            offset = len(prompt.text) if self._command.echo else 0
            speller = self._spellers[choice] = EntryBuilder(
                self._loaded, continues=prompt.continues, offset=offset, as_ids=self._command.as_ids
            )
        return speller


def num_generated(done: Continuation) -> int:
    """Tokens chosen for a choice, `</s>` included."""
    return len(done.token_ids) + done.ended_by_eos


BLOCK_ENTRIES = 1 << 20
"""Numbers of the distributions computed at once (4 MiB)."""


class PromptTokens(NamedTuple):
    """What is read of a prompt.

    Attributes:
        ids: [T], at least one.
        after_bos: whether the model stands after `<s>` before them, else nothing stands before them at all.
    """

    ids: TokenIds
    after_bos: bool


class PromptScores(NamedTuple):
    """What a model says of a prompt's tokens.

    Attributes:
        log_probs: natural-log probability of each token given those before it [T]; the first one's means nothing.
        tops: the most probable tokens in the place of each [T, k], k possibly 0; likewise.
    """

    log_probs: FloatArray
    tops: TopTokens

    def at(self, place: int) -> TopTokens:
        """The most probable tokens in one place."""
        return TopTokens(self.tops.ids[place], self.tops.log_probs[place])


def score_prompt_tokens(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], *, top: int
) -> Work[Any, list[PromptScores]]:
    """Score every token of some prompts but the first of each; a use case.

    Args:
        model: any.
        prompts: equal ones are read once.
        top: how many of the most probable tokens to find in each place; without, sequences are scored whole.
    """
    places: dict[tuple[bytes, bool], int] = {}
    distinct: list[PromptTokens] = []
    rows = []
    for prompt in prompts:
        row = places.setdefault((prompt.ids.tobytes(), prompt.after_bos), len(distinct))
        if row == len(distinct):
            distinct.append(prompt)
        rows.append(row)
    answers: dict[int, PromptScores] = {}
    read = _score_with_top if top else _score_plain
    for chunk in chunks_by_length(np.array([len(prompt.ids) for prompt in distinct], dtype=np.int64)):
        some = yield from read(model, [distinct[row] for row in chunk], top)
        answers.update(zip(chunk.tolist(), some, strict=True))
    return [answers[row] for row in rows]


def _score_plain(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], _top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    log_probs = yield from score(model, _initial_states(model, prompts), tokens, lengths)
    none = np.zeros((tokens.shape[1], 0))
    return [
        PromptScores(
            row[:length], TopTokens(none[:length].astype(np.int64), none[:length].astype(np.float32))
        )
        for row, length in zip(log_probs, lengths.tolist(), strict=True)
    ]


def _score_with_top(
    model: LanguageModel[Any], prompts: Sequence[PromptTokens], top: int
) -> Work[Any, list[PromptScores]]:
    tokens, lengths = pad_sequences([prompt.ids for prompt in prompts])
    size = len(model.vocabulary)
    found = _PromptTopScores(tokens, min(top, size))
    waiting: list[tuple[Any, TokenIds]] = []
    room = most = max(BLOCK_ENTRIES // size, 1)
    rows = np.arange(len(prompts))
    state: Any = _initial_states(model, prompts)
    for place in range(1, tokens.shape[1]):
        alive = lengths[rows] > place
        if not alive.all():
            rows, state = rows[alive], state.select(np.flatnonzero(alive))
        state = yield from consume(
            model, state, tokens[rows, place - 1 : place], np.ones(len(rows), np.int64)
        )
        waiting.append((state, rows + place * len(prompts)))
        room -= len(rows)
        if room <= 0:
            yield from _score_waiting(model, waiting, found, most)
            room = most
    yield from _score_waiting(model, waiting, found, most)
    return found.answers(lengths)


def _score_waiting(
    model: LanguageModel[Any], waiting: list[tuple[Any, TokenIds]], found: "_PromptTopScores", most: int
) -> Work[Any, None]:
    """Find what was waited for, a block at a time."""
    if not waiting:
        return
    states = concatenate_states([state for state, _ in waiting])
    places = np.concatenate([where for _, where in waiting])
    waiting.clear()
    for first in range(0, len(places), most):
        block = np.arange(first, min(first + most, len(places)))
        log_probs = yield from next_log_probs(model, states.select(block))
        found.keep(places[block], log_probs)


class _PromptTopScores:
    """What is kept of the distributions in the places of tokens [B, T]."""

    def __init__(self, tokens: TokenIds, top: int) -> None:
        self._tokens = tokens
        self._log_probs = np.zeros(tokens.shape, dtype=np.float32)
        self._top_ids = np.zeros((*tokens.shape, top), dtype=np.int32)
        self._tops = np.zeros((*tokens.shape, top), dtype=np.float32)

    def keep(self, places: TokenIds, log_probs: FloatArray) -> None:
        """Keep what matters of distributions [N, V], each of the place of which this is the number [N]."""
        column, row = np.divmod(places, len(self._tokens))
        every = np.arange(len(places))
        self._log_probs[row, column] = log_probs[every, self._tokens[row, column]]
        best = top_tokens_of_rows(log_probs, self._tops.shape[2])
        self._top_ids[row, column] = best.ids
        self._tops[row, column] = best.log_probs

    def answers(self, lengths: TokenIds) -> list[PromptScores]:
        """Of each row."""
        return [
            PromptScores(
                self._log_probs[row, :length],
                TopTokens(self._top_ids[row, :length].astype(np.int64), self._tops[row, :length]),
            )
            for row, length in enumerate(lengths.tolist())
        ]


def _initial_states(model: LanguageModel[Any], prompts: Sequence[PromptTokens]) -> StateView:
    """The state before each prompt."""
    both = concatenate_states([model.initial_state(1), model.empty_state(1)])
    return both.select(np.array([0 if prompt.after_bos else 1 for prompt in prompts], dtype=np.int64))


_ENTRIES_PER_STEP = 1024
"""Tokens of a prompt made ready for a reply before other requests have their turn."""


class CompletionResult(NamedTuple):
    """What became of a request.

    Attributes:
        parts: the choices in order; none if they were events.
        num_prompt_tokens: of all prompts, as they were given or tokenised.
        num_generated: of all choices, `</s>` included.
        finish_reasons: of the choices, in order.
    """

    parts: list[ChoiceChunk]
    num_prompt_tokens: int
    num_generated: int
    finish_reasons: list[str]


def complete_prompts(
    loaded: LoadedModel, command: CompletionCommand, limits: Limits, *, stream: bool = False
) -> Work[ChoiceChunk, CompletionResult]:
    """Say prompts again, score and continue them, as a request asks.

    Args:
        loaded: by what model.
        command: what is asked.
        limits: of one request.
        stream: whether choices are wanted as events, part by part.

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
        said = [choices.echo(choice, LENGTH) for choice in range(len(prompts) * command.n)]
        if stream:
            yield from said
        return CompletionResult([] if stream else said, num_prompt_tokens, 0, [LENGTH] * len(said))
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
    for continuation in [] if stream else done:
        if parts:
            yield None
        parts.append(choices.complete_choice(continuation))
    generated = sum(num_generated(continuation) for continuation in done)
    return CompletionResult(parts, num_prompt_tokens, generated, [one.finish_reason for one in done])


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
        spells = any(loaded.tokenizer.token_bytes[token] for token in ids[-_ENTRIES_PER_STEP:].tolist())
        return EncodedPrompt(text, ids, after_bos=False, continues=spells)

    return (yield from map_in_steps(command.prompts, prepare, size=lambda named: len(named[1])))


def _check_entries(prompts: Sequence[EncodedPrompt], command: CompletionCommand, limits: Limits) -> None:
    """Refuse a reply too long to be written at once."""
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
    """Refuse to say long prompts again and again: each choice has its own."""
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
    """Find the log-probabilities of prompts' tokens."""
    some = [prompt for prompt in prompts if len(prompt.ids)]
    scores = yield from score_prompt_tokens(
        loaded.model,
        [PromptTokens(prompt.ids, prompt.after_bos) for prompt in some],
        top=command.logprobs or 0,
    )
    for prompt, scored in zip(some, scores, strict=True):
        speller = EntryBuilder(loaded, continues=False, as_ids=command.as_ids)
        logprobs = scored.log_probs.tolist()
        for place, token in enumerate(prompt.ids.tolist()):
            if place % _ENTRIES_PER_STEP == _ENTRIES_PER_STEP - 1:
                yield None
            speller.add(prompt.entries, token, logprobs[place] if place else None, scored.at(place))


def _stream_chunks(
    continuing: Work[Any, list[Continuation]], choices: ChunkBuilder
) -> Work[ChoiceChunk, list[Continuation]]:
    """Pieces as parts; a choice's last one is told together with its end.

    Clients take the time between parts for that between tokens, so none comes without a token
    if that can be. A piece is held until it is known what follows, which takes no model.
    """
    held: dict[int, TokenEvent] = {}

    def release() -> Iterator[ChoiceChunk]:
        for piece in held.values():
            yield choices.token(piece)
        held.clear()

    answer: Any = None
    try:
        while True:
            try:
                told = continuing.send(answer)
            except StopIteration as stopped:
                yield from release()
                done: list[Continuation] = stopped.value
                return done
            answer = None
            if isinstance(told, TokenEvent):
                if told.choice in held:
                    yield choices.token(held.pop(told.choice))
                held[told.choice] = told
            elif isinstance(told, Continuation):
                yield choices.last(held.pop(told.choice, None), told)
            else:
                yield from release()
                answer = yield told
    finally:
        continuing.close()
