"""Read many sequences of different lengths, in bounded memory, with torch or int8 networks.

Sequences are sorted by length and read in groups, the longest first; finished rows are removed.

oneDNN, which computes LSTM layers on CPUs, caches a compiled primitive for every new shape (pytorch
issue 41486), so memory would grow with every new batch size. Row counts and segment lengths are
therefore padded to a few sizes. oneDNN also repacks the weights at every call, which dominates a
single step of few rows: for these the plain cell is two to five times faster.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from models.arrays import FloatArray, TokenIds
from models.kernels.threads import run_parts
from models.language_model import ReadResult, Want
from models.neural.cells import Hidden
from models.neural.constants import (
    GROUP_ROWS,
    GROUP_ROWS_ON_CUDA,
    INT8_ROWS_PER_THREAD,
    INT8_SEGMENT_STEPS,
    INT8_TOKENS_PER_THREAD,
    MAX_LOGITS,
    MAX_LOGITS_ON_CUDA,
    PLAIN_CELL_ROWS,
    SEGMENT_STEPS,
    STEPS_MULTIPLE,
)
from models.neural.int8.matrix import take_rows
from models.neural.int8.network import Int8Network, NetworkOutputs
from models.neural.network import Network
from models.neural.state import HiddenArrays, NeuralState
from models.vocabulary import EOS


class BatchReader(ABC):
    """Interface of a network that reads segments.

    Args:
        group_rows: sequences per group: few, so their lengths are similar.
        segment_steps: tokens of each sequence per pass of the body and the output layer.
        feature_size: E.
    """

    def __init__(self, group_rows: int, segment_steps: int, feature_size: int) -> None:
        self.group_rows, self.segment_steps, self.feature_size = group_rows, segment_steps, feature_size

    @abstractmethod
    def read(
        self, tokens: TokenIds, is_read: Any, hidden: tuple[Any, ...], *, exact: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Read the next tokens of rows that have not ended.

        Args:
            tokens: ids [T, B]; `</s>` past the end of a row.
            is_read: mask of the tokens to read [T, B].
            hidden: state of the rows before the tokens; it may be overwritten.
            exact: whether the final state is needed for rows that end in the segment.

        Returns:
            The body's outputs before each token, as input of the other methods; and the state after the segment,
            undefined for rows that end in it unless `exact`.
        """

    @abstractmethod
    def scores(
        self, before: Any, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        """Return log-probabilities or logits [N] of ids at steps [N] of rows [N]."""

    @abstractmethod
    def features(self, before: Any, steps: TokenIds, rows: TokenIds) -> FloatArray:
        """Return inputs of the output layer [N, E] before steps [N] of rows [N]."""

    @abstractmethod
    def shares(self, lengths: TokenIds) -> int:
        """Return the number of threads for sequences of given lengths [B]."""


def read_batch(
    reader: BatchReader, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read lengths[b] tokens of each row b of tokens [B, T]; see `SequenceReader.read`."""
    log_probs = np.zeros(tokens.shape if want.scores else (0, 0), dtype=np.float32)
    size = (*tokens.shape, reader.feature_size) if want.features else (0, 0, 0)
    result = ReadResult(
        log_probs,
        np.zeros(size, dtype=np.float32),
        state.select(np.arange(len(state))) if want.state else state,
    )
    num_shares = reader.shares(lengths)
    groups = list(_length_groups(lengths, num_shares, reader.group_rows))

    def read(assigned: Sequence[TokenIds]) -> None:
        for rows in assigned:
            _read_group(reader, state.select(rows), tokens, lengths, rows, want, result)

    run_parts(read, [groups[number::num_shares] for number in range(num_shares)])
    return result


def _length_groups(lengths: TokenIds, num_shares: int, most: int) -> Iterator[TokenIds]:
    """Yield groups of at most `most` non-empty rows, longest first, so the rows of a group end close together."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    size = max(1, min(most, -(-len(order) // num_shares)))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _read_group(
    reader: BatchReader,
    state: NeuralState,
    tokens: TokenIds,
    lengths: TokenIds,
    group: TokenIds,
    want: Want,
    result: ReadResult,
) -> None:
    """Read non-empty rows, sorted by descending length, to their ends; `state` is overwritten."""
    longest, lengths = int(lengths[group[0]]), lengths[group]
    for start in range(0, longest, reader.segment_steps):
        end = min(start + reader.segment_steps, longest)
        rows = group[: np.count_nonzero(lengths > start)]
        is_read = np.arange(start, end)[:, None] < lengths[: len(rows)]
        # entries past a row's length may be invalid ids
        ids = np.where(is_read, tokens[rows, start:end].T, EOS)
        before = tuple(part[:, : len(rows)] for part in state.hidden)
        outputs, after = reader.read(ids, is_read, before, exact=want.state)
        for part, changed in zip(state.hidden, after, strict=True):
            part[:, : len(rows)] = changed
        step, row = np.nonzero(is_read)
        if want.scores:
            scores = reader.scores(outputs, step, row, ids[step, row], normalised=want.normalised)
            result.log_probs[rows[row], start + step] = scores
        if want.features:
            result.features[rows[row], start + step] = reader.features(outputs, step, row)
    if want.state:
        for part, changed in zip(result.state.hidden, state.hidden, strict=True):
            part[:, group] = changed


class TorchReader(BatchReader):
    """Reader of segments with a torch network.

    Args:
        network: in evaluation mode.
        device: device of its parameters.
    """

    def __init__(self, network: Network, device: torch.device) -> None:
        group_rows = GROUP_ROWS_ON_CUDA if device.type == "cuda" else GROUP_ROWS
        super().__init__(group_rows, SEGMENT_STEPS, network.feature_size)
        self._network = network

    @override
    def read(self, tokens: TokenIds, is_read: Any, hidden: Hidden, *, exact: bool) -> tuple[Tensor, Hidden]:
        device, steps = hidden[0].device, len(tokens)
        if steps == 1 and not exact:  # the state after the only token is not needed
            return hidden[0], hidden
        if exact:
            ids = torch.as_tensor(tokens, device=device)
            outputs, after = self._read_exactly(ids, np.count_nonzero(is_read, axis=1), hidden)
        else:  # rows that continue fill the segment; only the last segment is padded
            padding = -steps % STEPS_MULTIPLE
            ids = torch.as_tensor(np.pad(tokens, ((0, padding), (0, 0)), constant_values=EOS), device=device)
            outputs, after = advance_many(self._network, ids, hidden)
        return torch.cat([hidden[0], outputs[: steps - 1]]), after

    @override
    def scores(
        self, before: Tensor, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        network, outputs = self._network, _take(before, steps, rows)
        given = torch.as_tensor(ids, device=outputs.device)
        predict = network.output.target_log_probs if normalised else network.output.target_logits
        held = MAX_LOGITS_ON_CUDA if outputs.is_cuda else MAX_LOGITS
        size = max(1, held // (network.vocab_size if normalised else outputs.shape[1]))
        parts = zip(torch.split(outputs, size), torch.split(given, size), strict=True)
        scored = [predict(network.features(part), of_part) for part, of_part in parts]
        scores: FloatArray = torch.cat(scored).cpu().numpy()
        return scores

    @override
    def features(self, before: Tensor, steps: TokenIds, rows: TokenIds) -> FloatArray:
        features: FloatArray = self._network.features(_take(before, steps, rows)).cpu().numpy()
        return features

    @override
    def shares(self, lengths: TokenIds) -> int:
        return 1  # torch has its own threads

    def _read_exactly(self, ids: Tensor, alive: TokenIds, hidden: Hidden) -> tuple[Tensor, Hidden]:
        """Return the outputs [T, B, W] after each token and the state after each row's last token."""
        after = tuple(part.clone() for part in hidden)
        outputs = after[0].new_zeros(len(ids), *after[0].shape[1:])
        for start, end in ragged_segments(alive, any_width=ids.is_cuda):
            count = int(alive[start])
            before = tuple(part[:, :count] for part in after)
            if end - start == 1:
                changed = advance_one(self._network, ids[start, :count], before)
                outputs[start, :count] = changed[0][0]
            else:
                outputs[start:end, :count], changed = advance_many(
                    self._network, ids[start:end, :count], before
                )
            for part, new in zip(after, changed, strict=True):
                part[:, :count] = new
        return outputs, after


def _take(before: Tensor, steps: TokenIds, rows: TokenIds) -> Tensor:
    return before[torch.as_tensor(steps, device=before.device), torch.as_tensor(rows, device=before.device)]


class Int8Reader(BatchReader):
    """Reader of segments with an int8 network.

    Args:
        network: in int8.
    """

    def __init__(self, network: Int8Network) -> None:
        super().__init__(GROUP_ROWS, INT8_SEGMENT_STEPS, network.feature_size)
        self._network = network

    @override
    def read(
        self, tokens: TokenIds, is_read: Any, hidden: HiddenArrays, *, exact: bool
    ) -> tuple[NetworkOutputs, HiddenArrays]:
        alive = np.count_nonzero(is_read, axis=1)
        outputs = self._network.read(tokens, alive, tuple(map(np.ascontiguousarray, hidden)))
        return outputs, outputs.hidden

    @override
    def scores(
        self, before: NetworkOutputs, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        taken = take_rows(before.rows, steps * before.before.shape[1] + rows)
        output = self._network.output
        score = output.target_log_probs if normalised else output.target_logits
        return score(self._network.features_of(taken), ids)

    @override
    def features(self, before: NetworkOutputs, steps: TokenIds, rows: TokenIds) -> FloatArray:
        return self._network.features(before.before[steps, rows])

    @override
    def shares(self, lengths: TokenIds) -> int:
        by_tokens = int(lengths.sum()) // INT8_TOKENS_PER_THREAD
        by_rows = int(np.count_nonzero(lengths)) // INT8_ROWS_PER_THREAD
        return max(1, min(torch.get_num_threads(), by_tokens, by_rows))


def advance_one(network: Network, tokens: Tensor, hidden: Hidden) -> Hidden:
    """Consume one token per row.

    Args:
        network: in evaluation mode.
        tokens: ids [B].
        hidden: the state; unchanged.

    Returns:
        The next state, of the same shapes.
    """
    if tokens.is_cuda or tokens.shape[0] > PLAIN_CELL_ROWS:
        return advance_many(network, tokens[None], hidden)[1]
    return network.step(tokens, hidden)


def advance_many(network: Network, tokens: Tensor, hidden: Hidden) -> tuple[Tensor, Hidden]:
    """Consume T tokens per row.

    Args:
        network: in evaluation mode.
        tokens: ids [T, B]; the caller uses few different values of T.
        hidden: the state; unchanged.

    Returns:
        The body's outputs [T, B, W] and the next state.
    """
    hidden = tuple(part.contiguous() for part in hidden)  # as cuDNN requires
    rows = tokens.shape[1]
    extra = 0 if tokens.is_cuda else _padded_row_count(rows) - rows
    if extra:
        tokens = torch.cat([tokens, tokens.new_zeros(tokens.shape[0], extra)], dim=1)
        hidden = tuple(
            torch.cat([part, part.new_zeros(len(part), extra, part.shape[2])], 1) for part in hidden
        )
    outputs, after = network(tokens, hidden)
    if extra:
        outputs, after = outputs[:, :rows], tuple(part[:, :rows].contiguous() for part in after)
    return outputs, after


def ragged_segments(alive: TokenIds, *, any_width: bool) -> Iterator[tuple[int, int]]:
    """Yield parts of a segment, as first step and end, within which no row ends.

    Args:
        alive: number of rows in each step [T], descending.
        any_width: False to restrict widths to powers of two.
    """
    start = 0
    for end in [*(np.flatnonzero(np.diff(alive)) + 1).tolist(), len(alive)]:
        while start < end:
            width = end - start if any_width else 1 << ((end - start).bit_length() - 1)
            yield start, start + width
            start += width


def _padded_row_count(rows: int) -> int:
    """Round up to one of 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, …: at most a half more, a sixth on average."""
    power = 1 << max(rows - 1, 0).bit_length()
    return power * 3 // 4 if power >= 4 and rows <= power * 3 // 4 else power
