"""Schemas of POST /v1/rerank/tune; `gramophone tune --json` prints the same reply."""

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from models.errors import InvalidInputError
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.features import LM_SUM, MODEL_FEATURES, RANK, feature_model, needs_tokens
from models.reranking.metrics import make_metric
from models.reranking.metrics.metric import NORMALISERS, UNCHANGED
from models.reranking.metrics.significance import MAX_SAMPLES
from models.reranking.tuning.cross_fitting import MAX_FEATURES, FoldOutcome
from models.reranking.tuning.fitting import (
    MAX_EXPONENTS,
    MAX_FOLDS,
    MAX_RESAMPLES,
    MAX_RESTARTS,
    MAX_SEED,
    MIN_SAMPLES,
    FittedWeights,
    TuningSettings,
)
from service.schemas.rerank import CandidateIn, Mixture, main_models
from service.schemas.wire import (
    LengthExponent,
    ModelName,
    Probability,
    TimedRequest,
    WireModel,
    schema_only,
    shared_fields,
)
from service.use_cases.candidate_features import MAX_MODELS, ModelChoice, ScoringModels
from service.use_cases.tune import TuneCommand, TuneResult, check_candidate_count

_DEFAULTS = TuningSettings()
_CANDIDATES_PER_STEP = 512


class ReferredListIn(WireModel):
    """The hypotheses for one input, in first-pass order, and what is right."""

    candidates: list[CandidateIn] = Field(min_length=1)
    """Whole sentences, as in /v1/rerank."""
    reference: str | None = None
    """What is right. A list without it is left out."""
    references: list[str] | None = Field(default=None, min_length=1)
    """Instead, where there are several ways to say it."""
    context: str = ""
    """What stands before each candidate; not scored."""
    continuation: str | None = None
    """If given, each candidate is itself a context, and what is scored is this text after it."""
    id: str | None = None
    """For your own use."""

    @model_validator(mode="after")
    def _either(self) -> Self:
        if self.reference is not None and self.references is not None:
            raise PydanticCustomError("either", "give either reference or references")
        return self

    def given(self) -> CandidateList:
        """Convert the list to one of the use case."""
        references = tuple(self.references or ()) if self.reference is None else (self.reference,)
        candidates = tuple(Candidate(c.text, c.features) for c in self.candidates)
        return CandidateList(self.id, self.context, candidates, references, self.continuation)


class TunedModel(WireModel):
    """A model with features of its own: `lm:NAME`, `unk:NAME`."""

    model: str
    """`name`, `name@7` or `name@champion`."""
    name: ModelName
    """What it is called in features."""


class TuneSettings(TimedRequest):
    """Settings of tuning and of its evaluation."""

    metric: Literal["wer", "cer", "bleu", "chrf"] = "wer"
    """What to tune for."""
    normaliser: Annotated[str, schema_only(enum=list(NORMALISERS))] = UNCHANGED
    """What is done to texts before words or characters are compared, of `wer` and `cer`: `none`, `lower` or
    `lower-unpunctuated`."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""
    mixture: Mixture | None = None
    """Instead of `model`: models whose probabilities are mixed at every token."""
    models: Annotated[list[TunedModel], schema_only(maxItems=MAX_MODELS)] = Field(default_factory=list)
    """Further models, each with features of its own."""
    given_only: bool = False
    """Whether no model scores: only what is given with the candidates, and what is derived of it, gets weights."""
    features: Annotated[list[str], schema_only(minItems=1, maxItems=MAX_FEATURES)] | None = None
    """What may have a weight. If left out: `rank` and `rank:log`; what is given with every candidate, and, if it looks
    like a mean over the text, also times its words and characters; `lm` and `unk` of each model; `words`."""
    length_exponents: Annotated[list[LengthExponent], schema_only(minItems=1, maxItems=MAX_EXPONENTS)] = (
        Field(default_factory=lambda: list(_DEFAULTS.length_exponents))
    )
    """Of `lm`, to choose from, the simplest first."""
    folds: Annotated[int, schema_only(minimum=2, maximum=MAX_FOLDS)] = _DEFAULTS.folds
    """Parts of the lists, each of which is held out once."""
    seed: Annotated[int, schema_only(minimum=0, maximum=MAX_SEED)] = _DEFAULTS.seed
    """Of folds and random starts: equal seeds give equal replies."""
    restarts: Annotated[int, schema_only(minimum=0, maximum=MAX_RESTARTS)] = _DEFAULTS.restarts
    """Random starts of a search, beside those from each feature alone."""
    resamples: Annotated[int, schema_only(minimum=1, maximum=MAX_RESAMPLES)] = _DEFAULTS.resamples
    """Resamples of the lists; the weights are the mean of what is best for each."""
    max_p_value: Probability = _DEFAULTS.max_p_value
    """How probable by chance a gain may be at most for the weights to be used; 1 takes what is better at all."""
    bootstrap_samples: Annotated[int, schema_only(minimum=MIN_SAMPLES, maximum=MAX_SAMPLES)] = (
        _DEFAULTS.bootstrap_samples
    )
    """That this probability is told from."""

    def command(self, lists: tuple[CandidateList, ...]) -> TuneCommand:
        """Build the command to tune.

        Args:
            lists: lists to tune on.

        Raises:
            InvalidInputError: a value is outside its limits.
        """
        counts = {len(given.references) for given in lists if given.references}
        return TuneCommand(
            lists=lists,
            metric=make_metric(
                self.metric,
                num_references=counts.pop() if len(counts) == 1 else None,
                normaliser=self.normaliser,
            ),
            features=None if self.features is None else tuple(self.features),
            settings=TuningSettings(**shared_fields(self, TuningSettings)),
        )

    def choice(self) -> ModelChoice:
        """Return the choice of scoring models.

        Raises:
            InvalidInputError: a mixture is given beside a model, or is invalid; or a model beside `given_only`.
        """
        if self.given_only and (self.model is not None or self.mixture is not None or self.models):
            raise InvalidInputError("given_only is true, but models are given", parameter="given_only")
        parts = () if self.given_only else main_models(self.model, self.mixture)
        return ModelChoice(parts, tuple((model.name, model.model) for model in self.models))


_EXAMPLE_LISTS: JsonValue = [
    {
        "candidates": [
            {"text": first, "features": {"am": am}},
            {"text": second, "features": {"am": am - 0.4}},
        ],
        "reference": right,
    }
    for first, second, right, am in (
        ("return a knew list", "return a new list", "return a new list", -12.1),
        ("the name of a file", "the naim of a file", "the name of a file", -13.0),
        ("raise an hour", "raise an error", "raise an error", -8.3),
        ("call this function", "call this funk shun", "call this function", -10.2),
    )
]


class TuneRequest(TuneSettings):
    """Find weights to re-rank with, and tell what they are worth."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"lists": _EXAMPLE_LISTS, "features": ["am", "lm"], "max_p_value": 1}]
        }
    )

    lists: list[ReferredListIn] = Field(min_length=1)
    """As for /v1/rerank, with references."""

    def given(self) -> Generator[None, None, tuple[CandidateList, ...]]:
        """Convert the lists to those of the use case, in steps between which other requests run.

        Raises:
            InvalidInputError: there are more candidates than one request may have.
        """
        check_candidate_count(sum(len(wire.candidates) for wire in self.lists))
        lists: list[CandidateList] = []
        num_converted = 0
        for wire in self.lists:
            lists.append(wire.given())
            num_converted += len(wire.candidates)
            if num_converted > _CANDIDATES_PER_STEP:
                num_converted = 0
                yield
        return tuple(lists)


@dataclass(frozen=True, slots=True)
class SignificanceResult:
    """Paired bootstrap: the score tried less the baseline, its 95 % interval, and how probable by chance."""

    difference: float
    p_value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FoldResult:
    """A fold under weights that were found without it; `in_sample` is their score where they were found."""

    num_lists: int
    weights: dict[str, float]
    length_exponent: float
    baseline: float
    tuned: float
    oracle: float
    in_sample: float


@dataclass(frozen=True, slots=True)
class CountsResult:
    """Lists tuned on, left out for want of a reference, and of one text; candidates of different texts, and copies."""

    lists: int
    without_reference: int
    single: int
    candidates: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class PosteriorResult:
    """Mean −ln of the best candidates' posterior, with the scale, and if all were alike; in nats a list."""

    cross_entropy: float
    cross_entropy_uniform: float


@dataclass(frozen=True, slots=True)
class TuneReply:
    """Weights, and what they are worth.

    `decision` is `tuned` or `first_pass`, `reason` a sentence why. Scores are percent: `baseline` of the first
    candidates, `tried` of those chosen by weights that had not seen their list, `tuned` of what is answered, which
    is `tried`, or `baseline` where the first pass is kept; `oracle` of the best, `worst` of the worst.
    `significance` and `folds` are of the weights that were tried. `weights` were found on all lists; where the
    first pass is kept they are `{"rank": 1}`, which keep its order.
    `features` are all that might have had a weight, `ignored_features` those given with some candidates only.
    `profile` is what /admin/profiles stores.
    """

    decision: str
    reason: str
    weights: dict[str, float]
    length_exponent: float
    posterior_scale: float
    metric: str
    signature: str
    baseline: float
    tried: float
    tuned: float
    oracle: float
    worst: float
    significance: SignificanceResult
    folds: list[FoldResult]
    counts: CountsResult
    posteriors: PosteriorResult
    model: str | None
    models: dict[str, str]
    features: list[str]
    ignored_features: list[str]
    profile: dict[str, Any]


_NOT_FIGURES = frozenset(
    {"weights", "length_exponent", "posterior_scale", "metric", "signature", "decision", "profile"}
)
"""Fields of the reply left out of a profile's figures."""


def tune_reply(tuned: TuneResult, models: ScoringModels, *, main: str | None, created: str) -> TuneReply:
    """Return the result of tuning in wire format.

    Args:
        tuned: result of the tuner.
        models: scoring models.
        main: address of the main model in replies; None without one.
        created: current time in ISO 8601, UTC.
    """
    outcome, data = tuned.outcome, tuned.data
    metric = data.problem.metric
    reply = TuneReply(
        decision=outcome.decision,
        reason=outcome.reason,
        weights=weights_by_feature(outcome.fitted, data.problem.names),
        length_exponent=outcome.fitted.length_exponent,
        posterior_scale=outcome.posteriors.scale,
        metric=metric.name,
        signature=metric.signature,
        baseline=outcome.baseline,
        tried=outcome.tried,
        tuned=outcome.tuned,
        oracle=outcome.best,
        worst=outcome.worst,
        significance=SignificanceResult(*outcome.significance),
        folds=[_fold(fold, data.problem.names) for fold in outcome.folds],
        counts=CountsResult(**data.counts._asdict()),
        posteriors=PosteriorResult(
            outcome.posteriors.cross_entropy, outcome.posteriors.cross_entropy_uniform
        ),
        model=main,
        models={name: loaded.address for name, loaded in models.extra.items()},
        features=list(data.problem.names),
        ignored_features=list(data.ignored),
        profile={},
    )
    reply.profile.update(_profile(reply, models, created))
    return reply


def weights_by_feature(fitted: FittedWeights, names: tuple[str, ...]) -> dict[str, float]:
    """Return the non-zero weights by feature; if the first pass is kept, those that keep its order."""
    if fitted.weights is None:
        return {RANK: 1.0}
    return {name: weight for name, weight in zip(names, fitted.weights.tolist(), strict=True) if weight}


def _fold(fold: FoldOutcome, names: tuple[str, ...]) -> FoldResult:
    return FoldResult(
        num_lists=len(fold.lists),
        weights=weights_by_feature(fold.fitted, names),
        length_exponent=fold.fitted.length_exponent,
        baseline=fold.baseline,
        tuned=fold.tuned,
        oracle=fold.oracle,
        in_sample=fold.in_sample,
    )


def _profile(reply: TuneReply, models: ScoringModels, created: str) -> dict[str, Any]:
    """Return the profile in JSON, without a name."""
    fields = asdict(reply)
    return {
        "weights": reply.weights,
        "length_exponent": reply.length_exponent,
        "posterior_scale": reply.posterior_scale,
        "metric": reply.metric,
        "signature": reply.signature,
        "models": _models(reply.weights, models),
        "decision": reply.decision,
        "figures": {name: value for name, value in fields.items() if name not in _NOT_FIGURES},
        "created": created,
    }


def _models(weights: Mapping[str, float], models: ScoringModels) -> list[dict[str, Any]]:
    """Return the models that the weights need."""
    needed = {
        feature_model(name) or "" for name in weights if feature_model(name) is not None or _needs_main(name)
    }
    main = [
        {"address": part.address, "weight": weight}
        for part, weight in zip(models.parts, models.mixture_weights, strict=True)
        if "" in needed
    ]
    further = [
        {"name": name, "address": loaded.address} for name, loaded in models.extra.items() if name in needed
    ]
    return [*main, *further]


def _needs_main(feature: str) -> bool:
    return feature in {*MODEL_FEATURES, LM_SUM} or needs_tokens(feature)
