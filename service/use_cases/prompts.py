"""Prompts to continue, and the states after them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from models.arrays import TokenIds
from models.decoding.banned import BannedSequences
from models.decoding.parameters import DecodingParameters
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.rows import concatenate_states, materialize
from service.use_cases.prefill import prefill

T = TypeVar("T")
_MAX_ROWS = 256
_MAX_ENTRIES = 1 << 22
"""Rows, and entries of their distributions [R, V], that one request has computed together."""


class Prompt(NamedTuple):
    """A prompt to continue.

    Attributes:
        number: its place in the request.
        ids: its tokens [T].
        bos: whether `<s>` stands before them.
        continues: whether text stands before its continuation.
    """

    number: int
    ids: TokenIds
    bos: bool
    continues: bool


@dataclass(frozen=True, slots=True)
class DecodeTask:
    """What is to be done with each prompt.

    Attributes:
        loaded: by what model.
        parameters: how; with a seed.
        banned: sequences that are never completed.
        top: how many of the most probable tokens to report in the place of each token; 0 for none.
        stream: whether events are wanted.
    """

    loaded: LoadedModel
    parameters: DecodingParameters
    banned: BannedSequences | None
    top: int
    stream: bool

    def parts(self, items: Sequence[T], rows: int) -> Iterator[Sequence[T]]:
        """Items of so many rows each in runs that are decoded together: memory is bounded so."""
        at_once = min(_MAX_ROWS, _MAX_ENTRIES // self.loaded.vocab_size)
        size = max(1, at_once // rows)
        for first in range(0, len(items), size):
            yield items[first : first + size]


def prefill_prompts(task: DecodeTask, prompts: Sequence[Prompt]) -> Work[Any, Any]:
    """Read the prompts of R rows, equal ones once; a use case.

    Returns:
        The state after each row's prompt [R].
    """
    places: dict[tuple[bool, bytes], int] = {}
    different: list[Prompt] = []
    for prompt in sorted(prompts, key=lambda one: one.bos):
        key = (prompt.bos, prompt.ids.tobytes())
        if key not in places:
            places[key] = len(different)
            different.append(prompt)
    rows = [places[prompt.bos, prompt.ids.tobytes()] for prompt in prompts]
    states = []
    for bos in (False, True):
        contexts = [prompt.ids for prompt in different if prompt.bos == bos]
        if contexts:
            states.append((yield from prefill(task.loaded, contexts, bos=bos)))
    state = states[0] if len(states) == 1 else concatenate_states(states)
    return materialize(state if rows == list(range(len(different))) else state.select(np.array(rows)))
