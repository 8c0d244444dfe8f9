"""What is answered to POST /v1/rerank/tune, and told by `gramophone tune --json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from models.reranking.derived import RANK, needs_tokens
from models.reranking.features import LM_SUM, MODEL_FEATURES, feature_model
from models.reranking.tuning.fitting import FittedWeights
from models.reranking.tuning.outcome import FoldOutcome
from service.use_cases.scoring_models import ScoringModels
from service.use_cases.tune import TuneResult


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
"""What a profile holds elsewhere than in its figures."""


def tune_reply(tuned: TuneResult, models: ScoringModels, *, main: str | None, created: str) -> TuneReply:
    """What tuning found as it goes over the wire.

    Args:
        tuned: what it found.
        models: that scored.
        main: what the main model is called in replies.
        created: now, in ISO 8601, UTC.
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
    """Weights that are not 0, by feature; those that keep the first pass's order where it is kept."""
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
    """A profile that has no name yet."""
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
    """The models without which the weights cannot be applied."""
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
