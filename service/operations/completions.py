r"""OpenAI's completions: prompts echoed, scored and continued, with token log-probabilities.

A text is read after `<s>`, which is not shown. Token ids are used as given: the model starts at
`<s>` if it is the first id, else from its empty state. Hence the ids of `/tokenize` give the same
result as the text.

A token's name is the text that it adds, with its space: the joined names give the text, except the
space that a tokenizer puts before the first word. A part of a character is `<0xE2>` with
SentencePiece, else `bytes:\xe2\x82`; names are unique within a vocabulary.
"""

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from heapq import nlargest
from itertools import repeat
from operator import add
from typing import Annotated, Any, NamedTuple

import structlog
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from models.calls import Work, map_in_steps
from models.decoding.choices import (
    LENGTH,
    Continuation,
    GeneratedToken,
    Piece,
    Prompt,
    encode_prompt,
    score_prompt_tokens,
)
from models.decoding.generate import continue_prompts
from models.decoding.parameters import DecodingParameters
from models.errors import InputError
from models.language_model import BOS, EOS, TopTokens
from models.scoring.sequences import score_sequence_list
from models.text_model import (
    MAX_CHARS_PER_TOKEN,
    Limits,
    TextModel,
    TextOrIds,
    check_forward,
    encode_after,
)
from models.tokenizers import Detokenizer
from service.operations.generate import ChoiceChunk, ChoicesOperation, GenerateResult, decoding_parameters
from service.operations.operation import PROMPT_TOKENS_PER_STEP, TOKENS_PER_PREDICTION, Call, Cost
from service.schemas import with_examples
from service.schemas.replies import Usage, to_json
from service.schemas.wire import (
    Biases,
    ModelRequest,
    NonNegative,
    NumChoices,
    OneOrMoreContexts,
    Penalty,
    Probability,
    RepetitionPenalty,
    Share,
    Stops,
    Temperature,
    TokenId,
    named_contexts,
    schema_only,
)

_log = structlog.get_logger(__name__)

DEFAULT_MAX_TOKENS = 16
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
OBJECT_TYPE = "text_completion"
_SEEDS = 1 << 64

_SUFFIX_SAMPLES = 8
"""Continuations of which the best before a suffix are returned, if `best_of` is omitted."""

_SUFFIX_WORDS, _MAX_SUFFIX_CHARS = 3, 200
"""First words and characters of a suffix that are read."""

_MAX_NAMES_LOGGED, _MAX_NAME_CHARS = 20, 64
_FINGERPRINT_CHARS = 12


@dataclass(slots=True)
class CompletionLogprobs:
    """Tokens of a choice, in four lists of equal length."""

    tokens: list[str]
    """names of the tokens."""
    token_logprobs: list[float | None]
    """natural-log probability of each token; null for a token without a context."""
    top_logprobs: list[dict[str, float] | None]
    """log-probabilities of the most probable tokens, or those of `logprob_token_ids`, by name, always including the
    token itself; null for a token without a context."""
    text_offset: list[int]
    """start of each token in the choice's text, in characters: in a prompt that was text, in the text as sent."""

    def __add__(self, after: "CompletionLogprobs") -> "CompletionLogprobs":
        """Concatenate the tokens of two texts."""
        lists = ([getattr(one, column.name) for column in fields(one)] for one in (self, after))
        return CompletionLogprobs(*map(add, *lists))


@dataclass(slots=True)
class CompletionChoice:
    """A choice, or its next part in a stream."""

    index: int
    """number of the choice: prompt · n + j."""
    text: str
    """text of the choice."""
    finish_reason: str | None
    """`stop` or `length`; null before the last part."""
    logprobs: CompletionLogprobs | None
    """log-probabilities of the tokens; null unless requested."""


@dataclass(slots=True)
class CompletionReply:
    """All choices, or one event of a stream."""

    id: str
    """id of the reply."""
    object: str
    """always `text_completion`."""
    created: int
    """time of the reply, in seconds since 1970."""
    model: str
    """address of the model version, such as `lstm@3`."""
    system_fingerprint: str
    """fingerprint of the model version and its tokenizer."""
    choices: list[CompletionChoice]
    """the choices."""
    usage: Usage | None
    """token counts; in a stream null until the last event, unless each event has them."""


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, use_attribute_docstrings=True)

    include_usage: bool | None = None
    """True to send the usage in an additional last event, without choices, before `[DONE]`."""
    continuous_usage_stats: bool | None = None
    """True to send the usage so far, of all choices together, in each event."""


class CompletionRequest(ModelRequest):
    """Continue texts, compatible with OpenAI's API; null means the default, and unknown fields are ignored."""

    model_config = with_examples(
        {"prompt": "Return the", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1},
        {"prompt": ["Return the", "Raise an"], "max_tokens": 3, "seed": 1, "stream": True},
        extra="allow",
    )

    prompt: OneOrMoreContexts | None = None
    """A string, strings, a list of token ids, or several such lists. `<s>` precedes strings, but not ids: begin a
    list with the id of `<s>` if required."""
    best_of: NumChoices | None = None
    """Number of continuations generated per prompt; the `n` with the highest mean log-probability are returned."""
    echo: bool | None = None
    """True to begin each choice with its prompt."""
    frequency_penalty: Penalty | None = None
    """Amount, from -2 to 2, subtracted from a token's score for each time it was generated."""
    ignore_eos: bool | None = None
    """True to continue where `</s>` would end a choice."""
    logit_bias: Biases | None = None
    """Values by token id, from -100 to 100, added to the token's score."""
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    """Number of most probable tokens, from 0 to 20, reported with each token's log-probability."""
    logprob_token_ids: Annotated[list[TokenId], Field(max_length=MAX_LOGPROB_TOKEN_IDS)] | None = None
    """Ids of at most 128 tokens reported at each generated position, in `top_logprobs`, instead of the most probable
    ones. Requires `logprobs`, which still applies to the tokens of an echoed prompt."""
    max_tokens: NonNegative | None = None
    """Maximum tokens per choice, 16 if omitted; 0 with `echo` only scores the prompts."""
    min_p: Probability | None = None
    """Sample from the tokens that have at least this fraction of the highest probability."""
    min_tokens: NonNegative | None = None
    """Minimum number of tokens before `</s>`."""
    n: NumChoices | None = None
    """Number of choices per prompt."""
    presence_penalty: Penalty | None = None
    """Amount, from -2 to 2, subtracted from the scores of tokens that were generated."""
    repetition_penalty: RepetitionPenalty | None = None
    """Values above 1 make tokens of the prompt and generated tokens less probable."""
    return_tokens_as_token_ids: bool | None = None
    """True to name tokens `token_id:7` in log-probabilities."""
    seed: Annotated[int, Field(ge=-_SEEDS // 2, le=_SEEDS - 1)] | None = None
    """Seed of sampling; equal seeds give equal choices."""
    stop: Stops | None = None
    """One or several stop strings, up to 32; a choice ends before the first that occurs."""
    stream: bool | None = None
    """True to send tokens as server-sent events."""
    stream_options: StreamOptions | None = None
    """Options of the stream; only with `stream`."""
    suffix: str | None = None
    """Text after the choices: of `best_of` continuations, 8 if omitted, the `n` after which its first words are most
    probable are returned. Not with `stream`."""
    temperature: Temperature | None = None
    """Sampling temperature, 1 if omitted; 0 picks the most probable token."""
    token_healing: bool | None = None
    """True to complete each prompt's last word: its tokens are replaced by the first tokens of the choice, which begin
    with the same text."""
    top_k: Annotated[int, schema_only(minimum=-1)] | None = None
    """Sample from the k most probable tokens; 0 or -1 means all."""
    top_p: Share | None = None
    """Sample from the smallest set of most probable tokens with at least this total probability."""
    user: str | None = None
    """Ignored."""

    @cached_property
    def prompts(self) -> tuple[tuple[str, TextOrIds], ...]:
        """Each prompt with its name in the request, for messages."""
        return named_contexts("" if self.prompt is None else self.prompt, "prompt")

    @property
    def num_choices(self) -> int:
        """Number of choices for each prompt."""
        return 1 if self.n is None else self.n

    @property
    def num_samples(self) -> int:
        """Number of continuations generated for each prompt."""
        few = 1 if self.temperature == 0 or self.best_of is not None or not self.suffix else _SUFFIX_SAMPLES
        return max(self.num_choices, self.best_of or 0, few)

    def parameters(self, limits: Limits) -> DecodingParameters | None:
        """Return the decoding parameters; None to only echo the prompts.

        Raises:
            InputError: a value is outside its limits.
            UnsupportedError: a valid value is not supported.
        """
        limits.check_count(len(self.prompts), "prompt")
        if self.suffix and (self.stream or self.max_tokens == 0):
            problem = "max_tokens of at least 1" if self.max_tokens == 0 else "a reply without stream"
            raise InputError.of("suffix", f"is given, which requires {problem}")
        if self.logprob_token_ids and (self.logprobs is None or self.max_tokens == 0):
            required = "logprobs" if self.logprobs is None else "max_tokens of at least 1"
            raise InputError.of(
                "logprob_token_ids", f"has {len(self.logprob_token_ids)} entries, which requires {required}"
            )
        if self.stream_options is not None and not self.stream:
            raise InputError.of("stream_options", "requires stream")
        most = self.num_samples
        rows = len(self.prompts) * most
        if rows > limits.max_texts:
            raise InputError(
                f"{len(self.prompts)} prompts with {most} choices each are {rows} choices; at most "
                f"{limits.max_texts} are accepted in one request",
                param="n" if self.best_of is None else "best_of",
            )
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if max_tokens == 0 and not self.echo:
            raise InputError.of("max_tokens", "is 0, which requires echo")
        parameters = decoding_parameters(
            self,
            limits,
            stream=bool(self.stream),
            # 0 would be invalid; other fields are still checked
            max_tokens=max_tokens or 1,
            top_k=None if self.top_k in {-1, 0} else self.top_k,
            seed=None if self.seed is None else self.seed % _SEEDS,
        )
        if self.suffix:
            parameters = replace(parameters, n=most, best_of=None)
        return parameters if max_tokens else None


class EntryBuilder:
    """Builder of the entries of a text's tokens, token by token.

    Args:
        loaded: model.
        continues: true if text precedes the first token, which then keeps its space.
        offset: start of the first token, in characters.
        as_ids: true to name tokens `token_id:7`, not by their texts.
    """

    def __init__(self, loaded: TextModel, *, continues: bool, offset: int = 0, as_ids: bool = False) -> None:
        self._loaded = loaded
        self._detokenizer = Detokenizer(loaded.tokenizer, continues=continues)
        self._offset = offset
        self._as_ids = as_ids

    def add(
        self,
        entries: CompletionLogprobs,
        token: int,
        logprob: float | None,
        top: TopTokens | None = None,
    ) -> None:
        """Append the next token.

        Args:
            entries: entries to extend.
            token: its id.
            logprob: its log-probability; None for a token without a context.
            top: most probable tokens at its position.
        """
        name = self.name(token)
        entries.tokens.append(name)
        entries.text_offset.append(self._offset)
        self._offset += len(self._detokenizer.push(token))
        if logprob is None:
            entries.token_logprobs.append(None)
            entries.top_logprobs.append(None)
            return
        tops = () if top is None else zip(top.ids.tolist(), top.log_probs.tolist(), strict=True)
        by_name = {self.name(other): other_logprob for other, other_logprob in tops}
        entries.token_logprobs.append(logprob)
        # equal numbers in both lists
        entries.top_logprobs.append(by_name | {name: logprob})

    def name(self, token: int) -> str:
        """Return the name of a token."""
        return f"token_id:{token}" if self._as_ids else self._loaded.token_names[token]


def no_entries() -> CompletionLogprobs:
    """Return empty entries, to be extended."""
    return CompletionLogprobs([], [], [], [])


class EncodedPrompt(NamedTuple):
    """A prompt, tokenised or with checked ids.

    Attributes:
        text: text to echo.
        tokens: ids to show, after `<s>` unless used exactly as given.
        entries: entries of its tokens, filled by scoring.
    """

    text: str
    tokens: Prompt
    entries: CompletionLogprobs

    def to_continue(self) -> Prompt:
        """Return the model's prompt, a leading id of `<s>` as `bos`."""
        tokens = self.tokens
        if tokens.bos or not len(tokens.ids) or tokens.ids[0] != BOS:
            return tokens
        return tokens._replace(ids=tokens.ids[1:], bos=True)


@dataclass(slots=True)
class ChunkBuilder:
    """Builder of the parts of a request's choices."""

    loaded: TextModel
    request: CompletionRequest
    prompts: Sequence[EncodedPrompt]
    _builders: dict[int, EntryBuilder] = field(default_factory=dict)

    def echo(self, choice: int, finish_reason: str | None) -> tuple[CompletionChoice, int]:
        """Build the part with the prompt of a choice."""
        prompt = self._prompt_of(choice)
        entries = None if self.request.logprobs is None else prompt.entries
        return CompletionChoice(choice, prompt.text, finish_reason, entries), 0

    def parts(self, pieces: Sequence[Piece]) -> Iterator[tuple[CompletionChoice, int]]:
        """Build the parts that a step adds; ending choices come first.

        A choice's last token shares a part with its end: clients measure the time per token by parts, so
        parts without a token are avoided.
        """
        for piece in sorted(pieces, key=lambda one: one.end is None):
            text = piece.text if piece.end is None else piece.text + piece.end.rest
            yield self._part(piece.choice, text, () if piece.token is None else (piece.token,), piece.end)

    def complete_choice(self, done: Continuation) -> CompletionChoice:
        """Build a complete choice, with its prompt if requested."""
        tokens = zip(done.token_ids, done.logprobs, done.tops or repeat(None), strict=False)
        choice = self._part(done.choice, done.text, tokens, done)[0]
        if not self.request.echo:
            return choice
        prompt = self._prompt_of(done.choice)
        entries = None if choice.logprobs is None else prompt.entries + choice.logprobs
        return replace(choice, text=prompt.text + choice.text, logprobs=entries)

    def _part(
        self,
        choice: int,
        text: str,
        tokens: Iterable[GeneratedToken],
        done: Continuation | None,
    ) -> tuple[CompletionChoice, int]:
        """Build a choice's part with these tokens; a final `</s>` counts as predicted."""
        predicted = list(tokens)
        if done is not None and done.eos_logprob is not None:
            predicted.append((EOS, done.eos_logprob, done.eos_top))
        entries = None
        if self.request.logprobs is not None:
            builder, entries = self._builder_of(choice), no_entries()
            for token, logprob, top in predicted:
                builder.add(entries, token, logprob, top)
        reason = None if done is None else done.finish_reason
        return CompletionChoice(choice, text, reason, entries), len(predicted)

    def _prompt_of(self, choice: int) -> EncodedPrompt:
        return self.prompts[choice // self.request.num_choices]

    def _builder_of(self, choice: int) -> EntryBuilder:
        builder = self._builders.get(choice)
        if builder is None:
            prompt = self._prompt_of(choice)
            # characters taken back: a choice's tokens start before its text
            taken = prompt.tokens.taken.decode(errors="replace")
            if self.loaded.tokenizer.leading_space and not prompt.tokens.continues:
                taken = taken.removeprefix(" ")
            builder = self._builders[choice] = EntryBuilder(
                self.loaded,
                continues=prompt.tokens.continues,
                offset=(len(prompt.text) if self.request.echo else 0) - len(taken),
                as_ids=bool(self.request.return_tokens_as_token_ids),
            )
        return builder


def complete_prompts(
    loaded: TextModel, request: CompletionRequest, parameters: DecodingParameters | None, limits: Limits
) -> Work[ChoiceChunk, GenerateResult]:
    """Echo, score and continue prompts; with `stream`, yield parts of choices as events.

    Without parameters, prompts are only echoed.

    Raises:
        InputError: a prompt has an invalid id or too many tokens, or the reply is too long.
        UnsupportedError: the model reads backward.
    """
    check_forward(loaded)
    requested = tuple(request.logprob_token_ids or ())
    loaded.model.vocabulary.check_ids(requested, param="logprob_token_ids")
    prompts = yield from _encode_prompts(loaded, request, limits)
    _check_entries(prompts, request, parameters, limits)
    if request.echo and request.logprobs is not None:
        yield from _score_prompts(loaded, prompts, request)
    builder = ChunkBuilder(loaded, request, prompts)
    num_read = sum(len(prompt.tokens.ids) for prompt in prompts)
    num_choices = len(prompts) * request.num_choices
    usage = Usage(num_read, 0, num_read)
    in_each = (request.stream_options or StreamOptions()).continuous_usage_stats

    def events(parts: Iterable[tuple[CompletionChoice, int]]) -> Iterator[ChoiceChunk]:
        nonlocal usage
        for choice, count in parts:
            generated = usage.completion_tokens + count
            usage = Usage(num_read, generated, num_read + generated)
            yield choice, count, usage if in_each else None

    if parameters is None:
        echoes = [builder.echo(choice, LENGTH) for choice in range(num_choices)]
        if request.stream:
            yield from events(echoes)
        choices = [] if request.stream else [choice for choice, _ in echoes]
        return GenerateResult(choices, usage, [LENGTH] * num_choices)
    if request.stream and request.echo:
        yield from events(builder.echo(choice, None) for choice in range(num_choices))
    done = yield from continue_prompts(
        loaded,
        [prompt.to_continue() for prompt in prompts],
        parameters,
        limits=limits,
        top=requested or request.logprobs or 0,
        emit=(lambda pieces: events(builder.parts(pieces))) if request.stream else None,
    )
    if request.suffix:
        done = yield from _best_before(loaded, prompts, done, request)
    choices = []
    for item in [] if request.stream else done:
        if choices:
            yield None
        choices.append(builder.complete_choice(item))
    generated = sum(len(item.token_ids) + item.ended_by_eos for item in done)
    usage = Usage(num_read, generated, num_read + generated)
    return GenerateResult(choices, usage, [item.finish_reason for item in done])


def _best_before(
    loaded: TextModel,
    prompts: Sequence[EncodedPrompt],
    done: Sequence[Continuation],
    request: CompletionRequest,
) -> Work[Any, list[Continuation]]:
    """Return the `n` continuations of each prompt after which the suffix is most probable, best first.

    They are samples of the model, so the suffix alone decides (Bayes' rule).
    """
    suffix = (request.suffix or "")[:_MAX_SUFFIX_CHARS]
    following = " " * suffix[:1].isspace() + " ".join(suffix.split()[:_SUFFIX_WORDS])
    texts = [prompts[item.choice // request.num_samples].text + item.text for item in done]
    pairs = yield from map_in_steps(
        texts, lambda text: encode_after(loaded, text, following, param="suffix"), size=len
    )
    scores = yield from score_sequence_list(loaded, pairs, bos=True)
    totals = [float(score.sum()) for score in scores]
    best: list[Continuation] = []
    for first in range(0, len(done), request.num_samples):
        numbers = range(first, min(first + request.num_samples, len(done)))
        best += [done[number] for number in nlargest(request.num_choices, numbers, key=totals.__getitem__)]
    for number, item in enumerate(best):
        item.choice = number
    return best


def _encode_prompts(
    loaded: TextModel, request: CompletionRequest, limits: Limits
) -> Work[Any, list[EncodedPrompt]]:
    def encode(index: int) -> EncodedPrompt:
        param, given = request.prompts[index]
        heals = bool(request.token_healing)
        prompt = encode_prompt(loaded, index, given, limits, param=param, healing=heals)
        if isinstance(given, str):
            return EncodedPrompt(given, prompt, no_entries())
        ids = prompt.ids
        if not len(ids):
            raise InputError.of(param, f'is an empty list; use "" or [{BOS}] for the start of a sentence')
        text = loaded.tokenizer.decode(ids.tolist())
        spells = any(loaded.tokenizer.token_bytes[token] for token in ids[-PROMPT_TOKENS_PER_STEP:].tolist())
        return EncodedPrompt(text, Prompt(index, ids, bos=False, continues=spells), no_entries())

    prompts = request.prompts
    return (yield from map_in_steps(range(len(prompts)), encode, size=lambda index: len(prompts[index][1])))


def _check_entries(
    prompts: Sequence[EncodedPrompt],
    request: CompletionRequest,
    parameters: DecodingParameters | None,
    limits: Limits,
) -> None:
    """Reject a reply of too many entries, or repeated characters of prompts."""
    n = request.num_choices
    characters = n * sum(len(prompt.text) for prompt in prompts)
    limit = MAX_CHARS_PER_TOKEN * limits.max_reply_entries
    if request.echo and n > 1 and characters > limit:
        raise InputError.of(
            "n",
            f"is {n}, so with echo the choices repeat {characters} characters of prompts; at most {limit} are "
            "accepted in one reply",
        )
    if request.logprobs is None:
        return
    tokens = sum(len(prompt.tokens.ids) for prompt in prompts) if request.echo else 0
    if parameters is not None:
        tokens += len(prompts) * parameters.max_tokens
    limits.check_entries(
        tokens * n * max(request.logprobs, 1),
        "logprobs",
        description=f"logprobs is {request.logprobs} for {tokens * n} tokens",
        instead="send fewer prompts per request",
    )


def _score_prompts(
    loaded: TextModel, prompts: Sequence[EncodedPrompt], request: CompletionRequest
) -> Work[Any, None]:
    """Score tokens of prompts and fill in their entries."""
    nonempty = [one for one in prompts if len(one.tokens.ids)]
    scores = yield from score_prompt_tokens(
        loaded.model, [prompt.tokens for prompt in nonempty], top=request.logprobs or 0
    )
    as_ids = bool(request.return_tokens_as_token_ids)
    for prompt, (log_probs, tops) in zip(nonempty, scores, strict=True):
        builder = EntryBuilder(loaded, continues=False, as_ids=as_ids)
        logprobs = log_probs.tolist()
        for index, token in enumerate(prompt.tokens.ids.tolist()):
            if index % PROMPT_TOKENS_PER_STEP == PROMPT_TOKENS_PER_STEP - 1:
                yield None
            top = TopTokens(tops.ids[index], tops.log_probs[index])
            builder.add(prompt.entries, token, logprobs[index] if index else None, top)
        if prompt.tokens.bos:
            offsets = prompt.entries.text_offset
            starts = loaded.tokenizer.token_starts(prompt.text).tolist()
            offsets[: len(starts)] = starts[: len(offsets)]


class Completions(ChoicesOperation):
    """Continue texts or score them, with OpenAI's completions API.

    With `stream`, the reply has an event per token of each choice, then `[DONE]`; comments keep an idle connection
    alive. An error after the first event is an event with `error`.
    """

    request = CompletionRequest

    def __init__(self, call: Call, given: CompletionRequest) -> None:
        self.streams, self._parameters = bool(given.stream), given.parameters(call.limits)
        if given.model_extra:
            names = sorted(given.model_extra)[:_MAX_NAMES_LOGGED]
            ignored = [name[:_MAX_NAME_CHARS] for name in names]
            _log.debug("fields ignored", fields=ignored, request_id=call.request_id)
        super().__init__(call, given)
        self.ends_with_result = bool((given.stream_options or StreamOptions()).include_usage)
        self._id, self._created = f"cmpl-{uuid.uuid4().hex}", int(time.time())

    @override
    def cost(self) -> Cost:
        read, predicted, rows = self.call.num_tokens, 0, len(self.given.prompts)
        if self._parameters is not None:
            rows *= self._parameters.num_samples
            predicted = rows * self._parameters.max_tokens
        # with `echo` and `logprobs`, a distribution is computed for each token of the prompts
        echoed = TOKENS_PER_PREDICTION * read if self.given.echo and self.given.logprobs else 0
        return Cost(read, reread=echoed, predicted=predicted, sequences=rows)

    @override
    def run(self) -> Work[ChoiceChunk, GenerateResult]:
        return complete_prompts(self.models[0], self.given, self._parameters, self.call.limits)

    @override
    def _written(self, choices: list[Any], usage: Any) -> bytes:
        loaded = self.models[0]
        # model version and tokenizer: with the request, they determine the reply
        fingerprint = f"{loaded.address}-{loaded.tokenizer.fingerprint[:_FINGERPRINT_CHARS]}"
        reply = CompletionReply(
            self._id, OBJECT_TYPE, self._created, loaded.address, fingerprint, choices, usage
        )
        return to_json(reply)
