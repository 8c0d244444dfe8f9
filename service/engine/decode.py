"""Generating tokens, as a call: the rows of all requests that generate with a model take their steps together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from models.protocol import LanguageModel
from service.engine.calls import MAX_ENTRIES, CallGenerator
from service.engine.decoding import Generated
from service.engine.formation import DecodeBatch, DecodeSlot
from service.engine.model_call import ModelCall
from service.engine.pools import CallBatch, SliceResult


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
