"""Files of n-best lists re-ranked: `gramophone rerank`."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import typer

from models.errors import InvalidInputError, LanguageModelError
from models.reranking.formats.writing import write_lists
from models.reranking.lists import Candidate, CandidateList
from models.reranking.metrics.choice import make_metric
from service.local.asking import RerankJob, rerank_lists
from service.local.complaints import LineWarnings
from service.local.standard_streams import binary_stream
from service.schemas.rerank_replies import list_chunks
from service.use_cases.rerank import RankedList, RerankItem

_SCORE, _OLD_SCORE = "score", "old_score"


def rerank_file(
    asked: RerankJob, lists: Iterable[CandidateList], *, file: str, target: str, output_format: str | None
) -> None:
    """Re-rank lists as they come; what is wrong with one is told on standard error, the others are written.

    Args:
        asked: which models, and how.
        lists: of a file.
        file: its name, for messages.
        target: a file or folder to write; `-` is standard output.
        output_format: None writes what POST /v1/rerank answers, a list a line.

    Raises:
        InvalidInputError: no list can be re-ranked.
        FormatError: the target cannot be written.
    """
    errors = _WordErrors()
    ranked = errors.watch(_rerank_items(asked, lists, file))
    if output_format is not None:
        cut = asked.options.top
        to = binary_stream(sys.stdout, "output") if target == "-" else Path(target)
        write_lists((reorder_list(one, cut) for one in ranked), to, output_format)
    elif target == "-":
        for one in ranked:
            typer.echo(b"".join(list_chunks(one, asked.models, asked.options)))
    else:
        raise InvalidInputError("--output needs --output-format", parameter="output")
    if line := errors.line():
        typer.echo(line, err=True)


def reorder_list(ranked: RankedList, top: int | None) -> CandidateList:
    """A list in its new order, with all features; `score` is the total, the first pass's own becomes `old_score`."""
    candidates = []
    for place in ranked.ranking.order[:top].tolist():
        features = ranked.features(place)
        if _SCORE in features:
            features[_OLD_SCORE] = features.pop(_SCORE)
        features[_SCORE] = float(ranked.totals[place])
        candidates.append(Candidate(ranked.given.candidates[place].text, features))
    given = ranked.given
    return CandidateList(given.name, given.context, tuple(candidates), given.references, given.continuation)


def _rerank_items(asked: RerankJob, lists: Iterable[CandidateList], file: str) -> Iterator[RankedList]:
    """Lists that could be re-ranked."""
    names: deque[str] = deque()

    def items() -> Iterator[RerankItem]:
        for number, one in enumerate(lists, start=1):
            names.append(f"list {number}" if one.name is None else f"list {number} ({one.name})")
            yield RerankItem(one)

    complaints, any_good = LineWarnings(), False
    for outcome in rerank_lists(asked.models, items(), asked.options):
        name = names.popleft()
        if isinstance(outcome, LanguageModelError):
            complaints.warn(f"{file}: {name}: {outcome}")
        else:
            any_good = True
            yield outcome
    if complaints.count and not any_good:
        raise InvalidInputError(f"{file}: no list can be re-ranked")
    complaints.warn_rest(file, "more lists failed")


class _WordErrors:
    """Word errors of lists with references, before and after."""

    def __init__(self) -> None:
        self._metric = make_metric("wer")
        self._totals = np.zeros(
            (3, 2), np.int64
        )  # errors and words: first candidates, chosen ones, best ones
        self._num_lists = 0

    def watch(self, ranked: Iterable[RankedList]) -> Iterator[RankedList]:
        """The same lists, counted."""
        for one in ranked:
            if one.given.references:
                texts = [candidate.text for candidate in one.given.candidates]
                errors = self._metric.statistics(texts, one.given.references)
                chosen = int(one.ranking.order[0])
                self._totals += errors[[0, chosen, int(errors[:, 0].argmin())]]
                self._num_lists += 1
            yield one

    def line(self) -> str | None:
        """The rates for people; None without references."""
        if not self._num_lists:
            return None
        first, chosen, best = self._metric.score(self._totals)
        return (
            f"word error rate of {self._num_lists:,} lists with references: first pass {first:.2f} %, "
            f"re-ranked {chosen:.2f} %, best possible {best:.2f} %"
        )
