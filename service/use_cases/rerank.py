"""Putting candidates in a better order."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.errors import UnsupportedParameterError
from models.protocol import LanguageModel, UnnormalisedScorer, is_self_normalised
from models.reranking.log_linear import LogLinearModel, Scored
from models.reranking.ranking import Ranking, rank
from models.scoring import score_sequences
from models.vocabulary import EOS
from service.engine.host import LoadedModel
from service.engine.job import Work
from service.engine.reading import Scorer
from service.use_cases.limits import Limits
from service.use_cases.reading_order import as_read
from service.use_cases.sequence_scores import score_all
from service.use_cases.tokens import Sequence, SharedContexts, encode_after, in_steps

ScoreMode = Literal["normalised", "unnormalised"]
"""Whether `lm` is a log-probability, or what a self-normalised model says without dividing by a sum."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A hypothesis with the features the caller gave it."""

    text: str
    features: dict[str, float]


@dataclass(frozen=True, slots=True)
class CandidateList:
    """The hypotheses for one input; at least one.

    Attributes:
        name: the caller's id for it.
        context: what stands before each candidate; may be empty.
        candidates: in first-pass order.
    """

    name: str | None
    context: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class RerankCommand:
    """A valid request to re-rank; every candidate has the features that have weights."""

    lists: tuple[CandidateList, ...]
    weighting: LogLinearModel
    model: str | None
    score_mode: ScoreMode = "normalised"


class RankedList(NamedTuple):
    """A list in its new order.

    Attributes:
        given: the list.
        ranking: its order and posteriors.
        totals: of the candidates in the order given [C].
        features: of the candidates in the order given, the computed ones included.
    """

    given: CandidateList
    ranking: Ranking
    totals: npt.NDArray[np.float64]
    features: list[dict[str, float]]


def rerank(loaded: LoadedModel, command: RerankCommand, limits: Limits) -> Work[Any, list[RankedList]]:
    """Score every candidate as a whole sentence after its context, and order each list anew.

    Candidates of the same text after the same context are scored once.

    Raises:
        ContextLengthError: a candidate with its context has too many tokens.
        UnsupportedParameterError: there is a context, and the model reads from right to left; or
            unnormalised scores are asked of a model that was not trained for them.
    """
    scorer = _scorer(loaded, command.score_mode)
    named: dict[tuple[str, str], str] = {}
    for i, given in enumerate(command.lists):
        for j, candidate in enumerate(given.candidates):
            named.setdefault((given.context, candidate.text), f"lists[{i}].candidates[{j}].text")
    places = {key: place for place, key in enumerate(named)}
    contexts = SharedContexts()

    def prepare(item: tuple[tuple[str, str], str]) -> Sequence:
        (context, text), parameter = item
        return contexts.share(_sequence(loaded, context, text, parameter=parameter, limits=limits))

    sequences = yield from in_steps(named.items(), prepare, size=lambda item: sum(map(len, item[0])))
    scores = yield from score_all(loaded, sequences, bos=True, scorer=scorer)
    sums = [(float(s.sum(dtype=np.float64)), len(s)) for s in scores]
    answers = []
    for given in command.lists:
        features = [
            Scored(c.text, *sums[places[given.context, c.text]], c.features).all_features()
            for c in given.candidates
        ]
        totals = command.weighting.totals(features)
        answers.append(RankedList(given, rank(totals), totals, features))
        yield None
    return answers


def _scorer(loaded: LoadedModel, mode: ScoreMode) -> Scorer:
    if mode == "normalised":
        return score_sequences
    if not is_self_normalised(loaded.model):
        raise UnsupportedParameterError(
            f"score_mode is {mode!r}, but model {loaded.address} was not trained for unnormalised scores "
            "(train.self_normalise or train.loss=nce); use 'normalised'",
            parameter="score_mode",
        )
    return _unnormalised


def _unnormalised(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
    scores: FloatArray = cast("UnnormalisedScorer[Any]", model).score_unnormalised(state, tokens, lengths)
    return scores


def _sequence(loaded: LoadedModel, context: str, text: str, *, parameter: str, limits: Limits) -> Sequence:
    apart = not context or not text or context[-1].isspace() or text[0].isspace()
    limits.check_characters(context, text, parameter=parameter)
    encoded = encode_after(loaded, context if apart else context + " ", text, parameter=parameter)
    before, ids = as_read(loaded, encoded, parameter=parameter)
    ids = np.append(ids, EOS)
    limits.check_length(len(before) + len(ids), parameter=parameter)
    return Sequence(before, ids)
