"""Generation: rows of several calls take steps together in a `DecodeBatch`.

Rows leave at `</s>` or their token count; new calls are added between steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import Any, NamedTuple, Self

import numpy as np
from typing_extensions import override

from models.arrays import Bools, TokenIds
from models.calls import ModelCall, StateView, check_no_nan, gather_states, view
from models.decoding.batch import SequenceBatch
from models.decoding.sampling import choose_next_tokens
from models.decoding.top_k import TokenChoice, top_of_rows
from models.language_model import EOS, LanguageModel, TopTokens


@dataclass(frozen=True, slots=True, eq=False)
class DecodeState:
    """Decode state of R rows (immutable).

    Attributes:
        state: model state, R rows.
        batch: sampling options and generated tokens of the rows.
    """

    state: Any
    batch: SequenceBatch

    def __len__(self) -> int:
        return len(self.batch)

    def select(self, rows: TokenIds) -> "DecodeState":
        """Select rows, which may repeat."""
        return DecodeState(self.state.select(rows), self.batch.select(rows))

    def concatenate(self, states: Sequence["DecodeState"]) -> "DecodeState":
        """Join these rows and the rows of `states`."""
        return DecodeState(
            self.state.concatenate([one.state for one in states]),
            self.batch.concatenate([one.batch for one in states]),
        )


class Generated(NamedTuple):
    """Generated tokens of R rows.

    Attributes:
        tokens: tokens of each row [R]; `</s>`, if generated, is the last.
        log_probs: the model's own log-probability of each token [R].
        tops: most probable tokens at each position of each row [R]; empty unless requested.
        unfinished: states of unfinished rows, in order; None if none are left or wanted.
    """

    tokens: list[list[int]]
    log_probs: list[list[float]]
    tops: list[list[TopTokens]]
    unfinished: StateView | None


@dataclass(frozen=True, slots=True, eq=False)
class Decode(ModelCall[Generated]):
    """Call that generates up to `count` tokens of each row, or until `</s>`.

    The state is a `DecodeState`, or a `StateView` of one (`Generated.unfinished`); continue each row once.

    Attributes:
        count: tokens of each row, at least 1.
        top: tokens to report at each position.
        last: True if the states after the tokens are not needed.
    """

    count: int
    top: TokenChoice = 0
    last: bool = False

    @classmethod
    @override
    def answer_all(cls, calls: Sequence[Self]) -> list[Generated]:
        slots = [DecodeSlot(call) for call in calls]
        batch = None
        while running := [slot for slot in slots if not slot.done]:
            batch = (batch or DecodeBatch.of(running)).step(calls[0].model)
        return [slot.result for slot in slots]


class DecodeSlot:
    """Progress of one decode call.

    Attributes:
        call: the call.
        rows: states of the unfinished rows; stale while the slot is in a batch.
        indices: indices of the unfinished rows in the call.
        left: remaining steps.
        result: output of the rows that have ended or taken all steps.
    """

    def __init__(self, call: Decode) -> None:
        num_rows = len(call.state)
        self.call, self.left = call, call.count
        self.rows = view(call.state)
        self.indices = list(range(num_rows))
        tops: list[list[TopTokens]] = [[] for _ in range(num_rows if call.top else 0)]
        self.result = Generated([[]] * num_rows, [[]] * num_rows, tops, None)

    @property
    def done(self) -> bool:
        """True if all rows have ended or taken all steps."""
        return not (self.left and self.indices)


class DecodeBatch:
    """Slots whose rows are joined in one `DecodeState`.

    Args:
        slots: at least one.
        decoding: state of their rows, in order of the slots.
    """

    def __init__(self, slots: list[DecodeSlot], decoding: DecodeState) -> None:
        counts = [len(slot.indices) for slot in slots]
        self.slots = slots
        self._decoding = decoding
        self._spans = [slice(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]
        # first row of each slot [S]
        self._starts = np.array([span.start for span in self._spans])
        self._owners = np.repeat(np.arange(len(slots)), counts)  # slot of each row [R]
        # one array [S]: a step is one subtraction
        self._left = np.array([slot.left for slot in slots])
        self._last = np.array([slot.call.last for slot in slots])
        self._with_tops = [number for number, slot in enumerate(slots) if slot.call.top]
        self._wants_tops = np.repeat([bool(slot.call.top) for slot in slots], counts)  # [R]

    @classmethod
    def of(cls, slots: Sequence[DecodeSlot]) -> "DecodeBatch":
        """Form a batch of unbatched slots, sorted to spare a copy if all are of one state."""
        state = slots[0].rows.base
        order = sorted(slots, key=lambda slot: (slot.rows.base is not state, slot.rows.rows[0]))
        return cls(order, gather_states([slot.rows for slot in order]))

    def __len__(self) -> int:
        return len(self._owners)

    def with_slots(self, slots: Sequence[DecodeSlot]) -> "DecodeBatch":
        """Return the batch extended by unbatched slots."""
        if not slots:
            return self
        self._store_left()
        decoding = gather_states([view(self._decoding), *(slot.rows for slot in slots)])
        return DecodeBatch([*self.slots, *slots], decoding)

    def dissolve(self) -> None:
        """Store progress in each slot, to run alone or in another batch."""
        self._store_left()
        for slot, span in zip(self.slots, self._spans, strict=True):
            slot.rows = StateView(self._decoding, np.arange(span.start, span.stop))

    def step(self, model: LanguageModel) -> "DecodeBatch | None":
        """Generate a token per row and remove ended rows; an exception leaves the batch unchanged.

        Returns:
            This batch if no row has ended; else a batch of all unfinished slots; None if there are none,
                or a new batch must be formed.
        """
        before = self._decoding
        step = choose_next_tokens(model, before.state, before.batch, in_full=self._wants_tops)
        chosen = step.chosen
        check_no_nan(chosen.log_probs)
        ended, exhausted = chosen.tokens == EOS, self._left == 1
        # rows whose next state is wanted [R]
        keep = ~(ended | (exhausted & self._last)[self._owners])
        batch = before.batch.append(*chosen)
        kept = np.flatnonzero(keep)
        if len(kept) == len(keep):
            after = DecodeState(model.advance(before.state, chosen.tokens), batch)
        elif len(kept):
            state = model.advance(before.state.select(kept), chosen.tokens[kept])
            after = DecodeState(state, batch.select(kept))
        else:
            after = before.select(kept)
        for number in self._with_tops:
            slot, span = self.slots[number], self._spans[number]
            first = int(np.searchsorted(step.full_rows, span.start))
            of_slot = step.log_probs[first : first + span.stop - span.start]
            tops = top_of_rows(of_slot, slot.call.top)
            for index, ids, log_probs in zip(slot.indices, *tops, strict=True):
                slot.result.tops[index].append(TopTokens(ids, log_probs))
        self._left -= 1
        if ended.any() or exhausted.any():
            return self._end_step(batch, after, ended, keep)
        self._decoding = after
        return self

    def _end_step(
        self, batch: SequenceBatch, after: DecodeState, ended: Bools, keep: Bools
    ) -> "DecodeBatch | None":
        """Handle a step in which a row ended or a slot took its last step."""
        self._store_left()
        ends = np.cumsum(keep)  # for a kept row: its row in `after`, plus 1
        has_output = (self._left == 0) | np.logical_or.reduceat(ended, self._starts)
        for number in np.flatnonzero(has_output).tolist():
            slot, span = self.slots[number], self._spans[number]
            for row, index in enumerate(slot.indices, start=span.start):
                if ended[row] or not slot.left:
                    output = batch.last(row, slot.call.count - slot.left)
                    slot.result.tokens[index], slot.result.log_probs[index] = output
            slot.indices = list(compress(slot.indices, ~ended[span]))
            if slot.indices and not slot.left and not slot.call.last:
                unfinished = StateView(after, ends[span][keep[span]] - 1)
                slot.result = slot.result._replace(unfinished=unfinished)
        numbers = [number for number, slot in enumerate(self.slots) if not slot.done]
        running = [self.slots[number] for number in numbers]
        if running and sum(len(slot.indices) for slot in running) == len(after):
            return DecodeBatch(running, after)
        for number, slot in zip(numbers, running, strict=True):
            span = self._spans[number]
            slot.rows = StateView(after, ends[span][keep[span]] - 1)
        return None

    def _store_left(self) -> None:
        for slot, left in zip(self.slots, self._left.tolist(), strict=True):
            slot.left = left
