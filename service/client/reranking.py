"""The client's side of /v1/rerank and /v1/rerank/tune: what is asked, and how lines of answers are read."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import TypeAdapter

from service.client.calls import Call, lines_call, result_or_error
from service.client.errors import BadRequestError
from service.schemas.replies import ErrorBody, ErrorReply, RankedListResult, RerankReply

_RERANK = TypeAdapter(RerankReply)
_RANKED_LINE: TypeAdapter[RankedListResult | ErrorReply] = TypeAdapter(RankedListResult | ErrorReply)
_TUNE: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


class MixturePart(TypedDict):
    """A model whose probabilities are mixed with others' at every token."""

    model: str
    weight: float


class _Named(TypedDict):
    model: str
    name: str


class FurtherModel(_Named, total=False):
    """A model with features of its own, such as `lm:NAME`."""

    weight: float


class RerankOptions(TypedDict, total=False):
    """How candidates are weighed; see POST /v1/rerank."""

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
    """What to tune, and how; see POST /v1/rerank/tune."""

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


def rerank_call(lists: Sequence[Mapping[str, Any]], options: RerankOptions) -> Call[RerankReply]:
    """POST /v1/rerank."""
    return Call("POST", "/v1/rerank", _RERANK, {"lists": lists, **options})


def rerank_lines_call(
    lists: Iterable[Mapping[str, Any]], options: RerankOptions
) -> Call[RankedListResult | ErrorReply]:
    """POST /v1/rerank with a line for each list.

    Raises:
        BadRequestError: models have weights beside a profile's, for which a query string has no place.
    """
    return lines_call("/v1/rerank", _RANKED_LINE, lists, _query_options(options))


def tune_call(lists: Sequence[Mapping[str, Any]], options: TuneOptions) -> Call[dict[str, Any]]:
    """POST /v1/rerank/tune."""
    return Call("POST", "/v1/rerank/tune", _TUNE, {"lists": lists, **options})


def read_ranked_line(line: str) -> RankedListResult | ErrorBody:
    """What a line of re-ranked lists says."""
    return result_or_error(_RANKED_LINE.validate_json(line))


def _query_options(options: RerankOptions) -> dict[str, Any]:
    """Options as a query string has them: what is a mapping or a list there is written in pairs."""
    query: dict[str, Any] = dict(options)
    models = options.get("models", ())
    weights = {f"lm:{one['name']}": one["weight"] for one in models if "weight" in one}
    if weights and "profile" in options and "weights" not in options:
        message = "models have weights beside a profile's: lines take either, so give all of them as weights"
        raise BadRequestError(ErrorBody(message, "invalid_request_error", "models", None), status=0)
    if weights or "weights" in options:
        query["weights"] = _comma_pairs({**options.get("weights", {"lm": 1.0}), **weights})
    if models:
        query["models"] = _comma_pairs({one["name"]: one["model"] for one in models})
    if "mixture" in options:
        query["mixture"] = _comma_pairs({part["model"]: part["weight"] for part in options["mixture"]})
    return query


def _comma_pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
