"""What holds for a row from its beginning to its end, and for many rows as arrays."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.decoding.banned import BannedSequences
from models.decoding.parameters import DecodingParameters
from models.decoding.rows import Float64s, Int32s, Int64s

_MIN_BLOCK_TEMPERATURE = 0.05
"""Below it, weights in single precision soon come to nothing."""

_UNLIMITED = 1 << 31
"""More tokens than any vocabulary has."""

_NO_IDS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """What a request asks of the tokens that follow one of its prompts; all rows of that prompt share it.

    Attributes:
        numbers: a row of `Rows.rules` [9].
        bias_ids: tokens whose scores change [E].
        bias_values: what is added to each [E].
        prompt_ids: tokens of the prompt, each once [P]; none where nothing depends on them.
        banned: sequences that are never completed; None if there are none.
        unfiltered: whether tokens are drawn at a temperature, not too low, from all that the model says but for control
            tokens: no rule looks at a whole distribution, or at what was generated.
    """

    numbers: Float64s
    bias_ids: Int32s
    bias_values: FloatArray
    prompt_ids: Int32s
    banned: BannedSequences | None
    unfiltered: bool


def compile_rules(
    parameters: DecodingParameters, prompt: TokenIds, banned: BannedSequences | None = None
) -> Rules:
    """The rules of a request for rows that continue a prompt [T]."""
    numbers = [
        0.0 if parameters.greedy else parameters.temperature,
        float(min(parameters.top_k or 0, _UNLIMITED)),
        parameters.typical_p,
        parameters.top_p,
        parameters.min_p,
        parameters.repetition_penalty,
        parameters.presence_penalty,
        parameters.frequency_penalty,
        np.inf if parameters.ignore_eos else float(parameters.min_tokens),
    ]
    ids = [token_id for token_id, _ in parameters.logit_bias]
    values = [bias for _, bias in parameters.logit_bias]
    looks_back = parameters.repetition_penalty != 1
    return Rules(
        np.array(numbers),
        np.array(ids, np.int32),
        np.array(values, np.float32),
        np.unique(prompt).astype(np.int32) if looks_back else _NO_IDS,
        banned,
        unfiltered=_is_unfiltered(parameters) and banned is None,
    )


def _is_unfiltered(parameters: DecodingParameters) -> bool:
    truncates = (
        parameters.top_k is not None
        or parameters.top_p < 1
        or parameters.typical_p < 1
        or parameters.min_p > 0
    )
    changes = parameters.has_penalties or bool(parameters.logit_bias)
    return (
        not (truncates or changes or parameters.greedy) and parameters.temperature >= _MIN_BLOCK_TEMPERATURE
    )


class RaggedArray(NamedTuple):
    """Stretches of one array, of which each row has one; rows may share theirs.

    Attributes:
        values: all of them.
        spans: the first of each row's, and the one after its last [R, 2].
    """

    values: npt.NDArray[Any]
    spans: Int64s


class RuleTable:
    """The rules of R rows. A value.

    Args:
        row_rules: of each [R].
    """

    def __init__(self, row_rules: Sequence[Rules]) -> None:
        self.row_rules = row_rules

    def select(self, rows: TokenIds) -> "RuleTable":
        """The rules of some of the rows, which may repeat."""
        return RuleTable([self.row_rules[row] for row in rows.tolist()])

    @cached_property
    def numbers(self) -> Float64s:
        """As `Rows.rules` [R, 9]."""
        return np.concatenate([rules.numbers for rules in self.row_rules]).reshape(len(self.row_rules), -1)

    @cached_property
    def bias_ids(self) -> RaggedArray:
        """Tokens whose scores change."""
        return self._spread(lambda rules: rules.bias_ids)

    @cached_property
    def bias_values(self) -> FloatArray:
        """What is added to each of `bias_ids`."""
        return self._spread(lambda rules: rules.bias_values).values

    @cached_property
    def prompt_ids(self) -> RaggedArray:
        """Tokens of prompts."""
        return self._spread(lambda rules: rules.prompt_ids)

    @cached_property
    def unfiltered(self) -> npt.NDArray[np.bool_]:
        """Which rows are drawn at a temperature from all that the model says, but for control tokens [R]."""
        return np.array([rules.unfiltered for rules in self.row_rules])

    @cached_property
    def has_bans(self) -> bool:
        """Whether any row has sequences that are never completed."""
        return any(rules.banned is not None for rules in self.row_rules)

    def _spread(self, part_of: Callable[[Rules], npt.NDArray[Any]]) -> RaggedArray:
        return pack_ragged([part_of(rules) for rules in self.row_rules])


def pack_ragged(parts: Sequence[npt.NDArray[Any]]) -> RaggedArray:
    """The part of each row [R], one after the other; an array that several rows have is laid out once."""
    spans: dict[int, tuple[int, int]] = {}
    different, end = [], 0
    for part in parts:
        if id(part) not in spans:
            spans[id(part)] = (end, end := end + len(part))
            different.append(part)
    return RaggedArray(np.concatenate(different), np.array([spans[id(part)] for part in parts], np.int64))
