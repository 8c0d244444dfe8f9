"""What /v1/completions and the tokenizer's endpoints answer: OpenAI's names, and those of vLLM beside them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletionLogprobs:
    """Tokens of a choice, in four lists of one length; null where nothing stands before a token.

    `top_logprobs` are by name, and the token itself is always among them; `text_offset` counts characters of
    the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """A choice, number prompt · n + j, or in a stream the next part of one; `finish_reason` is null until the last."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None


@dataclass(frozen=True, slots=True)
class CompletionUsage:
    """Tokens of all prompts as they were given or tokenised, and of all choices, `</s>` included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class CompletionReply:
    """All choices, or one event of a stream, whose `usage` is null until the last."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage | None


@dataclass(frozen=True, slots=True)
class TokenizeReply:
    """A text's tokens; `max_model_len` is how many the service reads of one text at most."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str]


@dataclass(frozen=True, slots=True)
class DetokenizeReply:
    """The text that tokens spell."""

    prompt: str


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A model's tokenizer: its kind, its control tokens and how many tokens there are."""

    model: str
    tokenizer_class: str
    fingerprint: str
    vocab_size: int
    max_model_len: int
    bos_token: str
    eos_token: str
    unk_token: str
    bos_token_id: int
    eos_token_id: int
    unk_token_id: int
    add_bos_token: bool
    add_eos_token: bool
