"""N-gram model on a device: the same numbers as `models.ngram.model`, as tensors.

`move_if_it_fits` leaves the model on the CPU, with a warning, if the device lacks memory or fails.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from models.arrays import AnyArray, Int64s, ModelBytes, TokenIds, add_bytes
from models.language_model import (
    ContextMatcher,
    LanguageModel,
    ReadResult,
    SequenceReader,
    TopKPredictor,
    TopTokens,
    Want,
)
from models.ngram.cuda import kernels
from models.ngram.cuda.kernels import Ids, check_token_per_row, to_device, to_tensors, unpad
from models.ngram.model import NGramModel, NGramScores, NGramState, check_k, check_shapes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, slots=True)
class TensorNGramState(NGramState):
    """State numbers on the model's device, equal to those on the CPU."""

    ids: Any  # a tensor

    @override
    @torch.inference_mode()
    def select(self, rows: Ids) -> Self:
        return type(self)(self.ids[to_device(rows, self.ids.device)])

    @override
    @torch.inference_mode()
    def concatenate(self, others: Sequence[Self]) -> Self:
        return type(self)(torch.cat([self.ids, *(state.ids for state in others)]))


class TensorNGramModel(
    ContextMatcher[TensorNGramState],
    SequenceReader[TensorNGramState],
    TopKPredictor[TensorNGramState],
    LanguageModel[TensorNGramState],
):
    """Back-off n-gram model whose automaton is on a device.

    State numbers equal those of the CPU model, and scores are equal within the rounding of single
    precision. For large batches: a call launches dozens of kernels, which for one context takes
    longer than the computation on a CPU.

    Args:
        model: model to copy; its arrays stay on the host.
        device: device of the computation.

    Attributes:
        cpu_model: the copied model.
        device: device of the computation.
    """

    family, is_lookup = "ngram", True

    def __init__(self, model: NGramModel, *, device: str | torch.device) -> None:
        self.cpu_model = model
        self._automaton = to_tensors(model.automaton, torch.device(device))
        self.device = self._automaton.device
        self.vocabulary, self.normalised = model.vocabulary, model.normalised
        self.order = self.num_context_lengths = model.order
        self.num_parameters = model.num_parameters

    @override
    def memory(self) -> ModelBytes:
        tensors = [value for value in self._automaton if isinstance(value, Tensor)]
        device = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
        return add_bytes([self.cpu_model.memory(), ModelBytes(device=device)])

    @override
    def initial_state(self, batch: int) -> TensorNGramState:
        return self._state(batch, self.cpu_model.automaton.initial)

    @override
    def empty_state(self, batch: int) -> TensorNGramState:
        return self._state(batch, 0)

    @override
    @torch.inference_mode()
    def advance(self, state: TensorNGramState, tokens: Ids) -> TensorNGramState:
        """Consume one token per row; to check ids in a tensor, the host waits for the device."""
        words = check_token_per_row(tokens, len(state), len(self.vocabulary), self.device)
        return TensorNGramState(kernels.advance_contexts(self._automaton, state.ids, words))

    @override
    @torch.inference_mode()
    def next_log_probs(self, state: TensorNGramState) -> Tensor:
        """Return log-probabilities [B, V], float32; memory beyond the result is bounded for any B."""
        return kernels.all_log_probs(self._automaton, state.ids)

    @override
    @torch.inference_mode()
    def top_k(self, state: TensorNGramState, k: int) -> TopTokens:
        check_k(k, len(self.vocabulary))
        words, log_probs = kernels.top_k_of_states(self._automaton, state.ids, k)
        return TopTokens(words.cpu().numpy(), log_probs.cpu().numpy())

    @override
    def read(self, state: TensorNGramState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        log_probs, before = np.empty((0, 0), np.float32), None
        if want.scores:
            log_probs = self.score_detailed(state, tokens, lengths).log_probs
        after = self._prefill(state, tokens, lengths) if want.state else state
        if want.before:
            read = self.cpu_model.read(_to_host_state(state), tokens, lengths, Want(before=True))
            before = TensorNGramState(torch.as_tensor(read.before.ids, device=self.device))
        return ReadResult(log_probs, after, before)

    @torch.inference_mode()
    def score_detailed(self, state: TensorNGramState, tokens: TokenIds, lengths: TokenIds) -> NGramScores:
        """Score tokens, with the length of each probability's n-gram.

        Raises:
            InputError: see `read`.
        """
        check_shapes(tokens, lengths, len(state))
        counts = np.arange(tokens.shape[1]) < lengths[:, None]
        texts = unpad(tokens, counts, len(self.vocabulary))
        found = kernels.score_unpadded(self._automaton, state.ids, texts)
        padded: list[AnyArray] = [np.zeros(tokens.shape, values.dtype) for values in found]
        for array, values in zip(padded, found, strict=True):
            array[counts] = values
        return NGramScores(*padded)

    @torch.inference_mode()
    def _prefill(self, state: TensorNGramState, tokens: TokenIds, lengths: TokenIds) -> TensorNGramState:
        """Return the state after tokens, of which only the last order − 1 matter."""
        check_shapes(tokens, lengths, len(state))
        # tokens from each position to the row's end
        left = lengths[:, None] - np.arange(tokens.shape[1])
        texts = unpad(tokens, (left >= 1) & (left < self.order), len(self.vocabulary))
        return TensorNGramState(kernels.prefill_unpadded(self._automaton, state.ids, texts))

    @override
    def context_lengths(self, state: TensorNGramState) -> Int64s:
        return self.cpu_model.context_lengths(_to_host_state(state))

    def save(self, directory: Path) -> None:
        """Write config.json and the automaton, as on the CPU."""
        self.cpu_model.save(directory)

    @torch.inference_mode()
    def _state(self, batch: int, number: int) -> TensorNGramState:
        return TensorNGramState(torch.full((batch,), number, dtype=torch.int32, device=self.device))


def _to_host_state(state: TensorNGramState) -> NGramState:
    return NGramState(state.ids.cpu().numpy())


def move_if_it_fits(model: NGramModel, device: str | torch.device) -> TensorNGramModel | NGramModel:
    """Return the model on a device.

    If the device lacks memory or fails, it is the given model, with a warning.
    """
    try:
        return _move_and_try(model, device)
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        reason = str(error).partition("\n")[0]
    torch.cuda.empty_cache()
    _log.warning(
        "n-gram model of %d n-grams stays on the CPU because device %s cannot run it: %s",
        model.automaton.num_arcs,
        device,
        reason,
    )
    return model


def _move_and_try(model: NGramModel, device: str | torch.device) -> TensorNGramModel:
    """Move the model to a device and compute a distribution: that needs memory too."""
    moved = TensorNGramModel(model, device=device)
    moved.next_log_probs(moved.initial_state(1))
    return moved
