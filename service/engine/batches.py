"""Calls of several jobs as one computation, in pieces of bounded time."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from service.engine.calls import ModelCall, QuickCall, Read, SlicedCall
from service.engine.job import Job

Asked = Sequence[tuple[Job, ModelCall]]

MAX_ENTRIES = 1 << 21
"""Numbers of the distributions [B, V] in one batch (8 MiB)."""

MAX_READ = 4096
"""Padded tokens in one batch of texts, unless one call has more."""

_ROWS = 64
"""Texts that are read side by side however slow the model is: reading them one by one takes several times as long."""

_FIRST_GUESS_S = 2e-5
"""Seconds a token is taken to cost before any was read."""

_LEAST_TOKENS, _LEAST_BULK_TOKENS, _LEAST_LEISURE_TOKENS = 128, 16, 128
"""In a slice, however slow the model is; a network reads few tokens hardly faster than many."""

_MODELS = 256
_MEMORY = 0.8
"""How much of what was known of a model's pace is kept when it is measured anew."""


class Batch:
    """Calls of one kind, with the jobs that wait for them.

    Args:
        asked: at least one; all bulk, or none.
        is_long: whether it is to be done in slices.
    """

    def __init__(self, asked: Asked, *, is_long: bool) -> None:
        self.is_bulk = asked[0][0].bulk
        self.jobs = [job for job, _ in asked]
        self.calls = [call for _, call in asked]
        self.is_long = is_long
        self.num_rows = sum(len(call.state) for call in self.calls)
        first = self.calls[0]
        self._progress = first.begun(self.calls) if isinstance(first, SlicedCall) else None
        self._answers: list[Any] | None = None

    @property
    def name(self) -> str:
        """Of its kind, for the metrics."""
        return type(self.calls[0]).__name__.lower()

    @property
    def done(self) -> bool:
        """Whether the answers are there."""
        return self._answers is not None

    def go_on(self, tokens: int) -> int:
        """Do so many more tokens or rows, or answer at once what cannot be cut.

        Returns:
            How many tokens or distributions it were.
        """
        if self._progress is None:
            quick = [call for call in self.calls if isinstance(call, QuickCall)]
            self._answers = type(quick[0]).answers(quick)
            return self.num_rows
        count = self._progress.go_on(tokens)
        if self._progress.done:
            self._answers = self._progress.answers()
        return count

    def answers(self) -> list[Any]:
        """One a job; the batch is done."""
        return self._answers or []

    def apart(self) -> "list[Batch]":
        """Each call in a batch of its own, from the beginning."""
        return [Batch([one], is_long=False) for one in zip(self.jobs, self.calls, strict=True)]


class Batches:
    """Makes batches and knows how fast each model is, so that a slice takes the time it should.

    Args:
        clock: seconds, monotonic.
        slice_s: what a slice of interactive jobs' texts should take.
        bulk_slice_s: what one of bulk should take.
        leisure_slice_s: the same while nobody else is about.

    Attributes:
        at_leisure: whether nobody interactive is about, so that bulk may work in pieces as large as serve it best.
    """

    def __init__(
        self, *, clock: Callable[[], float], slice_s: float, bulk_slice_s: float, leisure_slice_s: float
    ) -> None:
        self._clock = clock
        self._slice_s, self._bulk_slice_s, self._leisure_slice_s = slice_s, bulk_slice_s, leisure_slice_s
        self.at_leisure = False
        self._seconds_each: dict[Hashable, float] = {}

    def of(self, asked: Asked) -> Iterator[Batch]:
        """Calls of one kind in batches of bounded memory."""
        first = asked[0][1]
        if len(asked) == 1:
            yield self._made(asked)
            return
        if isinstance(first, Read):
            yield from self._of_texts(asked)
            return
        most = max(MAX_ENTRIES // len(first.model.vocabulary), 1)
        if asked[0][0].bulk:
            most = min(most, self._budget(first, bulk=True))
        run: list[tuple[Job, ModelCall]] = []
        rows = 0
        for job, call in asked:
            if run and rows + len(call.state) > most:
                yield Batch(run, is_long=False)
                run, rows = [], 0
            run.append((job, call))
            rows += len(call.state)
        yield Batch(run, is_long=False)

    def go_on(self, batch: Batch) -> None:
        """A slice."""
        kind, began = batch.calls[0].kind, self._clock()
        count = batch.go_on(self._budget(batch.calls[0], bulk=batch.is_bulk))
        took = self._clock() - began
        if count and took > 0:
            before = self._seconds_each.get(kind, took / count)
            if len(self._seconds_each) > _MODELS:  # of models long gone
                self._seconds_each.clear()
            self._seconds_each[kind] = _MEMORY * before + (1 - _MEMORY) * took / count

    def finish(self, batch: Batch) -> None:
        """All of it."""
        while not batch.done:
            self.go_on(batch)

    def _of_texts(self, asked: Asked) -> Iterator[Batch]:
        """Texts of like length together."""
        by_width = sorted(asked, key=lambda one: _width(one[1]))
        run: list[tuple[Job, ModelCall]] = []
        rows = 0
        for job, call in by_width:
            count = rows + len(call.state)
            if run and (
                count * _width(call) > MAX_READ or count > max(self._budget(call, bulk=job.bulk), _ROWS)
            ):
                yield self._made(run)
                run, rows = [], 0
            run.append((job, call))
            rows += len(call.state)
        yield self._made(run)

    def _made(self, run: Asked) -> Batch:
        job, call = run[0]
        size = sum(call.size for _, call in run) if isinstance(call, SlicedCall) else 0
        return Batch(run, is_long=size > self._budget(call, bulk=job.bulk))

    def _budget(self, call: ModelCall, *, bulk: bool) -> int:
        """Tokens in a slice."""
        seconds, least = self._slice_s, _LEAST_TOKENS
        if bulk and self.at_leisure:
            seconds, least = self._leisure_slice_s, _LEAST_LEISURE_TOKENS
        elif bulk:
            seconds, least = self._bulk_slice_s, _LEAST_BULK_TOKENS
        return max(int(seconds / self._seconds_each.get(call.kind, _FIRST_GUESS_S)), least)


def _width(call: ModelCall) -> int:
    return int(call.lengths.max(initial=0)) if isinstance(call, Read) else 1
