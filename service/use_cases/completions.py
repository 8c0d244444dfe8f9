"""Completions as OpenAI's clients ask for them: prompts said again, scored and continued.

A text is read after `<s>`, which is not shown. Token ids are taken exactly as they are: if the first is
`<s>` the model starts there, else from its empty state. So ids are scored as given, and those of
`/tokenize` say the same as the text.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from models.errors import InvalidInputError
from models.reranking.tuning.steps import map_in_steps
from models.vocabulary import BOS
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.use_cases.choices import LENGTH, Continuation, TokenEvent
from service.use_cases.completion_parts import (
    ChoiceChunk,
    ChunkBuilder,
    CompletionCommand,
    EncodedPrompt,
    num_generated,
)
from service.use_cases.continuation import continue_prompts
from service.use_cases.limits import MAX_CHARACTERS_PER_TOKEN, Limits
from service.use_cases.prompt_scores import PromptTokens, score_prompt_tokens
from service.use_cases.reading_order import check_reads_forward
from service.use_cases.token_entries import EntryBuilder
from service.use_cases.tokens import TextOrIds, encode_within

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
    for prompt, score in zip(some, scores, strict=True):
        speller = EntryBuilder(loaded, continues=False, as_ids=command.as_ids)
        logprobs = score.log_probs.tolist()
        for place, token in enumerate(prompt.ids.tolist()):
            if place % _ENTRIES_PER_STEP == _ENTRIES_PER_STEP - 1:
                yield None
            speller.add(prompt.entries, token, logprobs[place] if place else None, score.at(place))


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
