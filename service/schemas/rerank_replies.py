"""POST /v1/rerank: what is answered, written in pieces, since lists may be many and long.

The names are those of `RerankReply` in `service.schemas.replies`. Dictionaries are written here and not its objects: a
candidate then takes a third of the time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from models.reranking.features import NUM_TOKENS
from service.schemas.score import token_scores, word_scores
from service.use_cases.limits import Limits
from service.use_cases.rerank import RankedList, RerankOptions
from service.use_cases.score import Detail
from service.use_cases.scoring_models import ScoringModels

_BATCH_CANDIDATES = 128
"""Candidates written before other requests have their turn."""


def rerank_reply_chunks(
    lists: Sequence[RankedList], models: ScoringModels, options: RerankOptions, limits: Limits
) -> Iterator[bytes]:
    """The whole answer.

    Raises:
        InvalidInputError: it would report too many tokens one by one.
    """
    if options.detail is not Detail.NONE and models.parts:
        limits.check_entries(
            int(sum(one.feature_values[:, one.feature_names.index(NUM_TOKENS)].sum() for one in lists)),
            parameter="detail",
            description=f"detail is {options.detail.value!r} for all candidates of {len(lists)} lists",
            instead="send lines, application/x-ndjson, for more",
        )
    yield _reply_head(models, options)
    for number, one in enumerate(lists):
        if number:
            yield b","
        yield from list_chunks(one, models, options)
    yield b"]}"


def main_address(models: ScoringModels) -> str | None:
    """The main model's address; of a mixture those of its parts, with their weights; None where no model scores."""
    if not models.parts:
        return None
    if len(models.parts) == 1:
        return models.parts[0].address
    weighted = zip(models.mixture_weights, models.parts, strict=True)
    return " + ".join(f"{weight:g} {part.address}" for weight, part in weighted)


def list_chunks(ranked: RankedList, models: ScoringModels, options: RerankOptions) -> Iterator[bytes]:
    """One list as JSON, best candidate first."""
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
        some = slice(first, min(first + _BATCH_CANDIDATES, count))
        yield (b"," if first else b"") + to_json(_candidates(ranked, some, models, options))[1:-1]
    yield b"]}"


def _reply_head(models: ScoringModels, options: RerankOptions) -> bytes:
    """All that stands before the lists."""
    about = {
        "model": main_address(models),
        "models": {name: loaded.address for name, loaded in models.extra.items()},
        "weights": dict(options.weighting.weights),
        "length_exponent": options.weighting.length_exponent,
        "posterior_scale": options.posterior_scale,
    }
    return to_json(about)[:-1] + b',"lists":['


def _candidates(
    ranked: RankedList, some: slice, models: ScoringModels, options: RerankOptions
) -> list[dict[str, Any]]:
    order = ranked.ranking.order[some]
    places = order.tolist()
    candidates, names = ranked.given.candidates, ranked.feature_names
    written: list[dict[str, Any]] = [
        {
            "index": index,
            "text": candidates[place].text,
            "total": total,
            "posterior": posterior,
            "features": {**candidates[place].features, **dict(zip(names, values, strict=True))},
        }
        for place, index, total, posterior, values in zip(
            places,
            ranked.indices[order].tolist(),
            ranked.totals[order].tolist(),
            ranked.ranking.posteriors[some].tolist(),
            ranked.feature_values[order].tolist(),
            strict=True,
        )
    ]
    if ranked.utilities is not None:
        for one, utility in zip(written, ranked.utilities[order].tolist(), strict=True):
            one["expected_utility"] = utility
    if options.detail is not Detail.NONE:
        for one, place in zip(written, places, strict=True):
            one.update(_detail(ranked, place, models, options.detail))
    return written


def _detail(ranked: RankedList, place: int, models: ScoringModels, detail: Detail) -> dict[str, Any]:
    """What the main model says of a candidate's tokens or words."""
    if ranked.tokens is None:
        return {}
    scores = ranked.tokens(place)
    if detail is Detail.TOKEN:
        return {"tokens": token_scores(models.parts[0], *scores)}
    return {"words": word_scores(models.parts[0], *scores)}
