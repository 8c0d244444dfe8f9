"""Scores and qualities of texts."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from models.errors import InvalidInputError
from service.engine.job import Work
from service.operations.operation import BYTES_PER_TOKEN, Call, Cost, LinesOperation
from service.schemas.pieces import ENTRIES_PER_PIECE, json_pieces
from service.schemas.replies import QualityReply, TextQualityResult, to_json
from service.schemas.wire import parse_json, parse_lines
from service.use_cases.score import (
    QualityLine,
    QualityOutcome,
    QualityRequest,
    QualitySettings,
    ScoreLine,
    ScoreRequest,
    ScoreSettings,
    SequenceScore,
    quality,
    score,
    score_reply,
    score_result,
    score_totals,
)
from service.use_cases.sequence_scoring import ScoreItem


class Score(LinesOperation[ScoreItem, SequenceScore]):
    """Compute log-probabilities and perplexities of texts.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` or
    `token_ids` and optionally `context`; `model`, `bos`, `eos` and `detail` are in the query
    string. The reply has one line per body line, in order: a result, or `{"error": …}`. If the
    service fails midway, the last line is an error.
    """

    request, settings = ScoreRequest, ScoreSettings
    may_run_inline = True

    def __init__(self, call: Call, given: ScoreSettings) -> None:
        self.given, self._limits, self.items, self._context = given, call.limits, [], 0
        if isinstance(given, ScoreRequest):
            self.items = given.items(call.limits)
            self._context = len(given.context) // BYTES_PER_TOKEN
        else:
            self._limits = replace(call.limits, max_reply_entries=sys.maxsize)
        super().__init__(call, call.resolve(given.model))
        self.slots = given.slots

    @override
    def cost(self) -> Cost:
        read, count = self.call.num_tokens, len(self.items)
        entries = read if self.given.reports_tokens else count
        # a context is read with each text: both are tokenised together
        return Cost(read, reread=count * self._context, entries=entries)

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[ScoreItem | InvalidInputError]:
        return parse_lines(body, lambda line: parse_json(ScoreLine, line).item())

    @override
    def answer(self, items: Sequence[ScoreItem]) -> Work[Any, Sequence[SequenceScore]]:
        return score(self.models[0], items, self.given, self._limits)

    @override
    def reply(self, result: Sequence[SequenceScore]) -> bytes | Iterator[bytes]:
        loaded, detail = self.models[0], self.given.detail
        num_tokens = self._count(result)
        entries = num_tokens if self.given.reports_tokens else len(result)
        if entries <= ENTRIES_PER_PIECE:
            return to_json(score_reply(loaded, result, detail))
        return json_pieces(
            score_totals(loaded, result),
            "results",
            result,
            lambda one: score_result(loaded, one, detail),
            entries=entries,
        )

    @override
    def line(self, result: SequenceScore) -> Iterable[bytes]:
        self._count([result])
        return [to_json(score_result(self.models[0], result, self.given.detail))]

    def _count(self, scores: Sequence[SequenceScore]) -> int:
        num_tokens = sum(len(score.ids) for score in scores)
        self.call.count_scored(self.models[0], num_tokens)
        return num_tokens


class Quality(LinesOperation[ScoreItem, QualityOutcome]):
    """Rate texts for corpus filtering: bits per word and per byte, and the difference between two models.

    With `Content-Type: application/x-ndjson`, each line of the body is an object with `text` and optionally `id`;
    `model` and `against` are in the query string. The reply has one line per body line, in order: a result, or
    `{"error": …}`. If the service fails midway, the last line is an error.
    """

    request, settings = QualityRequest, QualitySettings

    def __init__(self, call: Call, given: QualitySettings) -> None:
        self.items = given.items(call.limits) if isinstance(given, QualityRequest) else []
        against = [] if given.against is None else [call.resolve(given.against)]
        super().__init__(call, call.resolve(given.model), *against)  # last: the log line names the last one

    @override
    def cost(self) -> Cost:
        read = self.call.num_tokens
        return Cost(read, reread=(len(self.models) - 1) * read, entries=len(self.items))

    @override
    def parse_lines(self, body: bytes, form: str) -> Iterator[ScoreItem | InvalidInputError]:
        return parse_lines(body, lambda line: parse_json(QualityLine, line).item())

    @override
    def answer(self, items: Sequence[ScoreItem]) -> Work[Any, Sequence[QualityOutcome]]:
        loaded, *against = self.models
        return quality(loaded, against[0] if against else None, items, self.call.limits)

    @override
    def reply(self, result: Sequence[QualityOutcome]) -> bytes:
        loaded, *against = self.models
        address = against[0].address if against else None
        return to_json(QualityReply(loaded.address, address, [self._counted(one) for one in result]))

    @override
    def line(self, result: QualityOutcome) -> Iterable[bytes]:
        return [to_json(self._counted(result))]

    def _counted(self, outcome: QualityOutcome) -> TextQualityResult:
        result, *num_tokens = outcome
        for loaded, number in zip(self.models, num_tokens, strict=False):
            self.call.count_scored(loaded, number)
        return result
