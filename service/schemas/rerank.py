"""Schemas of POST /v1/rerank: request, query string of list streams, and the reply as chunks.

As lists may be many and long, the reply is written in chunks. Its field names are those of
`RerankReply` in `service.schemas.replies`; dictionaries are written instead of its objects, which
takes a third of the time per candidate. If the body is a stream of lists, the settings are in the
query string, written as on the command line.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator, with_config
from pydantic_core import PydanticCustomError, to_json

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import LM, NUM_TOKENS, feature_name
from models.reranking.formats.format import BadLine
from models.reranking.formats.reader import read_bytes
from models.reranking.mbr import Utility
from models.reranking.ranking import MAX_POSTERIOR_SCALE, LogLinearModel, Profile, check_posterior_scale
from service.schemas.wire import (
    LengthExponent,
    MixtureWeight,
    ModelName,
    Name,
    TimedRequest,
    Weight,
    WireModel,
    parse_json,
    parse_lines,
    parse_query,
    schema_only,
)
from service.use_cases.candidate_features import (
    MAX_MODELS,
    ModelChoice,
    ScoreMode,
    ScoringModels,
    ScoringOptions,
)
from service.use_cases.inputs import Limits
from service.use_cases.rerank import RankedList, RerankItem, RerankOptions, Turn
from service.use_cases.score import Detail, DetailName, token_scores, word_scores

_MAX_SESSION = 2048
"""Maximum of characters of a session, which has a handle for each model."""


_ONE_LIST: JsonValue = {
    "id": "utt-1",
    "candidates": [
        {"text": "return a knew list", "features": {"am": -12.1}},
        {"text": "return a new list", "features": {"am": -12.6}},
    ],
}
_ANOTHER_LIST: JsonValue = {
    "id": "utt-2",
    "candidates": [
        {"text": "raise an hour", "features": {"am": -8.3}},
        {"text": "raise an error", "features": {"am": -8.4}},
    ],
}


@with_config(WireModel.model_config)
@dataclass(frozen=True, slots=True)
class CandidateIn(Candidate):
    """A hypothesis: its text, and features such as an acoustic score."""

    text: str
    features: dict[str, float] = field(default_factory=dict)
    """Natural logarithms, larger is better, unless the weights say otherwise."""


class CandidateListIn(WireModel):
    """The hypotheses for one input, in first-pass order."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ONE_LIST, _ANOTHER_LIST]})

    candidates: list[CandidateIn] = Field(min_length=1)
    """Whole sentences; a space is put after the context if neither side has one."""
    context: str = ""
    """What stands before each candidate; not scored."""
    continuation: str | None = None
    """If given, each candidate is itself a context, and what is scored is this text after it: query likelihood."""
    session: Annotated[str, Field(max_length=_MAX_SESSION)] | None = None
    """Instead of a context: what the reply to the list before gave."""
    commit: str | None = None
    """The text that was chosen of the list before: it is read before the candidates, and begins a session or goes on
    with one."""
    id: str | None = None
    """Given back in the reply."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self._has_turn and (self.context or self.continuation is not None):
            raise PydanticCustomError(
                "either",
                "a list with session or commit takes neither context nor continuation: commit the context",
            )
        return self

    @property
    def _has_turn(self) -> bool:
        return self.session is not None or self.commit is not None

    def item(self) -> RerankItem:
        """Convert the list to an item of the use case."""
        given = CandidateList(self.id, self.context, tuple(self.candidates), continuation=self.continuation)
        return RerankItem(given, Turn(self.session, self.commit) if self._has_turn else None)


class MixturePart(WireModel):
    """A model whose probabilities are mixed with those of others at every token."""

    model: str
    """`name`, `name@7` or `name@champion`; all parts have the same tokenizer."""
    weight: MixtureWeight
    """Positive; all together sum to 1."""


Mixture = Annotated[list[MixturePart], Field(min_length=1), schema_only(maxItems=MAX_MODELS)]


def main_models(
    model: str | None, mixture: Sequence[MixturePart] | None
) -> tuple[tuple[str | None, float], ...]:
    """Return the addresses and weights of the models of `lm`; None for the default model.

    Raises:
        InvalidInputError: a mixture is given beside a model.
    """
    if mixture is None:
        return ((model, 1.0),)
    if model is not None:
        raise InvalidInputError("give either model or mixture", parameter="mixture")
    return tuple((part.model, part.weight) for part in mixture)


class FurtherModel(WireModel):
    """A model with features of its own: `lm:NAME`, `tokens:NAME`, `unk:NAME`."""

    model: str
    """`name`, `name@7` or `name@champion`."""
    name: ModelName
    """What it is called in features."""
    weight: Weight | None = None
    """The same as a weight of `lm:NAME`; negative to take away what the model says."""


class RerankSettings(TimedRequest):
    """Settings of re-ranking."""

    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    mixture: Mixture | None = None
    """Instead of `model`: models whose probabilities are mixed at every token."""
    models: Annotated[list[FurtherModel], schema_only(maxItems=MAX_MODELS)] = Field(default_factory=list)
    """Further models, each with features of its own."""
    weights: dict[str, Weight] | None = None
    """Signed weights, by feature: total = Σ weight · feature. `lm`, `words`, `tokens` and `unk` are computed; `rank`
    and others are derived; all others are given with the candidates. A feature that is not named does not count. `lm`
    alone, with weight 1, if left out."""
    profile: Name | None = None
    """Weights that were tuned and saved under this name, with length exponent, posterior scale and models, as far as
    the request does not give them itself."""
    length_exponent: LengthExponent | None = None
    """`lm` is the sum of the tokens' log-probabilities divided by their number to this power: 0 (default) the sum, 1
    the mean. If it is not 0, `lm_sum` is the sum."""
    posterior_scale: Annotated[float, schema_only(minimum=0, maximum=MAX_POSTERIOR_SCALE)] | None = None
    """posterior = exp(scale · total), normalised over the list; 1 if left out, 0 makes all alike."""
    mbr: Utility | None = None
    """Order by the utility that is expected under the posteriors, instead of the total: fewest word errors (`wer`), or
    highest sentence `chrf` or `bleu`."""
    confidences: bool = False
    """Whether to tell how sure the list is of each word of the best candidate."""
    detail: DetailName = Detail.NONE
    """How finely to report what the main model says: `none`, `token` or `word`."""
    bos: bool = True
    """Whether `<s>` stands before each candidate, or before its context."""
    eos: bool = True
    """Whether `</s>` after each is scored too."""
    score_mode: ScoreMode = "normalised"
    """`unnormalised`: `lm` is the sum of the tokens' logits, which a model that was trained for it gives
    faster, as it spares the sum over the vocabulary; they come near log-probabilities but are none."""
    drop_duplicates: bool = False
    """Whether a candidate of the same text as one before it is left out."""
    top: Annotated[int, Field(ge=1)] | None = None
    """How many candidates of each list to report; all if left out."""
    commit_eos: bool = False
    """Whether `</s>` is read after what a session commits, as models of running text expect between sentences."""

    def options(self, profile: Profile | None) -> RerankOptions:
        """Return the options of re-ranking.

        Args:
            profile: profile that `profile` names, if it names one.

        Raises:
            InvalidInputError: a weight, an exponent or a scale is outside its limits.
        """
        weights = self.weights
        if weights is None:
            weights = {LM: 1.0} if profile is None else dict(profile.weights)
        exponent, scale = self.length_exponent, self.posterior_scale
        if exponent is None:
            exponent = 0.0 if profile is None else profile.length_exponent
        if scale is None:
            scale = 1.0 if profile is None else profile.posterior_scale
        check_posterior_scale(scale)
        return RerankOptions(
            weighting=LogLinearModel(weights={**weights, **self._model_weights()}, length_exponent=exponent),
            scoring=ScoringOptions(bos=self.bos, eos=self.eos, score_mode=self.score_mode),
            posterior_scale=scale,
            mbr=self.mbr,
            confidences=self.confidences,
            detail=self.detail,
            drop_duplicates=self.drop_duplicates,
            top=self.top,
            commit_eos=self.commit_eos,
        )

    def choice(self, profile: Profile | None) -> ModelChoice:
        """Return the choice of scoring models.

        Args:
            profile: profile that `profile` names; its models are used if the request names none.

        Raises:
            InvalidInputError: a mixture is given beside a model, or is invalid, or there are too many models.
        """
        parts = main_models(self.model, self.mixture)
        if profile is not None and self.model is None and self.mixture is None and not self.models:
            main = tuple((entry.address, entry.weight) for entry in profile.models if not entry.name)
            return ModelChoice(
                main, tuple((entry.name, entry.address) for entry in profile.models if entry.name)
            )
        return ModelChoice(parts, tuple((further.name, further.model) for further in self.models))

    def _model_weights(self) -> dict[str, float]:
        """Return the weights given beside models.

        Raises:
            InvalidInputError: a weight is given in `weights` as well.
        """
        given = {feature_name(LM, m.name): m.weight for m in self.models if m.weight is not None}
        duplicate = next((name for name in given if name in (self.weights or {})), None)
        if duplicate is not None:
            raise InvalidInputError(
                f"the weight of {duplicate} is given twice, in models and in weights", parameter="models"
            )
        return given


def items_of_format(
    body: bytes, format_name: str, limits: Limits, *, reserved: Callable[[str], bool]
) -> Iterator[RerankItem | InvalidInputError]:
    """Parse lists in another program's format one by one when needed; yield an error for an invalid line.

    Args:
        body: lists in that format.
        format_name: one of `FORMAT_NAMES`.
        limits: limits of one list.
        reserved: predicate of names of computed features; a given `lm` becomes `old_lm`.
    """
    empty = True
    for parsed in read_bytes(body, format_name, reserved=reserved):
        empty = False
        if isinstance(parsed, BadLine):
            yield InvalidInputError(str(parsed))
            continue
        try:
            limits.check_count(len(parsed.candidates), parameter="candidates")
            yield RerankItem(parsed)
        except InvalidInputError as error:
            yield error
    if empty:
        yield InvalidInputError("the body has no lists")


_EXAMPLE: JsonValue = {
    "lists": [
        {
            "id": "utt-1",
            "context": "how do I",
            "candidates": [
                {"text": "return a knew list", "features": {"am": -12.1}},
                {"text": "return a new list", "features": {"am": -12.6}},
            ],
        }
    ],
    "models": [{"model": "ngram", "name": "old", "weight": -0.2}],
    "weights": {"lm": 0.7, "am": 1.0, "words": 0.3, "unk": -2.0},
    "mbr": "wer",
    "confidences": True,
}


class RerankRequest(RerankSettings):
    """Order lists of candidates by a weighted sum of features."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    lists: list[CandidateListIn] = Field(min_length=1)
    """One or more lists."""

    def items(self, limits: Limits) -> list[RerankItem]:
        """Return the items to re-rank.

        Raises:
            InvalidInputError: there are too many candidates in all lists.
        """
        limits.check_count(sum(len(given.candidates) for given in self.lists), parameter="lists[].candidates")
        return [given.item() for given in self.lists]


def rerank_items(body: bytes, limits: Limits) -> Iterator[RerankItem | InvalidInputError]:
    """Parse lines one by one when needed; yield an error for an invalid line."""

    def parse(line: bytes) -> RerankItem:
        given = parse_json(CandidateListIn, line)
        limits.check_count(len(given.candidates), parameter="candidates")
        return given.item()

    return parse_lines(body, parse)


def read_rerank_query(query: Mapping[str, str]) -> RerankSettings:
    """Parse the settings in a query string.

    `weights=lm=0.5,am=1`, `mixture=ngram=0.3,lstm=0.7` and `models=old=small@3` are written as pairs, all others
    as plain values.

    Raises:
        InvalidInputError: a setting is unknown or invalid.
    """
    fields: dict[str, Any] = dict(query)
    if "weights" in fields:
        fields["weights"] = parse_weights(fields["weights"], parameter="weights")
    if "mixture" in fields:
        parts = parse_weights(fields["mixture"], parameter="mixture")
        fields["mixture"] = [{"model": model, "weight": weight} for model, weight in parts.items()]
    if "models" in fields:
        named = parse_names(fields["models"], parameter="models")
        fields["models"] = [{"name": name, "model": model} for name, model in named.items()]
    return parse_query(RerankSettings, fields)


def parse_weights(text: str, *, parameter: str) -> dict[str, float]:
    """Parse pairs like `lm=0.7,am=1`.

    Raises:
        InvalidInputError: a part is not NAME=NUMBER.
    """
    weights = {}
    for name, value in parse_names(text, parameter=parameter).items():
        try:
            weights[name] = float(value)
        except ValueError:
            raise InvalidInputError(
                f"{parameter} takes NAME=NUMBER,…, given {f'{name}={value}'!r}", parameter=parameter
            ) from None
    return weights


def parse_names(text: str, *, parameter: str) -> dict[str, str]:
    """Parse pairs like `old=small@3,new=lstm`.

    Raises:
        InvalidInputError: a part is not NAME=VALUE, or a name comes twice.
    """
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise InvalidInputError(
                f"{parameter} takes NAME=VALUE,…, given {part.strip()[:80]!r}", parameter=parameter
            )
        if name in values:
            raise InvalidInputError(f"{parameter} has {name[:80]!r} twice", parameter=parameter)
        values[name] = value
    return values


_BATCH_CANDIDATES = 128
"""Candidates in one chunk; other requests run between chunks."""


def rerank_reply_chunks(
    lists: Sequence[RankedList], models: ScoringModels, options: RerankOptions, limits: Limits
) -> Iterator[bytes]:
    """Yield the JSON of a reply.

    Raises:
        InvalidInputError: the reply would list too many tokens.
    """
    if options.detail is not Detail.NONE and models.parts:
        limits.check_entries(
            int(sum(r.feature_values[:, r.feature_names.index(NUM_TOKENS)].sum() for r in lists)),
            parameter="detail",
            description=f"detail is {options.detail.value!r} for all candidates of {len(lists)} lists",
            instead="send lines, application/x-ndjson, for more",
        )
    yield _reply_head(models, options)
    for number, ranked in enumerate(lists):
        if number:
            yield b","
        yield from list_chunks(ranked, models, options)
    yield b"]}"


def main_address(models: ScoringModels) -> str | None:
    """Return the main model's address, for a mixture those of its parts with their weights, or None without one."""
    if not models.parts:
        return None
    if len(models.parts) == 1:
        return models.parts[0].address
    weighted = zip(models.mixture_weights, models.parts, strict=True)
    return " + ".join(f"{weight:g} {part.address}" for weight, part in weighted)


def list_chunks(ranked: RankedList, models: ScoringModels, options: RerankOptions) -> Iterator[bytes]:
    """Yield the JSON of one list, best candidate first."""
    head: dict[str, Any] = {"id": ranked.given.name, "unchanged": ranked.ranking.unchanged}
    if ranked.session is not None:
        head["session"] = ranked.session
    if options.confidences:
        head["confidences"] = [
            {"text": word, "start": start, "end": end, "confidence": confidence}
            for word, start, end, confidence in ranked.confidences
        ]
    yield to_json(head)[:-1] + b',"ranking":['
    count = len(ranked.ranking.order) if options.top is None else min(options.top, len(ranked.ranking.order))
    for first in range(0, count, _BATCH_CANDIDATES):
        part = slice(first, min(first + _BATCH_CANDIDATES, count))
        yield (b"," if first else b"") + to_json(_candidates(ranked, part, models, options))[1:-1]
    yield b"]}"


def _reply_head(models: ScoringModels, options: RerankOptions) -> bytes:
    """Return the JSON of the reply before the lists."""
    head = {
        "model": main_address(models),
        "models": {name: loaded.address for name, loaded in models.extra.items()},
        "weights": dict(options.weighting.weights),
        "length_exponent": options.weighting.length_exponent,
        "posterior_scale": options.posterior_scale,
    }
    return to_json(head)[:-1] + b',"lists":['


def _candidates(
    ranked: RankedList, part: slice, models: ScoringModels, options: RerankOptions
) -> list[dict[str, Any]]:
    order = ranked.ranking.order[part]
    positions = order.tolist()
    candidates, names = ranked.given.candidates, ranked.feature_names
    written: list[dict[str, Any]] = [
        {
            "index": index,
            "text": candidates[position].text,
            "total": total,
            "posterior": posterior,
            "features": {**candidates[position].features, **dict(zip(names, values, strict=True))},
        }
        for position, index, total, posterior, values in zip(
            positions,
            ranked.indices[order].tolist(),
            ranked.totals[order].tolist(),
            ranked.ranking.posteriors[part].tolist(),
            ranked.feature_values[order].tolist(),
            strict=True,
        )
    ]
    if ranked.utilities is not None:
        for fields, utility in zip(written, ranked.utilities[order].tolist(), strict=True):
            fields["expected_utility"] = utility
    if options.detail is not Detail.NONE:
        for fields, position in zip(written, positions, strict=True):
            fields.update(_detail(ranked, position, models, options.detail))
    return written


def _detail(ranked: RankedList, position: int, models: ScoringModels, detail: Detail) -> dict[str, Any]:
    """Return the main model's scores of a candidate's tokens or words."""
    if ranked.tokens is None:
        return {}
    scores = ranked.tokens(position)
    if detail is Detail.TOKEN:
        return {"tokens": token_scores(models.parts[0], *scores)}
    return {"words": word_scores(models.parts[0], *scores)}
