"""Methods of the client, each written once as the request that it makes.

A function here has the signature and the docstring of the method that `service.client.client` makes of it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx

from service.client.calls import BadRequestError, Call, json_reply, line_reply, read_floats, read_stream_event
from service.schemas.replies import (
    AdvanceReply,
    AutocompleteReply,
    CheckReply,
    ErrorBody,
    ForgottenReply,
    FreeReply,
    GenerateReply,
    ModelCard,
    ModelList,
    NextReply,
    NextTokenReply,
    NextWordReply,
    OpenStatesReply,
    QualityReply,
    RankedListResult,
    RerankReply,
    ScoreReply,
    SequenceScoreResult,
    TextQualityResult,
    UserPair,
    UserReply,
    UserWord,
    UserWords,
)

R = TypeVar("R")
Contexts: TypeAlias = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
_BINARY = {"accept": "application/octet-stream"}


class ScoreOptions(TypedDict, total=False):
    """Options of POST /v1/score."""

    model: str
    bos: bool
    eos: bool
    detail: str


class GenerateOptions(TypedDict, total=False):
    """Options of POST /v1/generate."""

    model: str
    strategy: Literal["greedy", "sample", "beam"]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    temperature: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str]
    n: int
    best_of: int
    num_beams: int
    length_penalty: float
    early_stopping: bool
    num_beam_groups: int
    diversity_penalty: float
    seed: int
    stop: str | Sequence[str]
    logprobs: bool | int
    timeout_ms: int


NamedText: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `id`."""


class _Span(TypedDict):
    start: int
    end: int
    suggestions: Sequence[str | Mapping[str, Any]]


class CheckOptions(TypedDict, total=False):
    """Options of POST /v1/check."""

    model: str
    threshold: float
    precision: float
    max_suggestions: int
    candidates: Sequence[_Span]
    dictionary: Sequence[str]
    error_rate: float
    max_edits: int
    timeout_ms: int


class QualityOptions(TypedDict, total=False):
    """Options of POST /v1/quality."""

    model: str
    against: str


class MixturePart(TypedDict):
    """Model of a mixture, and its weight at every token."""

    model: str
    weight: float


class _Named(TypedDict):
    model: str
    name: str


class FurtherModel(_Named, total=False):
    """Additional model, with features of its own such as `lm:NAME`."""

    weight: float


class RerankOptions(TypedDict, total=False):
    """Options of POST /v1/rerank."""

    model: str
    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    weights: Mapping[str, float]
    profile: str
    length_exponent: float
    posterior_scale: float
    mbr: Literal["wer", "chrf", "bleu"]
    confidences: bool
    detail: Literal["none", "token", "word"]
    bos: bool
    eos: bool
    score_mode: Literal["normalised", "unnormalised"]
    drop_duplicates: bool
    top: int
    commit_eos: bool
    timeout_ms: int


class TuneOptions(TypedDict, total=False):
    """Options of POST /v1/rerank/tune."""

    metric: Literal["wer", "cer", "bleu", "chrf"]
    normaliser: str
    model: str
    mixture: Sequence[MixturePart]
    models: Sequence[FurtherModel]
    given_only: bool
    features: Sequence[str]
    length_exponents: Sequence[float]
    folds: int
    seed: int
    restarts: int
    resamples: int
    max_p_value: float
    bootstrap_samples: int
    timeout_ms: int


class ContinuationOptions(TypedDict):
    """Continuation of a state by POST /v1/states/advance; without text and ids, a copy of the state."""

    state: str
    text: NotRequired[str]
    token_ids: NotRequired[Sequence[int]]
    eos: NotRequired[bool]
    keep: NotRequired[bool]


DictionaryEntry: TypeAlias = str | Mapping[str, Any]
"""A text, or a mapping with `text` and `weight`."""


class AutocompleteOptions(TypedDict, total=False):
    """Options of POST /v1/autocomplete."""

    model: str
    limit: int
    max_words: int
    min_probability: float
    rank: Literal["probability", "savings"]
    casing: Literal["exact", "ignore"]
    fuzzy: int
    dictionary: Sequence[DictionaryEntry]
    blocklist: Sequence[str]
    user: str
    user_weight: float
    session: str
    max_steps: int
    timeout_ms: int


def next_token_call(
    context: Contexts, *, top_k: int = 10, entropy: bool = True, model: str | None = None
) -> Call[NextTokenReply]:
    """Return the most probable tokens after each context; faster on large vocabularies without the entropy."""
    body = {"context": context, "top_k": top_k, "entropy": entropy, "model": model}
    return Call("POST", "/v1/next-token", json_reply(NextTokenReply), body)


def next_word_call(
    context: str | Sequence[str], *, top_k: int = 10, model: str | None = None
) -> Call[NextWordReply]:
    """Return the most probable words of one or more tokens after each context."""
    body = {"context": context, "top_k": top_k, "unit": "word", "model": model}
    return Call("POST", "/v1/next-token", json_reply(NextWordReply), body)


def log_probs_call(context: Contexts, *, model: str | None = None) -> "Call[memoryview[float]]":
    """Return the log-probability of every next token, float32 [B, V]."""
    return Call("POST", "/v1/next-token", read_floats, {"context": context, "model": model}, _BINARY)


def score_call(
    texts: Sequence[str] | None = None,
    *,
    token_ids: Sequence[Sequence[int]] | None = None,
    context: str | Sequence[int] = "",
    **options: Unpack[ScoreOptions],
) -> Call[ScoreReply]:
    """Score texts or sequences of token ids."""
    sequences = {"texts": texts} if token_ids is None else {"token_ids": token_ids}
    return Call("POST", "/v1/score", json_reply(ScoreReply), {**sequences, "context": context, **options})


def score_lines_call(
    items: Iterable[Mapping[str, Any]], **options: Unpack[ScoreOptions]
) -> Call[list[SequenceScoreResult | ErrorBody]]:
    """Yield a score, or an error, for each object with `text` or `token_ids`, in order."""
    return _lines("/v1/score", line_reply(SequenceScoreResult), items, options)


def rerank_call(lists: Sequence[Mapping[str, Any]], **options: Unpack[RerankOptions]) -> Call[RerankReply]:
    """Re-rank lists of candidates."""
    return Call("POST", "/v1/rerank", json_reply(RerankReply), {"lists": lists, **options})


def rerank_lines_call(
    lists: Iterable[Mapping[str, Any]], **options: Unpack[RerankOptions]
) -> Call[list[RankedListResult | ErrorBody]]:
    """Yield each re-ranked list, or an error, in order; for thousands of lists.

    Raises:
        BadRequestError: models have weights beside a profile's, which a query string cannot express.
    """
    return _lines("/v1/rerank", line_reply(RankedListResult), lists, _query_options(options))


def tune_call(lists: Sequence[Mapping[str, Any]], **options: Unpack[TuneOptions]) -> Call[dict[str, Any]]:
    """Tune the weights of re-ranking on lists with a `reference`, and evaluate them."""
    return Call("POST", "/v1/rerank/tune", json_reply(dict[str, Any]), {"lists": lists, **options})


def generate_call(
    prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
) -> Call[GenerateReply]:
    """Generate continuations of a prompt."""
    return Call(
        "POST", "/v1/generate", json_reply(GenerateReply), {"prompt": prompt, "stream": False, **options}
    )


def stream_call(
    prompt: str | Sequence[int] = "", **options: Unpack[GenerateOptions]
) -> Call[list[GenerateReply]]:
    """Yield a continuation token by token; closing the iterator stops it."""
    return Call("POST", "/v1/generate", read_stream_event, {"prompt": prompt, "stream": True, **options})


def autocomplete_call(text: str, **options: Unpack[AutocompleteOptions]) -> Call[AutocompleteReply]:
    """Return completions of the last word of a text, or the next words."""
    return Call("POST", "/v1/autocomplete", json_reply(AutocompleteReply), {"text": text, **options})


def check_call(text: str, **options: Unpack[CheckOptions]) -> Call[CheckReply]:
    """Return the probable errors of a text, with suggestions."""
    return Call("POST", "/v1/check", json_reply(CheckReply), {"text": text, **options})


def quality_call(texts: Sequence[NamedText], **options: Unpack[QualityOptions]) -> Call[QualityReply]:
    """Score texts by bits per word and byte, under one model or two."""
    return Call("POST", "/v1/quality", json_reply(QualityReply), {"texts": texts, **options})


def quality_lines_call(
    items: Iterable[Mapping[str, Any]], **options: Unpack[QualityOptions]
) -> Call[list[TextQualityResult | ErrorBody]]:
    """Yield the quality, or an error, of each object with `text` and optionally `id`, in order; for corpora."""
    return _lines("/v1/quality", line_reply(TextQualityResult), items, options)


def models_call() -> Call[ModelList]:
    """List the models of the service."""
    return Call("GET", "/v1/models", json_reply(ModelList))


def model_call(address: str) -> Call[ModelCard]:
    """Return the description of one model."""
    return Call("GET", f"/v1/models/{quote(address, safe='@')}", json_reply(ModelCard))


def open_states_call(
    context: Contexts = "", *, model: str | None = None, bos: bool = True
) -> Call[OpenStatesReply]:
    """Open a state after each context."""
    return Call(
        "POST", "/v1/states", json_reply(OpenStatesReply), {"context": context, "model": model, "bos": bos}
    )


def advance_states_call(
    continuations: Sequence[ContinuationOptions],
    *,
    next_token_ids: Sequence[int] = (),
    free: Iterable[str] = (),
) -> Call[AdvanceReply]:
    """Score continuations, keep the states after them, then free the states in `free`."""
    body = {"continuations": continuations, "next_token_ids": list(next_token_ids), "free": list(free)}
    return Call("POST", "/v1/states/advance", json_reply(AdvanceReply), body)


def next_of_states_call(states: Sequence[str], *, token_ids: Sequence[int] | None = None) -> Call[NextReply]:
    """Return the log-probabilities of the given tokens, or of all, after each state."""
    return Call("POST", "/v1/states/next", json_reply(NextReply), {"states": states, "token_ids": token_ids})


def log_probs_of_states_call(
    states: Sequence[str], *, token_ids: Sequence[int] | None = None
) -> "Call[memoryview[float]]":
    """Return the log-probabilities of `next` as float32 [B, K]."""
    return Call("POST", "/v1/states/next", read_floats, {"states": states, "token_ids": token_ids}, _BINARY)


def free_states_call(states: Iterable[str]) -> Call[int]:
    """Free states, and return the number of states freed."""
    read: Callable[[httpx.Response], int] = lambda reply: json_reply(FreeReply)(reply).freed  # noqa: E731
    return Call("POST", "/v1/states/free", read, {"states": list(states)})


def accept_call(user: str, text: str, *, context: str | None = None) -> Call[UserReply]:
    """Learn words and pairs from a text that a user has accepted after a context."""
    return Call(
        "POST", f"{_user_path(user)}/accepted", json_reply(UserReply), {"text": text, "context": context}
    )


def export_call(user: str) -> Call[UserWords]:
    """Return the words and pairs learnt from a user."""
    return Call("GET", _user_path(user), json_reply(UserWords))


def restore_call(user: str, words: Sequence[UserWord], pairs: Sequence[UserPair] = ()) -> Call[UserReply]:
    """Replace the words and pairs of a user."""
    body = {"words": list(map(asdict, words)), "pairs": list(map(asdict, pairs))}
    return Call("PUT", _user_path(user), json_reply(UserReply), body)


def forget_call(user: str) -> Call[bool]:
    """Forget a user, and return whether the user was known."""
    read: Callable[[httpx.Response], bool] = lambda reply: json_reply(ForgottenReply)(reply).forgotten  # noqa: E731
    return Call("DELETE", _user_path(user), read)


def _user_path(user: str) -> str:
    return f"/v1/autocomplete/users/{quote(user, safe='')}"


def _lines(
    path: str, read: Callable[[str], R], items: Iterable[Mapping[str, Any]], query: Mapping[str, Any]
) -> Call[R]:
    """Send one line for each item, with the options in the query string."""
    body = "\n".join(map(json.dumps, items)).encode()
    return Call("POST", path, read, body, {"content-type": "application/x-ndjson"}, query)


def _query_options(options: RerankOptions) -> dict[str, Any]:
    """Convert options to a query string; mappings and lists are written as pairs."""
    query: dict[str, Any] = dict(options)
    models = options.get("models", ())
    weights = {f"lm:{model['name']}": model["weight"] for model in models if "weight" in model}
    if weights and "profile" in options and "weights" not in options:
        message = "models have weights beside a profile's: lines take either, so give all of them as weights"
        raise BadRequestError(ErrorBody(message, "invalid_request_error", "models", None), status=0)
    if weights or "weights" in options:
        query["weights"] = _comma_pairs({**options.get("weights", {"lm": 1.0}), **weights})
    if models:
        query["models"] = _comma_pairs({model["name"]: model["model"] for model in models})
    if "mixture" in options:
        query["mixture"] = _comma_pairs({part["model"]: part["weight"] for part in options["mixture"]})
    return query


def _comma_pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
