"""Networks as language models: base class, states, reading of sequences; imports no torch."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
from typing_extensions import override

from models.arrays import AnyArray, FloatArray, TokenIds
from models.errors import InputError
from models.kernels.threads import run_parts
from models.language_model import (
    BOS,
    EOS,
    ChoiceScorer,
    FeatureExtractor,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Vocabulary,
    Want,
    in_order,
)
from models.neural.config import NetworkConfig, count_parameters

HiddenArrays: TypeAlias = tuple[AnyArray, ...]
"""Arrays whose dimension 1 is the batch; first the body's last output [1, B, W], float32."""


@dataclass(frozen=True, slots=True, eq=False)
class NeuralState:
    """State of B texts.

    Attributes:
        hidden: arrays (tensors in `TensorState`) whose dimension 1 is the batch; first the body's last output
            [1, B, W], stored to predict without repeating the step.
    """

    hidden: tuple[Any, ...]

    def __len__(self) -> int:
        return int(self.hidden[0].shape[1])

    @property
    def top(self) -> Any:
        """The body's last outputs [B, W]."""
        return self.hidden[0][0]

    def select(self, rows: TokenIds | slice) -> Self:
        """Copy rows `rows[0], rows[1], …`, which may repeat; a slice of arrays is a view."""
        return type(self)(tuple(part[:, rows] for part in self.hidden))

    def assign(self, rows: TokenIds, state: "NeuralState") -> None:
        """Replace distinct rows by those of a state."""
        for part, changed in zip(self.hidden, state.hidden, strict=True):
            part[:, rows] = changed

    def concatenate(self, states: Sequence[Self]) -> Self:
        """Return the rows of this state, then those of `states`."""
        columns = zip(self.hidden, *(state.hidden for state in states), strict=True)
        return type(self)(tuple(np.concatenate(parts, axis=1) for parts in columns))


class NetworkModel(
    ChoiceScorer[NeuralState],
    FeatureExtractor[NeuralState],
    SequenceReader[NeuralState],
    LanguageModel[NeuralState],
):
    """Base class of language models with a network.

    Args:
        config: shape of the network.
        vocab_size: number of tokens predicted.
        vocabulary: tokens of the ids.

    Attributes:
        config: shape of the network; the name of its cell is the family.
        num_parameters: number of learnt values; a shared matrix counts once.
        self_normalised: whether logits were trained to approximate log-probabilities.
        feature_size: width of the output layer's input, E.
        group_rows: sequences read together: few, so their lengths are similar.
        segment_steps: tokens of each sequence per pass of the body and the output layer.

    Raises:
        InputError: network and vocabulary differ in size.
    """

    normalised = True
    group_rows: int
    segment_steps: int

    def __init__(self, config: NetworkConfig, vocab_size: int, vocabulary: Vocabulary) -> None:
        if vocab_size != len(vocabulary):
            raise InputError(
                f"the network predicts {vocab_size} tokens, the vocabulary has {len(vocabulary)}",
                param="vocabulary",
            )
        self.config = config
        self.family: str = config.cell
        self.num_parameters = count_parameters(config, vocab_size)
        self.vocabulary = vocabulary
        self.self_normalised = config.self_normalised
        self.feature_size = config.feature_size

    @override
    def initial_state(self, batch: int) -> NeuralState:
        return self._start if batch == 1 else self._start.select(np.zeros(batch, np.int64))

    @cached_property
    def _start(self) -> NeuralState:
        """State of one row after `<s>`, cached: nearly all requests begin with it."""
        return self.advance(self.empty_state(1), np.array([BOS]))

    @override
    def read(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        log_probs = np.zeros(tokens.shape if want.scores else (0, 0), np.float32)
        result = ReadResult(log_probs, state.select(np.arange(len(state))) if want.state else state)
        before: list[tuple[TokenIds, NeuralState]] = []  # by token number
        parts = self.num_shares(lengths)
        # the longest first, so the rows of a group end close together
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        size = max(1, min(self.group_rows, -(-len(order) // parts)))
        groups = [order[start : start + size] for start in range(0, len(order), size)]

        def read_group(group: TokenIds) -> None:
            """Read non-empty rows, the longest first, to their ends; finished rows are removed."""
            carried, sizes = state.select(group), lengths[group]
            for start in range(0, int(sizes[0]), self.segment_steps):
                end = min(start + self.segment_steps, int(sizes[0]))
                rows = group[: np.count_nonzero(sizes > start)]
                is_read = np.arange(start, end)[:, None] < sizes[: len(rows)]
                # entries past a row's length may be invalid ids
                ids = np.where(is_read, tokens[rows, start:end].T, EOS)
                hidden = tuple(part[:, : len(rows)] for part in carried.hidden)
                outputs, after = self.read_segment(ids, is_read, hidden, exact=want.state)
                for part, changed in zip(carried.hidden, after, strict=True):
                    part[:, : len(rows)] = changed
                step, row = np.nonzero(is_read)
                if want.scores:
                    scores = self.score_outputs(
                        outputs, step, row, ids[step, row], normalised=want.normalised
                    )
                    result.log_probs[rows[row], start + step] = scores
                if want.before or want.features:
                    numbers = rows[row] * tokens.shape[1] + start + step
                    before.append((numbers, self.states_before(outputs, step, row)))
            if want.state:
                result.state.assign(group, carried)

        shares = [groups[number::parts] for number in range(parts)]
        run_parts(lambda share: [*map(read_group, share)], shares)
        if not (want.before or want.features):
            return result
        return result._replace(before=in_order(before) if before else state.select(order[:0]))

    @abstractmethod
    def read_segment(
        self, tokens: TokenIds, is_read: Any, hidden: tuple[Any, ...], *, exact: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Read the next tokens of rows that have not ended.

        Args:
            tokens: ids [T, B]; `</s>` past the end of a row.
            is_read: mask of the tokens to read [T, B].
            hidden: state of the rows before the tokens; may be overwritten.
            exact: whether the final state is needed for rows that end in the segment.

        Returns:
            The body's outputs before each token, for the other methods; and the state after the segment,
            undefined for rows that end in it unless `exact`.
        """

    @abstractmethod
    def score_outputs(
        self, before: Any, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        """Return log-probabilities or logits [N] of ids at steps [N] of rows [N]."""

    @abstractmethod
    def states_before(self, before: Any, steps: TokenIds, rows: TokenIds) -> NeuralState:
        """Return the states before steps [N] of rows [N], for prediction only."""

    def num_shares(self, lengths: TokenIds) -> int:  # noqa: ARG002 - of subclasses
        """Number of threads for sequences of lengths [B]."""
        return 1  # torch has its own threads
