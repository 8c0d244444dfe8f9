"""Re-ranking a stream of lists, many at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from models.errors import InvalidInputError, LanguageModelError, StatesFullError
from service.engine.job import Work
from service.use_cases.limits import Limits
from service.use_cases.rerank import CANDIDATES_PER_STEP, RankedList, RerankItem, RerankOptions, rerank
from service.use_cases.scoring_models import ScoringModels
from service.use_cases.states import OwnedStateStore

RerankOutcome: TypeAlias = RankedList | LanguageModelError
"""What became of a line; an error if it is wrong."""

RerankLine: TypeAlias = RerankItem | InvalidInputError
"""A list, or why there is none."""

_CANDIDATES_PER_BATCH = 2048
_LINES_PER_BATCH = 256
_BYTES_PER_PIECE = 1 << 15


def rerank_lines(
    models: ScoringModels,
    lines: Iterator[RerankLine],
    options: RerankOptions,
    limits: Limits,
    *,
    write: Callable[[RerankOutcome], Iterator[bytes]],
    states: OwnedStateStore | None = None,
) -> Work[bytes, None]:
    """Re-rank a stream of lists; a wrong one does not stop the others. A use case.

    Args:
        models: who scores.
        lines: a list each, or why there is none.
        options: how.
        limits: of one text with its context.
        write: makes of an outcome pieces of what is answered, each in a bounded time.
        states: where sessions are kept.

    Yields:
        Events: pieces of the answer, in order.
    """
    while batch := (yield from read_batch(lines)):
        written = bytearray()
        for outcome in (yield from rerank_batch(models, batch, options, limits, states=states)):
            for piece in write(outcome):
                written += piece
                if len(written) >= _BYTES_PER_PIECE:
                    yield bytes(written)
                    written.clear()
        yield bytes(written)


def read_batch(lines: Iterator[RerankLine]) -> Work[Any, list[RerankLine]]:
    """The next of some lines, as many as are re-ranked together; none at the end. A use case."""
    batch: list[RerankLine] = []
    count = read = 0
    for line in lines:
        batch.append(line)
        size = len(line.given.candidates) if isinstance(line, RerankItem) else 1
        count, read = count + size, read + size
        if count >= _CANDIDATES_PER_BATCH or len(batch) >= _LINES_PER_BATCH:
            break
        if read >= CANDIDATES_PER_STEP:
            read = 0
            yield None
    return batch


def rerank_batch(
    models: ScoringModels,
    lines: Sequence[RerankLine],
    options: RerankOptions,
    limits: Limits,
    *,
    states: OwnedStateStore | None = None,
) -> Work[Any, list[RerankOutcome]]:
    """What becomes of some lines: re-ranked together, or if one is wrong one by one, so that only that one fails.

    A use case; see `rerank_lines` for the arguments.
    """
    items = [line for line in lines if isinstance(line, RerankItem)]
    ranked = iter((yield from _rerank_or_split(models, items, options, limits, states)))
    return [next(ranked) if isinstance(line, RerankItem) else line for line in lines]


def _rerank_or_split(
    models: ScoringModels,
    items: Sequence[RerankItem],
    options: RerankOptions,
    limits: Limits,
    states: OwnedStateStore | None,
) -> Work[Any, list[RerankOutcome]]:
    if not items:
        return []
    try:
        return [*(yield from rerank(models, items, options, limits, states=states, name=_no_prefix))]
    except (InvalidInputError, StatesFullError) as error:
        if len(items) == 1:
            return [error]
    one_by_one: list[RerankOutcome] = []
    for item in items:
        one_by_one += yield from _rerank_or_split(models, [item], options, limits, states)
    return one_by_one


def _no_prefix(_: int) -> str:
    """What stands before `candidates` in messages where a line is one list."""
    return ""
