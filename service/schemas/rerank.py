"""POST /v1/rerank."""

from pydantic import Field

from models.reranking.log_linear import LM, LogLinearModel
from service.engine.host import LoadedModel
from service.schemas.replies import RankedCandidate, RankedListResult, RerankReply
from service.schemas.wire import TimedRequest, WireModel
from service.use_cases.limits import Limits
from service.use_cases.rerank import Candidate, CandidateList, RankedList, RerankCommand, ScoreMode


class CandidateIn(WireModel):
    """A hypothesis: its text, and features such as an acoustic score."""

    text: str
    features: dict[str, float] = Field(default_factory=dict)


class CandidateListIn(WireModel):
    """The hypotheses for one input, in first-pass order."""

    candidates: list[CandidateIn] = Field(min_length=1)
    """Whole sentences; a space is put after the context if neither side has one."""
    context: str = ""
    """What stands before each candidate."""
    id: str | None = None
    """Given back in the reply."""


class RerankRequest(TimedRequest):
    """Order lists of candidates by a weighted sum of features."""

    lists: list[CandidateListIn] = Field(min_length=1)
    """One or more lists."""
    weights: dict[str, float] = Field(default_factory=lambda: {LM: 1.0})
    """Signed weights; `lm`, `words` and `tokens` are computed, others are given with the candidates.
    A feature that is not named does not count."""
    length_exponent: float = 0.0
    """`lm` is divided by the number of tokens to this power."""
    score_mode: ScoreMode = "normalised"
    """`unnormalised`: `lm` is the sum of the tokens' logits, which a model that was trained for it gives
    faster, as it spares the sum over the vocabulary; they come near log-probabilities but are none."""
    model: str | None = None
    """`name`, `name@7` or `name@champion`; the service's default if it is left out."""

    def command(self, limits: Limits) -> RerankCommand:
        """The request as its use case takes it.

        Raises:
            InvalidInputError: there are too many candidates, or features and weights do not fit.
        """
        limits.check_count(sum(len(one.candidates) for one in self.lists), parameter="lists[].candidates")
        weighting = LogLinearModel(weights=self.weights, length_exponent=self.length_exponent)
        for i, one in enumerate(self.lists):
            for j, candidate in enumerate(one.candidates):
                place = f"lists[{i}].candidates[{j}].features"
                weighting.check_features(candidate.features, parameter=place)
        return RerankCommand(
            tuple(
                CandidateList(
                    one.id, one.context, tuple(Candidate(c.text, c.features) for c in one.candidates)
                )
                for one in self.lists
            ),
            weighting,
            self.model,
            self.score_mode,
        )


def rerank_reply(loaded: LoadedModel, lists: list[RankedList]) -> RerankReply:
    """The rankings as they go over the wire."""
    return RerankReply(loaded.address, [_list(one) for one in lists])


def _list(ranked: RankedList) -> RankedListResult:
    return RankedListResult(
        ranked.given.name,
        ranked.ranking.unchanged,
        [
            RankedCandidate(
                index,
                ranked.given.candidates[index].text,
                float(ranked.totals[index]),
                posterior,
                ranked.features[index],
            )
            for index, posterior in zip(
                ranked.ranking.order.tolist(), ranked.ranking.posteriors.tolist(), strict=True
            )
        ],
    )
