"""Continuous batching of generation: rows of all requests to one model take steps together.

A slice is one step of all rows in the `DecodeBatch`, or of the oldest calls if not all fit.
"""

from collections.abc import Mapping
from itertools import accumulate

from models.decoding.decode import Decode, DecodeBatch, DecodeSlot
from service.engine.batching import CallBatch, SliceResult
from service.engine.constants import MAX_ENTRIES


class DecodeCallBatch(CallBatch[Decode, DecodeSlot]):
    """Batch of decode calls, advanced by a step per slice."""

    def __init__(self) -> None:
        super().__init__()
        self._batch: DecodeBatch | None = None

    def _start(self, call: Decode) -> DecodeSlot:
        return DecodeSlot(call)

    def _run(self, under_way: Mapping[Decode, DecodeSlot], count: int) -> SliceResult:
        model = next(iter(under_way)).model
        max_rows = min(count, MAX_ENTRIES // len(model.vocabulary))
        slots = list(under_way.values())
        ends = accumulate(len(slot.indices) for slot in slots)
        fitting = [slot for slot, end in zip(slots, ends, strict=True) if end <= max_rows] or slots[:1]
        batch = self._batch = self._form_batch(fitting)
        num_rows = len(batch)
        self._batch = batch.step(model)
        ended = under_way.items() if self._batch is not batch else ()
        answers = [(call, slot.result) for call, slot in ended if slot.done]
        return SliceResult(num_rows, num_rows, answers)

    def _form_batch(self, slots: list[DecodeSlot]) -> DecodeBatch:
        if (batch := self._batch) is not None:
            if slots[: len(batch.slots)] == batch.slots:
                return batch.with_slots(slots[len(batch.slots) :])
            batch.dissolve()
        return DecodeBatch.of(slots)
