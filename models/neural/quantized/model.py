"""A network in integers as a language model."""

import numpy as np
import torch

from models.arrays import FloatArray, TokenIds
from models.neural.network import Network
from models.neural.quantized.network import Int8Network
from models.neural.quantized.sequences import Want, read_int8_batch
from models.neural.quantized.state import Int8State
from models.neural.served import NetworkModel
from models.neural.threads import run_row_slices
from models.protocol import BlockSums, ReadScores, ReadWithFeatures, ScoresWithFeatures
from models.shelf import PackedWeightCache, PrivateWeightCache
from models.vocabulary import Vocabulary


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
