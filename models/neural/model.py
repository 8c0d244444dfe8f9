"""Networks as language models: `NeuralModel` in single precision, `Int8Model` on a CPU."""

from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Generic, cast

import numpy as np
import torch
from torch import Tensor

from models.arrays import Array, FloatArray, TokenIds
from models.errors import InvalidInputError
from models.language_model import BlockSums, ReadScores, ReadWithFeatures, S, ScoresWithFeatures
from models.neural.config import NetworkConfig
from models.neural.cuda_graphs import MAX_GRAPH_ROWS, CudaGraphSteps, capture_on_cuda
from models.neural.int8.network import Int8Network
from models.neural.network import Network, read_network, resolve_device, write_network
from models.neural.packed.matrix import BEST_PACKING
from models.neural.packed.network import pack_network
from models.neural.packed.softmax import PackedSoftmax
from models.neural.sequences import (
    Want,
    advance_one,
    features_of_batch,
    prefill_batch,
    read_batch,
    read_int8_batch,
    score_batch,
    score_choices_after,
)
from models.neural.softmax import Softmax
from models.neural.state import Int8State, NeuralState
from models.neural.threads import run_row_slices
from models.tensor_files import PackedWeightCache, PrivateWeightCache
from models.vocabulary import BOS, Vocabulary


class NetworkModel(ABC, Generic[S]):
    """A network and the vocabulary that it predicts.

    Args:
        network: its shape and number of parameters are noted.
        vocabulary: the tokens that ids stand for.

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
        self._config = network.config
        self._num_parameters = sum(parameter.numel() for parameter in network.parameters())
        self._vocabulary = vocabulary

    @property
    def family(self) -> str:
        """The name of the network's cell."""
        return self._config.cell

    @property
    def config(self) -> NetworkConfig:
        """The network's shape."""
        return self._config

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens that ids stand for."""
        return self._vocabulary

    @property
    def num_parameters(self) -> int:
        """Numbers learnt; a matrix shared by embedding and output counts once."""
        return self._num_parameters

    @property
    def self_normalised(self) -> bool:
        """Whether training pulled logits towards log-probabilities."""
        return self._config.self_normalised

    @abstractmethod
    def empty_state(self, batch: int) -> S:
        """The state after nothing."""

    @abstractmethod
    def advance(self, state: S, tokens: TokenIds) -> S:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.
        """

    def initial_state(self, batch: int) -> S:
        """The state after `<s>`."""
        return self._start if batch == 1 else self._start.select(np.zeros(batch, dtype=np.int64))

    @cached_property
    def _start(self) -> S:
        """One row after `<s>`: nearly every request begins there, so it is computed once."""
        return self.advance(self.empty_state(1), np.array([BOS]))


class NeuralModel(NetworkModel[NeuralState]):
    """A neural language model, ready to answer.

    Computes in single precision; two ways to the same score (step by step or whole, alone or in
    a batch, CPU or CUDA) agree within rounding, not bit by bit.

    Args:
        network: its parameters; moved to the device and switched to evaluation.
        vocabulary: the tokens that ids stand for.
        device: `cpu`, `cuda`, `cuda:1`, … or `auto`.
        weight_cache: where packed weights lie; None for this process's memory. Whoever goes on training the network
            gives none.

    Raises:
        InvalidInputError: network and vocabulary differ in size, or there is no such device.
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
        recordable = self._device.type == "cuda" and self._config.attention == "none"
        self._recorded = CudaGraphSteps(self._network, capture_on_cuda) if recordable else None

    @property
    def network(self) -> Network:
        """Its parameters, in evaluation mode; nobody but a trainer may change them."""
        return self._network

    @cached_property
    def _served(self) -> Network:
        """What computes; packed when it is first asked, so that whoever trains the network does so before."""
        if BEST_PACKING is None or self._device.type != "cpu":
            return self._network
        return pack_network(self._network, BEST_PACKING, self.weight_cache)

    @torch.inference_mode()
    def empty_state(self, batch: int) -> NeuralState:
        """The state after nothing."""
        return NeuralState(self._network.initial_hidden(batch))

    @torch.inference_mode()
    def advance(self, state: NeuralState, tokens: TokenIds) -> NeuralState:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.
        """
        ids = self._ids(tokens)
        if self._recorded is not None and 0 < len(ids) <= MAX_GRAPH_ROWS:
            with torch.cuda.device(self._device):
                return NeuralState(self._recorded.step(ids, state.hidden))
        return NeuralState(advance_one(self._served, ids, state.hidden))

    @torch.inference_mode()
    def next_log_probs(self, state: NeuralState) -> Array:
        """Natural-log probabilities [B, V] of the token that follows each row.

        NumPy on a CPU, a torch tensor on a CUDA device.
        """
        log_probs = self._served.log_probs(state.top)
        return log_probs if log_probs.is_cuda else log_probs.numpy()

    @torch.inference_mode()
    def score(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """Log-probabilities of given tokens, each given the state and the tokens before it.

        Memory beyond arguments and result is bounded, however many and long the rows are.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B, T]; what lies past a row's length is ignored.
            lengths: [B], each in [0, T].

        Returns:
            Natural-log probabilities [B, T]; 0 past a row's length.
        """
        return score_batch(self._served, state, tokens, lengths)

    @torch.inference_mode()
    def score_unnormalised(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """Logits of given tokens instead of their log-probabilities; see `score`.

        Only the tokens' own are computed, so the size of the vocabulary costs nothing.
        """
        return score_batch(self._served, state, tokens, lengths, normalised=False)

    @torch.inference_mode()
    def score_choices(self, state: NeuralState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        """Log-probabilities of tokens that may come next, at the cost of a distribution for each row of the state.

        Args:
            state: B rows; it is not changed.
            rows: of each token, never falling [C].
            tokens: ids [C].

        Returns:
            Natural-log probabilities [C].
        """
        return score_choices_after(self._served, state.top, rows, tokens)

    @torch.inference_mode()
    def prefill(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> NeuralState:
        """Consume whole sequences.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B, T]; what lies past a row's length is ignored.
            lengths: [B], each in [0, T].

        Returns:
            The state after row b's first lengths[b] tokens.
        """
        return prefill_batch(self._served, state, tokens, lengths)

    @torch.inference_mode()
    def read(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> ReadScores:
        """What `score` and `prefill` answer, in one pass."""
        scores = np.zeros(tokens.shape, dtype=np.float32)
        return ReadScores(scores, read_batch(self._served, state, tokens, lengths, scores=scores))

    @property
    def feature_size(self) -> int:
        """Numbers in what the output layer reads, E."""
        return self._network.feature_size

    @torch.inference_mode()
    def features(self, state: NeuralState) -> Array:
        """The vectors [B, E] that the output layer reads, to predict the next tokens."""
        features = self._served.features(state.top)
        return features if features.is_cuda else features.numpy()

    @torch.inference_mode()
    def features_per_token(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """The vector before each of given tokens [B, T, E]; see `prefill` for the arguments."""
        return features_of_batch(self._served, state, tokens, lengths)

    @torch.inference_mode()
    def score_with_features(
        self, state: NeuralState, tokens: TokenIds, lengths: TokenIds
    ) -> ScoresWithFeatures:
        """What `score` and `features_along` answer, in one pass."""
        scores = np.zeros(tokens.shape, dtype=np.float32)
        return ScoresWithFeatures(
            scores, features_of_batch(self._served, state, tokens, lengths, scores=scores)
        )

    @torch.inference_mode()
    def read_with_features(self, state: NeuralState, tokens: TokenIds, lengths: TokenIds) -> ReadWithFeatures:
        """What `score_with_features` and `prefill` answer, in one pass."""
        scores = np.zeros(tokens.shape, dtype=np.float32)
        features = np.zeros((*tokens.shape, self.feature_size), dtype=np.float32)
        after = read_batch(self._served, state, tokens, lengths, scores=scores, features=features)
        return ReadWithFeatures(scores, features, after)

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
        """Rebuild from what `save` wrote: a `BlockSamplingModel` where the processor has a faster way to multiply.

        Args:
            directory: a checkpoint.
            vocabulary: the one it was saved with.
            device: see the class.
            weight_cache: for what is packed from these very files.

        Raises:
            ManifestError: a file is not what `save` writes, or does not fit the vocabulary.
            InvalidInputError: there is no such device.
        """
        network = read_network(directory, vocab_size=len(vocabulary))
        kind = BlockSamplingModel if _samples_blocks(network, device) else NeuralModel
        return kind(network, vocabulary, device=device, weight_cache=weight_cache)

    def _ids(self, tokens: TokenIds) -> Tensor:
        return torch.as_tensor(tokens, dtype=torch.int64, device=self._device)


class BlockSamplingModel(NeuralModel):
    """One that tells what a token is drawn by without its whole distribution; see `BlockSampler`.

    Args:
        network: with a softmax over the whole vocabulary.
        vocabulary: see `NeuralModel`.
        device: a processor for which there is a packing.
        weight_cache: see `NeuralModel`.

    Raises:
        InvalidInputError: as `NeuralModel`.
    """

    @torch.inference_mode()
    def block_sums(self, state: NeuralState, temperatures: FloatArray) -> BlockSums:
        """What the next token of each row is drawn by; see `BlockSampler`."""
        features = self._served.features(state.top)
        return self._softmax.block_sums(features, np.ascontiguousarray(temperatures, dtype=np.float32))

    def logits(self, weighed: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of single blocks of tokens; see `BlockSampler`."""
        return self._softmax.logits(weighed.features, np.asarray(rows), np.asarray(blocks))

    @property
    def _softmax(self) -> PackedSoftmax:
        return cast("PackedSoftmax", self._served.output)


def _samples_blocks(network: Network, device: str) -> bool:
    """Whether the output layer is packed."""
    return (
        BEST_PACKING is not None
        and resolve_device(device).type == "cpu"
        and isinstance(network.output, Softmax)
    )


class Int8Model(NetworkModel[Int8State]):
    """A neural language model with weights and activations of eight bits, on a CPU.

    Weights have a scale per row, activations one per row of the batch, and integers are summed
    exactly: what a row is told depends on its own text alone, to the last bit, whoever is in the
    batch, step by step or whole.

    Args:
        network: in single precision; it is not changed.
        vocabulary: the tokens that ids stand for.
        shelf: where rounded weights lie; None for this process's memory.

    Raises:
        InvalidInputError: network and vocabulary differ in size, or the network is of a kind that cannot
            be computed in integers.
    """

    def __init__(
        self, network: Network, vocabulary: Vocabulary, *, shelf: PackedWeightCache | None = None
    ) -> None:
        super().__init__(network, vocabulary)
        self._network = Int8Network(network, shelf or PrivateWeightCache())

    def empty_state(self, batch: int) -> Int8State:
        """The state after nothing."""
        return Int8State(self._network.start).select(np.zeros(batch, dtype=np.int64))

    def advance(self, state: Int8State, tokens: TokenIds) -> Int8State:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.
        """
        ids = np.asarray(tokens, dtype=np.int64).reshape(len(state))  # kernels trust it
        shares: dict[int, Int8State] = {}

        def work(some: slice) -> None:
            shares[some.start] = Int8State(self._network.step(ids[some], state.select(some).hidden))

        run_row_slices(work, len(state))
        first, *others = (shares[start] for start in sorted(shares))
        return first.concatenate(others) if others else first

    def next_log_probs(self, state: Int8State) -> FloatArray:
        """Natural-log probabilities [B, V] of the token that follows each row."""
        return self._network.log_probs(state.top)

    def block_sums(self, state: Int8State, temperatures: FloatArray) -> BlockSums:
        """What the next token of each row is drawn by; see `BlockSampler`."""
        return self._network.block_sums(state.top, np.ascontiguousarray(temperatures, dtype=np.float32))

    def logits(self, weighed: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of single blocks of tokens; see `BlockSampler`."""
        return self._network.logits(weighed.features, np.asarray(rows), np.asarray(blocks))

    def score(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """Log-probabilities of given tokens, each given the state and the tokens before it.

        Memory beyond arguments and result is bounded, however many and long the rows are.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B, T]; what lies past a row's length is ignored.
            lengths: [B], each in [0, T].

        Returns:
            Natural-log probabilities [B, T]; 0 past a row's length.
        """
        scores = np.zeros(tokens.shape, np.float32)
        self._read(state, tokens, lengths, Want(scores))
        return scores

    def score_unnormalised(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """The logits of given tokens [B, T], which spare the sum over the vocabulary; see `score`."""
        scores = np.zeros(tokens.shape, np.float32)
        self._read(state, tokens, lengths, Want(scores, normalised=False))
        return scores

    def score_choices(self, state: Int8State, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        """Log-probabilities of tokens that may come next, at the cost of a distribution for each row of the state.

        Args:
            state: B rows; it is not changed.
            rows: of each token, never falling [C].
            tokens: ids [C].

        Returns:
            Natural-log probabilities [C].
        """
        top, scores = state.top, np.empty(len(tokens), np.float32)

        def choose(some: slice) -> None:
            cut = slice(*np.searchsorted(rows, [some.start, some.stop]))
            scores[cut] = self._network.choice_log_probs(top[some], rows[cut] - some.start, tokens[cut])

        run_row_slices(choose, len(top))
        return scores

    def prefill(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> Int8State:
        """Consume whole sequences; the arguments are those of `score`.

        Returns:
            The state after row b's first lengths[b] tokens.
        """
        return self._read(state, tokens, lengths, Want())

    def read(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> ReadScores:
        """What `score` and `prefill` answer, in one pass."""
        scores = np.zeros(tokens.shape, np.float32)
        return ReadScores(scores, self._read(state, tokens, lengths, Want(scores)))

    @property
    def feature_size(self) -> int:
        """Numbers in what the output layer reads, E."""
        return self._network.feature_size

    def features(self, state: Int8State) -> FloatArray:
        """The vectors [B, E] that the output layer reads, to predict the next tokens."""
        return self._network.features(state.top)

    def features_per_token(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """The vector before each of given tokens [B, T, E]; see `score` for the arguments."""
        features = np.zeros((*tokens.shape, self.feature_size), np.float32)
        self._read(state, tokens, lengths, Want(features=features))
        return features

    def score_with_features(
        self, state: Int8State, tokens: TokenIds, lengths: TokenIds
    ) -> ScoresWithFeatures:
        """What `score` and `features_along` answer, in one pass."""
        reading = self.read_with_features(state, tokens, lengths)
        return ScoresWithFeatures(reading.log_probs, reading.features)

    def read_with_features(self, state: Int8State, tokens: TokenIds, lengths: TokenIds) -> ReadWithFeatures:
        """What `score_with_features` and `prefill` answer, in one pass."""
        scores = np.zeros(tokens.shape, np.float32)
        features = np.zeros((*tokens.shape, self.feature_size), np.float32)
        after = self._read(state, tokens, lengths, Want(scores, features=features))
        return ReadWithFeatures(scores, features, after)

    def _read(self, state: Int8State, tokens: TokenIds, lengths: TokenIds, wanted: Want) -> Int8State:
        """Read sequences, in as many threads as torch would take."""
        threads = torch.get_num_threads()
        return read_int8_batch(self._network, state, tokens, lengths, wanted=wanted, threads=threads)
