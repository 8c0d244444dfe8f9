"""Completions as OpenAI's clients ask for them: prompts said again, scored and continued.

A text is read after `<s>`, which is not shown. Token ids are taken exactly as they are: if the first is
`<s>` the model starts there, else from its empty state. So ids are scored as given, and those of
`/tokenize` say the same as the text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from models.arrays import TokenIds
from models.decoding.parameters import DecodingParameters
from models.errors import InvalidInputError
from models.vocabulary import BOS, EOS
from service.engine.host import LoadedModel
from service.engine.job import Work
from service.use_cases.continuation import LENGTH, Continuation, Piece, continue_prompts
from service.use_cases.limits import Limits
from service.use_cases.prompt_scores import PromptTokens, prompt_scores
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.token_entries import Speller, TokenEntries, generated_entries
from service.use_cases.tokens import TextOrIds, encode, in_steps

_ENTRIES_PER_STEP = 1024
"""Tokens of a prompt made ready for a reply before other requests have their turn."""


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


class Part(NamedTuple):
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


class Completed(NamedTuple):
    """What became of a request.

    Attributes:
        parts: the choices in order; none if they were events.
        num_prompt_tokens: of all prompts, as they were given or tokenised.
        num_generated: of all choices, `</s>` included.
        finish_reasons: of the choices, in order.
    """

    parts: list[Part]
    num_prompt_tokens: int
    num_generated: int
    finish_reasons: list[str]


@dataclass(slots=True)
class _Prompt:
    """A prompt made ready.

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
    def begins(self) -> bool:
        """Whether the first id is the `<s>` that the model starts after."""
        return not self.after_bos and len(self.ids) > 0 and self.ids[0] == BOS


def complete(
    loaded: LoadedModel, command: CompletionCommand, limits: Limits, *, stream: bool = False
) -> Work[Part, Completed]:
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
        yield from _score(loaded, prompts, command)
    choices = _Choices(loaded, command, prompts)
    num_prompt_tokens = sum(len(prompt.ids) for prompt in prompts)
    if command.parameters is None:
        said = [choices.echo(choice, LENGTH) for choice in range(len(prompts) * command.n)]
        if stream:
            yield from said
        return Completed([] if stream else said, num_prompt_tokens, 0, [LENGTH] * len(said))
    if stream and command.echo:
        for choice in range(len(prompts) * command.n):
            yield choices.echo(choice, None)
    continuing: Work[Any, list[Continuation]] = continue_prompts(
        loaded,
        [prompt.ids[1:] if prompt.begins else prompt.ids for prompt in prompts],
        command.parameters,
        continues=[prompt.continues for prompt in prompts],
        bos=[prompt.after_bos or prompt.begins for prompt in prompts],
        limits=limits,
        top=command.logprobs or None,
        stream=stream,
    )
    if stream:
        done = yield from _streamed(continuing, choices)
    else:
        done = yield from continuing
    parts: list[Part] = []
    for continuation in [] if stream else done:
        parts.append(choices.whole(continuation))
        yield None
    generated = sum(_num_generated(continuation) for continuation in done)
    return Completed(parts, num_prompt_tokens, generated, [one.finish_reason for one in done])


def _prepare(loaded: LoadedModel, command: CompletionCommand, limits: Limits) -> Work[Any, list[_Prompt]]:
    def prepare(named: tuple[str, TextOrIds]) -> _Prompt:
        parameter, given = named
        limits.check_characters(given, parameter=parameter)
        ids = encode(loaded, given, parameter=parameter)
        limits.check_length(len(ids), parameter=parameter)
        if isinstance(given, str):
            return _Prompt(given, ids, after_bos=True, continues=len(ids) > 0 and not given[-1].isspace())
        if not len(ids):
            raise InvalidInputError(
                f'{parameter} is an empty list; "" or [{BOS}] is the start of a sentence', parameter=parameter
            )
        text = loaded.tokenizer.decode(ids.tolist())
        spells = any(loaded.tokenizer.token_bytes[token] for token in ids[-_ENTRIES_PER_STEP:].tolist())
        return _Prompt(text, ids, after_bos=False, continues=spells)

    return (yield from in_steps(command.prompts, prepare, size=lambda named: len(named[1])))


def _check_entries(prompts: Sequence[_Prompt], command: CompletionCommand, limits: Limits) -> None:
    """Refuse a reply too long to be written at once."""
    if command.logprobs is None:
        return
    tokens = sum(len(prompt.ids) for prompt in prompts) if command.echo else 0
    if command.parameters is not None:
        tokens += len(prompts) * command.parameters.max_tokens
    limits.check_entries(
        tokens * command.n * max(command.logprobs, 1),
        parameter="logprobs",
        asked=f"logprobs is {command.logprobs} for {tokens * command.n} tokens",
        instead="ask for fewer prompts at once",
    )


def _score(loaded: LoadedModel, prompts: Sequence[_Prompt], command: CompletionCommand) -> Work[Any, None]:
    """Find the log-probabilities of prompts' tokens."""
    some = [prompt for prompt in prompts if len(prompt.ids)]
    scores = yield from prompt_scores(
        loaded.model,
        [PromptTokens(prompt.ids, prompt.after_bos) for prompt in some],
        top=command.logprobs or 0,
    )
    for prompt, score in zip(some, scores, strict=True):
        speller = Speller(loaded, continues=False, as_ids=command.as_ids)
        logprobs = score.log_probs.tolist()
        for place, token in enumerate(prompt.ids.tolist()):
            if place % _ENTRIES_PER_STEP == _ENTRIES_PER_STEP - 1:
                yield None
            speller.add(prompt.entries, token, logprobs[place] if place else None, score.at(place))


class _Choices:
    """Makes parts of a request's choices."""

    def __init__(self, loaded: LoadedModel, command: CompletionCommand, prompts: Sequence[_Prompt]) -> None:
        self._loaded = loaded
        self._command = command
        self._prompts = prompts
        self._spellers: dict[int, Speller] = {}

    def echo(self, choice: int, finish_reason: str | None) -> Part:
        """The prompt of a choice."""
        prompt = self._of(choice)
        return Part(choice, prompt.text, self._asked(prompt.entries), finish_reason, 0)

    def piece(self, piece: Piece) -> Part:
        """One token."""
        return Part(piece.choice, piece.text, self._entries_of(piece), None, 1)

    def last(self, piece: Piece | None, done: Continuation) -> Part:
        """A choice's last token, if it was not told yet, and its end."""
        entries = self._entries_of(piece) if piece is not None else self._asked(TokenEntries())
        if entries is not None:
            self._add_end(entries, done)
        text = (piece.text if piece is not None else "") + done.rest
        count = (piece is not None) + done.ended_by_eos
        return Part(done.choice, text, entries, done.finish_reason, count)

    def whole(self, done: Continuation) -> Part:
        """A choice, with its prompt if that was asked for."""
        prompt = self._of(done.choice)
        text, entries = done.text, None
        if self._command.logprobs is not None:
            speller = self._speller(done.choice)
            entries = generated_entries(speller, done.token_ids, done.logprobs, done.tops)
            self._add_end(entries, done)
        if self._command.echo:
            text = prompt.text + text
            entries = prompt.entries + entries if entries is not None else None
        return Part(done.choice, text, entries, done.finish_reason, _num_generated(done))

    def _of(self, choice: int) -> _Prompt:
        return self._prompts[choice // self._command.n]

    def _asked(self, entries: TokenEntries) -> TokenEntries | None:
        return entries if self._command.logprobs is not None else None

    def _entries_of(self, piece: Piece) -> TokenEntries | None:
        if self._command.logprobs is None:
            return None
        tops = [piece.top] if piece.top is not None else []
        return generated_entries(self._speller(piece.choice), [piece.token_id], [piece.logprob], tops)

    def _add_end(self, entries: TokenEntries, done: Continuation) -> None:
        """The entry of the `</s>` that ended a choice: it was predicted like any other token."""
        if done.eos_logprob is not None:
            self._speller(done.choice).add(entries, EOS, done.eos_logprob, done.eos_top)

    def _speller(self, choice: int) -> Speller:
        speller = self._spellers.get(choice)
        if speller is None:
            prompt = self._of(choice)
            offset = len(prompt.text) if self._command.echo else 0
            speller = self._spellers[choice] = Speller(
                self._loaded, continues=prompt.continues, offset=offset, as_ids=self._command.as_ids
            )
        return speller


def _streamed(continuing: Work[Any, list[Continuation]], choices: _Choices) -> Work[Part, list[Continuation]]:
    """Pieces as parts; a choice's last one is told together with its end.

    Clients take the time between parts for that between tokens, so none comes without a token
    if that can be. A piece is held until it is known what follows, which takes no model.
    """
    held: dict[int, Piece] = {}

    def release() -> Iterator[Part]:
        for piece in held.values():
            yield choices.piece(piece)
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
            if isinstance(told, Piece):
                if told.choice in held:
                    yield choices.piece(held.pop(told.choice))
                yield choices.piece(told)
            elif isinstance(told, Continuation):
                yield choices.last(held.pop(told.choice, None), told)
            else:
                yield from release()
                answer = yield told
    finally:
        continuing.close()


def _num_generated(done: Continuation) -> int:
    return len(done.token_ids) + done.ended_by_eos
