"""Networks as language models: `NeuralModel` in single precision, `Int8Model` on a CPU."""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from models.arrays import Array, FloatArray, ModelBytes, TokenIds, array_bytes
from models.errors import InvalidInputError
from models.language_model import (
    BlockSampler,
    BlockSums,
    ChoiceScorer,
    FeatureExtractor,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Want,
)
from models.neural.constants import MAX_CHOICE_LOGITS, MAX_GRAPH_ROWS, MAX_LOGITS_ON_CUDA
from models.neural.cuda_graphs import CudaGraphSteps, capture_on_cuda
from models.neural.int8.network import Int8Network
from models.neural.int8.output import run_row_slices
from models.neural.network import Network, read_network, resolve_device, write_network
from models.neural.sequences import Int8Reader, TorchReader, advance_one, read_batch
from models.neural.state import NeuralState
from models.tensor_files import PackedWeightCache
from models.vocabulary import BOS, Vocabulary


class NetworkModel(
    ChoiceScorer[NeuralState],
    FeatureExtractor[NeuralState],
    SequenceReader[NeuralState],
    LanguageModel[NeuralState],
):
    """Base class of language models with a network.

    Args:
        network: source of shape and number of parameters.
        vocabulary: tokens of the ids.

    Attributes:
        config: shape of the network; the name of its cell is the family.
        num_parameters: number of learnt values; a matrix shared by embedding and output counts once.
        self_normalised: whether logits were trained to approximate log-probabilities.
        feature_size: width of the output layer's input, E.

    Raises:
        InvalidInputError: network and vocabulary differ in size.
    """

    normalised = True

    def __init__(self, network: Network, vocabulary: Vocabulary) -> None:
        if network.vocab_size != len(vocabulary):
            raise InvalidInputError(
                f"the network predicts {network.vocab_size} tokens, the vocabulary has {len(vocabulary)}",
                parameter="vocabulary",
            )
        self.config = network.config
        self.family: str = network.config.cell
        self.num_parameters = sum(parameter.numel() for parameter in network.parameters())
        self.vocabulary = vocabulary
        self.self_normalised = network.config.self_normalised
        self.feature_size = network.feature_size

    @override
    def initial_state(self, batch: int) -> NeuralState:
        return self._start if batch == 1 else self._start.select(np.zeros(batch, dtype=np.int64))

    @cached_property
    def _start(self) -> NeuralState:
        """State of one row after `<s>`, cached because nearly every request begins with it."""
        return self.advance(self.empty_state(1), np.array([BOS]))


class NeuralModel(NetworkModel):
    """Neural language model for inference in single precision.

    Scores computed in different ways (step by step or at once, alone or in a batch, CPU or CUDA) agree within
    rounding, not bit by bit. Distributions and features are NumPy arrays on a CPU, torch tensors on a CUDA device.

    Args:
        network: moved to the device and switched to evaluation mode.
        vocabulary: tokens of the ids.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.
        weight_cache: cache for the quantised weights of an `Int8Model` of this network; None for process memory.

    Raises:
        InvalidInputError: network and vocabulary differ in size, or the device does not exist.
    """

    def __init__(
        self,
        network: Network,
        vocabulary: Vocabulary,
        *,
        device: str = "cpu",
        weight_cache: PackedWeightCache | None = None,
    ) -> None:
        super().__init__(network, vocabulary)
        self.weight_cache = weight_cache
        self._device = resolve_device(device)
        self._network = network.to(self._device).eval()
        recordable = self._device.type == "cuda" and self.config.attention == "none"
        self._recorded = CudaGraphSteps(self._network, capture_on_cuda) if recordable else None
        self._is_mapped = False

    @override
    def memory(self) -> ModelBytes:
        tensors = (*self._network.parameters(), *self._network.buffers())
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        size = sum(storage.nbytes() for storage in storages.values())
        if self._device.type != "cpu":
            return ModelBytes(device=size)
        return ModelBytes(mapped=size) if self._is_mapped else ModelBytes(own=size)

    @property
    def network(self) -> Network:
        """The network, in evaluation mode; only a trainer may change its parameters."""
        return self._network

    @override
    @torch.inference_mode()
    def empty_state(self, batch: int) -> NeuralState:
        return NeuralState(self._network.initial_hidden(batch))

    @override
    @torch.inference_mode()
    def advance(self, state: NeuralState, tokens: TokenIds) -> NeuralState:
        ids = torch.as_tensor(tokens, dtype=torch.int64, device=self._device)
        if self._recorded is not None and 0 < len(ids) <= MAX_GRAPH_ROWS:
            with torch.cuda.device(self._device):
                return NeuralState(self._recorded.step(ids, state.hidden))
        return NeuralState(advance_one(self._network, ids, state.hidden))

    @override
    @torch.inference_mode()
    def next_log_probs(self, state: NeuralState) -> Array:
        log_probs = self._network.output.log_probs(self._network.features(state.top))
        return log_probs if log_probs.is_cuda else log_probs.numpy()

    @override
    @torch.inference_mode()
    def read(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        return read_batch(TorchReader(self._network, self._device), state, tokens, lengths, want)

    @override
    @torch.inference_mode()
    def score_choices(self, state: NeuralState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        outputs, network = state.top, self._network
        size = max(1, (MAX_LOGITS_ON_CUDA if outputs.is_cuda else MAX_CHOICE_LOGITS) // network.vocab_size)
        scores = np.empty(len(tokens), dtype=np.float32)
        for start in range(0, len(outputs), size):
            cut = slice(*np.searchsorted(rows, [start, start + size]))
            if cut.start == cut.stop:
                continue
            here, chosen = (
                torch.as_tensor(part, device=outputs.device) for part in (rows[cut] - start, tokens[cut])
            )
            features = network.features(outputs[start : start + size])
            scores[cut] = network.output.choice_log_probs(features, here, chosen).cpu().numpy()
        return scores

    @override
    @torch.inference_mode()
    def features(self, state: NeuralState) -> Array:
        features = self._network.features(state.top)
        return features if features.is_cuda else features.numpy()

    def save(self, directory: Path) -> None:
        """Write `config.json` and `model.safetensors` into an existing directory."""
        write_network(self._network, directory)

    @classmethod
    def load(
        cls,
        directory: Path,
        vocabulary: Vocabulary,
        *,
        device: str = "cpu",
        weight_cache: PackedWeightCache | None = None,
    ) -> "NeuralModel":
        """Load a saved model.

        Args:
            directory: a checkpoint.
            vocabulary: the vocabulary that it was saved with.
            device: see the class.
            weight_cache: see the class; its key must identify these files.

        Raises:
            ManifestError: a file was not written by `save`, or does not match the vocabulary.
            InvalidInputError: the device does not exist.
        """
        network = read_network(directory, vocab_size=len(vocabulary))
        model = cls(network, vocabulary, device=device, weight_cache=weight_cache)
        model._is_mapped = True
        return model


class Int8Model(NetworkModel, BlockSampler[NeuralState]):
    """Neural language model with eight-bit weights and activations, on a CPU.

    Weights have a scale per row, activations a scale per row of the batch, and integer sums are exact.
    The results of a row therefore depend only on its own text, to the last bit, in any batch, step by
    step or at once.

    Args:
        network: in single precision; unchanged.
        vocabulary: tokens of the ids.
        weight_cache: cache of quantised weights; None for process memory.

    Raises:
        InvalidInputError: network and vocabulary differ in size, or int8 does not support the network.
    """

    def __init__(
        self, network: Network, vocabulary: Vocabulary, *, weight_cache: PackedWeightCache | None = None
    ) -> None:
        super().__init__(network, vocabulary)
        self._network = Int8Network(network, weight_cache or PackedWeightCache())

    @override
    def memory(self) -> ModelBytes:
        return array_bytes(self._network.weights)

    @override
    def empty_state(self, batch: int) -> NeuralState:
        return NeuralState(self._network.start).select(np.zeros(batch, dtype=np.int64))

    @override
    def advance(self, state: NeuralState, tokens: TokenIds) -> NeuralState:
        ids = np.asarray(tokens, dtype=np.int64).reshape(len(state))  # kernels do not check the shape
        results: dict[int, NeuralState] = {}

        def work(part: slice) -> None:
            results[part.start] = NeuralState(self._network.step(ids[part], state.select(part).hidden))

        run_row_slices(work, len(state))
        first, *rest = (results[start] for start in sorted(results))
        return first.concatenate(rest) if rest else first

    @override
    def next_log_probs(self, state: NeuralState) -> FloatArray:
        return self._network.output.log_probs(self._network.features_of(state.top))

    @override
    def block_sums(self, state: NeuralState, temperatures: FloatArray) -> BlockSums:
        features = self._network.features_of(state.top)
        return self._network.output.block_sums(features, np.ascontiguousarray(temperatures, dtype=np.float32))

    @override
    def logits(self, sums: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        return self._network.output.block_logits(sums.features, np.asarray(rows), np.asarray(blocks))

    @override
    def read(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        return read_batch(Int8Reader(self._network), state, tokens, lengths, want)

    @override
    def score_choices(self, state: NeuralState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        top, scores = state.top, np.empty(len(tokens), np.float32)

        def score_part(part: slice) -> None:
            cut = slice(*np.searchsorted(rows, [part.start, part.stop]))
            features = self._network.features_of(top[part])
            choices = rows[cut] - part.start, tokens[cut]
            scores[cut] = self._network.output.choice_log_probs(features, *choices)

        run_row_slices(score_part, len(top))
        return scores

    @override
    def features(self, state: NeuralState) -> FloatArray:
        return self._network.features(state.top)
