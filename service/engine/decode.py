"""Continuous batching of generation: rows of all requests to one model take steps together.

A slice is one step of all rows in the `DecodeBatch`, or of the oldest calls if not all fit. Rows
that reach `</s>` or their token count leave the batch; new calls are added between steps. A
`DecodeState` is immutable, like a model's state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.decoding.batch import SequenceBatch
from models.decoding.sampling import ChosenTokens, choose_next_tokens
from models.decoding.top_k import top_tokens_of_rows
from models.language_model import LanguageModel, TopTokens
from models.vocabulary import EOS
from service.engine.batching import (
    CallBatch,
    ModelCall,
    SliceResult,
    StateView,
    check_no_nan,
    gather_states,
    view,
)
from service.engine.calls import MAX_ENTRIES, CallGenerator


@dataclass(frozen=True, slots=True, eq=False)
class DecodeState:
    """Where R rows stand that generate: a value, like a model's state.

    Attributes:
        state: a model's.
        batch: what the rows ask for, and what was generated.
    """

    state: Any
    batch: SequenceBatch

    def __len__(self) -> int:
        return len(self.batch)

    def select(self, rows: TokenIds) -> "DecodeState":
        """Some of the rows, which may repeat."""
        return DecodeState(self.state.select(rows), self.batch.select(rows))

    def concatenate(self, others: Sequence["DecodeState"]) -> "DecodeState":
        """These rows, then those of each of `others`."""
        return DecodeState(
            self.state.concatenate([other.state for other in others]),
            self.batch.concatenate([other.batch for other in others]),
        )


class Generated(NamedTuple):
    """What was generated of R rows.

    Attributes:
        tokens: of each row [R]; `</s>` is the last where it came.
        log_probs: the model's own of each token [R].
        tops: the most probable tokens in the place of each [R], if asked for; else empty.
        unfinished: of the rows that have not ended, in their order; None if nothing goes on.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    tops: list[list[TopTokens]]
    unfinished: StateView | None


_Mask = npt.NDArray[np.bool_]


class DecodeSlot:
    """A call whose rows generate.

    Args:
        decoding: a `DecodeState`, or `Rows` of one.
        count: tokens wanted of each row.
        top: how many of the most probable tokens to tell in the place of each.
        last: whether nothing goes on after them.

    Attributes:
        rows: where those of its rows stand that go on, while it is in no formation.
        indices: which of its rows they are.
        left: how many steps they have to take.
        result: what was generated of each row that has ended or taken all steps.
    """

    def __init__(self, decoding: Any, *, count: int, top: int, last: bool) -> None:
        num_rows = len(decoding)
        self.rows = decoding if isinstance(decoding, StateView) else view(decoding)
        self.indices = list(range(num_rows))
        self.count, self.left = count, count
        self.top, self.last = top, last
        self.result = Generated(
            [[]] * num_rows, [[]] * num_rows, [[] for _ in range(num_rows if top else 0)], None
        )

    @property
    def done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.left and self.indices)

    def add_tops(self, log_probs: FloatArray) -> None:
        """Note the most probable tokens in the place of the next one, by log-probabilities of its rows [R, V]."""
        ids, values = top_tokens_of_rows(log_probs, self.top)
        for place, row_ids, row_values in zip(self.indices, ids, values, strict=True):
            self.result.tops[place].append(TopTokens(row_ids, row_values))

    def end_step(
        self, batch: SequenceBatch, first: int, goes_on: Sequence[bool], stands: StateView | None
    ) -> None:
        """Note what a step brought about in which a row ended, or which was the last.

        Args:
            batch: with a token more.
            first: where its rows begin in it.
            goes_on: which of them have not ended.
            stands: where those stand now.
        """
        for row, (place, stays) in enumerate(zip(self.indices, goes_on, strict=True), first):
            if not stays or not self.left:
                told = batch.last(row, self.count - self.left)
                self.result.tokens[place], self.result.log_probs[place] = told
        self.indices = [place for place, stays in zip(self.indices, goes_on, strict=True) if stays]
        if self.indices and not self.left and not self.last:
            self.result = self.result._replace(unfinished=stands)


class StepResult(NamedTuple):
    """What came of a step.

    Attributes:
        done: members that have left, as they want no more of it.
        batch: of those that go on together; None if none do, or each for itself.
    """

    done: list[DecodeSlot]
    batch: "DecodeBatch | None"


class DecodeBatch:
    """Members whose rows lie one after the other in one `DecodeState`.

    Args:
        slots: at least one.
        decoding: of their rows.
    """

    def __init__(self, slots: list[DecodeSlot], decoding: DecodeState) -> None:
        counts = [len(member.indices) for member in slots]
        self.slots = slots
        self._decoding = decoding
        self._spans = [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
        self._starts = np.array([span.start for span in self._spans])
        self._owners = np.repeat(np.arange(len(slots)), counts)
        self._left = np.array([member.left for member in slots])
        self._last = np.array([member.last for member in slots])
        self._with_tops = [number for number, member in enumerate(slots) if member.top]
        self._wants_tops = np.isin(self._owners, self._with_tops)

    @classmethod
    def of(cls, members: Sequence[DecodeSlot]) -> "DecodeBatch":
        """Members that are in no formation. If their rows are all of one state, nothing is copied."""
        state = members[0].rows.base
        order = sorted(members, key=lambda member: (member.rows.base is not state, member.rows.rows[0]))
        return cls(order, gather_states([member.rows for member in order]))

    def __len__(self) -> int:
        return len(self._owners)

    def with_slots(self, members: Sequence[DecodeSlot]) -> "DecodeBatch":
        """These members and others that are in no formation."""
        if not members:
            return self
        self._store_left()
        decoding = gather_states([view(self._decoding), *(member.rows for member in members)])
        return DecodeBatch([*self.slots, *members], decoding)

    def dissolve(self) -> None:
        """Let each member go on by itself, or in another formation."""
        self._store_left()
        for member, span in zip(self.slots, self._spans, strict=True):
            member.rows = StateView(self._decoding, np.arange(span.start, span.stop))

    def step(self, model: LanguageModel[Any]) -> StepResult:
        """Generate a token of each row; if that raises, nothing has changed. Rows that end leave."""
        before = self._decoding
        told = choose_next_tokens(model, before.state, before.batch, in_full=self._wants_tops)
        chosen = told.chosen
        check_no_nan(chosen.log_probs)
        ended, over = chosen.tokens == EOS, self._left == 1
        stays = ~(ended | (over & self._last)[self._owners])
        grown = before.batch.append(*chosen)
        after = _advance(model, before, chosen, grown, stays)
        for number in self._with_tops:
            span = self._spans[number]
            first = int(np.searchsorted(told.full_rows, span.start))
            self.slots[number].add_tops(told.log_probs[first : first + span.stop - span.start])
        self._left -= 1
        if ended.any() or over.any():
            return self._end_step(grown, after, ended, stays)
        self._decoding = after
        return StepResult([], self)

    def _end_step(self, grown: SequenceBatch, after: DecodeState, ended: _Mask, stays: _Mask) -> StepResult:
        """What came of a step in which a row ended or a member took its last."""
        self._store_left()
        stands = np.cumsum(stays)  # one past where a row that stays stands
        for number in np.flatnonzero(
            (self._left == 0) | np.logical_or.reduceat(ended, self._starts)
        ).tolist():
            member, span = self.slots[number], self._spans[number]
            here = StateView(after, stands[span][stays[span]] - 1)
            member.end_step(grown, span.start, (~ended[span]).tolist(), here)
        done = [member for member in self.slots if member.done]
        on = [number for number, member in enumerate(self.slots) if not member.done]
        going_on = [self.slots[number] for number in on]
        if going_on and sum(len(member.indices) for member in going_on) == len(after):
            return StepResult(done, DecodeBatch(going_on, after))
        for number, member in zip(on, going_on, strict=True):
            span = self._spans[number]
            member.rows = StateView(after, stands[span][stays[span]] - 1)
        return StepResult(done, None)

    def _store_left(self) -> None:
        for member, left in zip(self.slots, self._left.tolist(), strict=True):
            member.left = left


def _advance(
    model: LanguageModel[Any], before: DecodeState, chosen: ChosenTokens, grown: SequenceBatch, stays: _Mask
) -> DecodeState:
    """What the rows that stay go on from."""
    if stays.all():
        return DecodeState(model.advance(before.state, chosen.tokens), grown)
    rows = np.flatnonzero(stays)
    if not len(rows):
        return before.select(rows)
    return DecodeState(model.advance(before.state.select(rows), chosen.tokens[rows]), grown.select(rows))


@dataclass(frozen=True, slots=True, eq=False)
class Decode(ModelCall):
    """Generate tokens of each row, until `</s>` or so many.

    Attributes:
        count: tokens of each row; at least 1.
        top: how many of the most probable tokens to tell in the place of each.
        last: whether nothing goes on after them.
    """

    count: int
    top: int = 0
    last: bool = False

    @property
    def size(self) -> int:
        """Distributions of one step."""
        return len(self.state)

    @property
    def urgent(self) -> bool:
        """Always: a step is short."""
        return True

    @staticmethod
    def batch() -> "DecodeCallBatch":
        """Rows that take their steps together."""
        return DecodeCallBatch()


class DecodeCallBatch(CallBatch[Decode, DecodeSlot]):
    """Rows of any number of calls; a slice is a step of all, or of the oldest calls' if there is no room for all."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: DecodeBatch | None = None

    def _start(self, call: Decode) -> DecodeSlot:
        return DecodeSlot(call.state, count=call.count, top=call.top, last=call.last)

    def _run(self, under_way: Mapping[Decode, DecodeSlot], count: int) -> SliceResult:
        model = next(iter(under_way)).model
        room = min(count, MAX_ENTRIES // len(model.vocabulary))
        formation = self._batch = self._form_batch(_fitting_slots(list(under_way.values()), room))
        num_rows = len(formation)
        stepped = formation.step(model)
        self._batch = stepped.batch
        answers = []
        if stepped.done:
            answers = [(call, member.result) for call, member in under_way.items() if member.done]
        return SliceResult(num_rows, num_rows, answers)

    def _form_batch(self, members: list[DecodeSlot]) -> DecodeBatch:
        formation = self._batch
        if formation is None:
            return DecodeBatch.of(members)
        if members[: len(formation.slots)] == formation.slots:
            return formation.with_slots(members[len(formation.slots) :])
        formation.dissolve()
        return DecodeBatch.of(members)


def decode(
    model: LanguageModel[Any], decoding: Any, count: int, *, top: int = 0, last: bool = False
) -> CallGenerator[Generated]:
    """Generate up to `count` tokens of each row.

    Args:
        model: any.
        decoding: a `DecodeState`, or `Rows` of one, as `Generated` has it; each row is continued in one way only.
        count: at least 1.
        top: how many of the most probable tokens to tell in the place of each.
        last: whether nothing goes on after them.
    """
    return cast("Generated", (yield Decode(model, decoding, count, top, last)))


def _fitting_slots(members: Sequence[DecodeSlot], room: int) -> list[DecodeSlot]:
    """The first of some members, as many rows as there is room for, and at least one member."""
    ends = accumulate(len(member.indices) for member in members)
    return [member for member, end in zip(members, ends, strict=True) if end <= room] or [members[0]]
