"""Int8 network as a language model: embedding → body → (projection) → output layer."""

from typing import Any, TypeAlias

import numpy as np
from typing_extensions import override

from models.arrays import FloatArray, ModelBytes, TokenIds, array_bytes
from models.errors import InputError
from models.kernels.threads import THREADS, run_row_slices
from models.language_model import BlockSampler, BlockSums, Vocabulary
from models.neural.config import NetworkConfig, NetworkWeights
from models.neural.constants import (
    GROUP_ROWS,
    INT8_ROWS_PER_THREAD,
    INT8_SEGMENT_STEPS,
    INT8_TOKENS_PER_THREAD,
)
from models.neural.int8.layers import Int8Attention, Int8Body, Int8FeedForward, Int8Recurrent, last_vectors
from models.neural.int8.matrix import (
    Int8Rows,
    Parameters,
    gather_rows,
    quantise_rows,
    take_rows,
    zero_int8_rows,
)
from models.neural.int8.output import (
    Int8AdaptiveSoftmax,
    Int8Output,
    Int8Softmax,
    multiply,
    to_int8_rows,
    token_clusters,
)
from models.neural.network_model import HiddenArrays, NetworkModel, NeuralState
from models.tensor_files import PackedWeightCache

NetworkOutputs: TypeAlias = tuple[FloatArray, Int8Rows]
"""The body's outputs before each of T tokens per row [T, B, W], and as integers [T * B]."""


class Int8Model(NetworkModel, BlockSampler[NeuralState]):
    """Neural language model with eight-bit weights and activations, on a CPU.

    Weights have a scale per row, activations a scale per row of the batch, and integer sums are exact.
    A row's results therefore depend only on its own text, to the last bit, in any batch, step by
    step or at once.

    Args:
        weights: in single precision; not kept.
        vocabulary: tokens of the ids.
        weight_cache: cache of quantised weights; None for process memory.

    Raises:
        InputError: network and vocabulary differ in size, or the network has no int8 form.
    """

    group_rows, segment_steps = GROUP_ROWS, INT8_SEGMENT_STEPS

    def __init__(
        self,
        weights: NetworkWeights,
        vocabulary: Vocabulary,
        *,
        weight_cache: PackedWeightCache | None = None,
    ) -> None:
        config, _, arrays = weights
        super().__init__(config, weights.vocab_size, vocabulary)
        if config.int8_problem is not None:
            raise InputError(config.int8_problem, param="precision")
        weight_cache = weight_cache or PackedWeightCache()
        self._weights = weight_cache.arrays
        given = Parameters(arrays, weight_cache)
        body, layers = given.part("body"), Int8FeedForward if config.cell == "feed-forward" else Int8Recurrent
        self.body: Int8Body = layers(config, body if config.attention == "none" else body.part("inner"))
        if config.attention != "none":
            self.body = Int8Attention(self.body, config, body)
        self._empty = NeuralState((np.zeros((1, 1, config.hidden_size), np.float32), *self.body.start))
        self._embedding = given.matrix("embedding", lambda: _token_vectors(config, given))
        projection = given.part("projection")
        is_projected = config.feature_size != config.hidden_size
        self._projection = projection.linear("weight", projection["bias"]) if is_projected else None
        self.output: Int8Output
        if config.output == "adaptive":
            self.output = Int8AdaptiveSoftmax(config, weights.vocab_size, given)
        else:
            matrix = self._embedding if config.tied else given.matrix("output.weight")
            self.output = Int8Softmax(matrix, given["output.bias"])

    @override
    def memory(self) -> ModelBytes:
        return array_bytes(self._weights)

    @override
    def empty_state(self, batch: int) -> NeuralState:
        return self._empty.select(np.zeros(batch, np.int64))

    @override
    def advance(self, state: NeuralState, tokens: TokenIds) -> NeuralState:
        # kernels do not check the shape
        ids = np.asarray(tokens, np.int64).reshape(len(state))

        def work(part: slice) -> NeuralState:
            hidden, alive = state.select(part).hidden, np.array([len(ids[part])])
            outputs, carried = self.body.read(self.embedded(ids[None, part]), alive, hidden[1:])
            return NeuralState((outputs.floats, *carried))

        first, *rest = run_row_slices(work, len(state))
        return first.concatenate(rest) if rest else first

    @override
    def next_log_probs(self, state: NeuralState) -> FloatArray:
        return self.output.log_probs(self.features_of(state.top))

    @override
    def block_sums(self, state: NeuralState, temperatures: FloatArray) -> BlockSums:
        features = self.features_of(state.top)
        return self.output.block_sums(features, np.ascontiguousarray(temperatures, np.float32))

    @override
    def logits(self, sums: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        return self.output.block_logits(sums.features, rows, blocks)

    @override
    def read_segment(
        self, tokens: TokenIds, is_read: Any, hidden: HiddenArrays, *, exact: bool
    ) -> tuple[NetworkOutputs, HiddenArrays]:
        alive = np.count_nonzero(is_read, axis=1)
        last, *rest = map(np.ascontiguousarray, hidden)
        outputs, carried = self.body.read(self.embedded(tokens), alive, tuple(rest))
        quantise_rows(last[0], outputs.rows, 0)
        before = np.concatenate([last, outputs.floats])
        return (before[:-1], outputs.rows), (last_vectors(before, alive, 1), *carried)

    @override
    def score_outputs(
        self, before: NetworkOutputs, steps: TokenIds, rows: TokenIds, ids: TokenIds, *, normalised: bool
    ) -> FloatArray:
        taken = take_rows(before[1], steps * before[0].shape[1] + rows)
        output = self.output
        score = output.target_log_probs if normalised else output.target_logits
        return score(self.features_of(taken), ids)

    @override
    def states_before(self, before: NetworkOutputs, steps: TokenIds, rows: TokenIds) -> NeuralState:
        return NeuralState((before[0][steps, rows][None],))

    @override
    def num_shares(self, lengths: TokenIds) -> int:
        by_tokens = int(lengths.sum()) // INT8_TOKENS_PER_THREAD
        by_rows = int(np.count_nonzero(lengths)) // INT8_ROWS_PER_THREAD
        return max(1, min(THREADS.most, by_tokens, by_rows))

    @override
    def score_choices(self, state: NeuralState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        top, scores = state.top, np.empty(len(tokens), np.float32)

        def score_part(part: slice) -> None:
            cut = slice(*np.searchsorted(rows, [part.start, part.stop]))
            features = self.features_of(top[part])
            choices = rows[cut] - part.start, tokens[cut]
            scores[cut] = self.output.choice_log_probs(features, *choices)

        run_row_slices(score_part, len(top))
        return scores

    @override
    def features(self, state: NeuralState) -> FloatArray:
        top = state.top
        return top if self._projection is None else multiply(self._projection, to_int8_rows(top))

    def embedded(self, tokens: TokenIds) -> Int8Rows:
        """Return the vectors of tokens [T, B] as rows [(T + 1) * B], the first B unused.

        Raises:
            InputError: an id is not in [0, V).
        """
        steps, batch = tokens.shape
        vectors = zero_int8_rows((steps + 1) * batch, self.config.embedding_size)
        size, ids = len(self.vocabulary), np.ascontiguousarray(tokens).reshape(-1)
        if bad := gather_rows(self._embedding, size, ids, vectors, batch):
            raise InputError(f"token id {bad} is not in [0, {size})", param="tokens")
        return vectors

    def features_of(self, outputs: FloatArray | Int8Rows) -> Int8Rows:
        """Return quantised inputs of the output layer from outputs of the body [N, W]."""
        rows = outputs if isinstance(outputs, Int8Rows) else to_int8_rows(outputs)
        return rows if self._projection is None else to_int8_rows(multiply(self._projection, rows))


def _token_vectors(config: NetworkConfig, parameters: Parameters) -> FloatArray:
    """Return the input vectors [V, E] of all tokens; those of clusters are widened."""
    if not (config.tied and config.output == "adaptive"):
        return parameters["embedding.weight"]
    clusters, tails = token_clusters(config, parameters), range(1, len(config.cutoffs) + 1)
    widened = [clusters[f"tables.{tail}"] @ clusters[f"projections.{tail - 1}"] for tail in tails]
    return np.concatenate([clusters["tables.0"], *widened])[clusters["rank"]]
