"""The protocol of all model families, their optional capabilities, and scoring with any model.

Decoders, endpoints and metrics are written against `LanguageModel` alone: three verbs over an
immutable state. Optional capabilities are protocols of their own, found with `supports`, never by
calling and catching. `read_sequences` reads whole sequences with any model, for scores, features,
the state after them, or several of these: in one pass where the model has one (`SequenceReader`),
else token by token.

Log-probabilities are natural logarithms. A probability of zero is minus infinity inside, and
`LOG_ZERO` where JSON is written.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs

from models.arrays import Array, FloatArray, ModelBytes, TokenIds, to_numpy
from models.vocabulary import EOS, Vocabulary


class State(Protocol):
    """State of a model after B texts, one row each; immutable."""

    def __len__(self) -> int:
        """The number of rows, B."""
        ...

    def select(self, rows: TokenIds) -> Self:
        """A state of rows `rows[0], rows[1], …` of this one; rows may repeat."""
        ...

    def concatenate(self, states: Sequence[Self]) -> Self:
        """A state with this one's rows, then those of each of `states`."""
        ...


C = TypeVar("C")
S = TypeVar("S", bound=State)
S_contra = TypeVar("S_contra", bound=State, contravariant=True)


def supports(model: object, capability: type[C]) -> TypeIs[C]:
    """Return whether a model's class has all methods of an optional capability.

    The same as `isinstance`, which checks every method of the object each time (10 µs, Python 3.11).
    """
    return issubclass(type(model), capability)


class LanguageModel(Protocol[S]):
    """A distribution over the next token given the tokens so far.

    Attributes:
        family: the family's name, as in the checkpoint's manifest: `ngram`, `lstm`, ….
        vocabulary: the tokens that ids stand for; V is their number.
        normalised: whether each row of `next_log_probs` sums to 1 within 1e-5.
    """

    family: str
    vocabulary: Vocabulary
    normalised: bool

    def memory(self) -> ModelBytes:
        """The memory of the model's weights or tables; small things aside."""
        ...

    def initial_state(self, batch: int) -> S:
        """The state after `<s>`, in each of `batch` rows."""
        ...

    def empty_state(self, batch: int) -> S:
        """The state after nothing at all, in each of `batch` rows."""
        ...

    def advance(self, state: S, tokens: TokenIds) -> S:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary (networks leave this check to
                their callers).
        """
        ...

    def next_log_probs(self, state: S) -> Array:
        """Natural-log probabilities [B, V] of the token that follows each row.

        `</s>` and `<unk>` take part; `<s>` is never predicted, so its entry is minus infinity.
        """
        ...


class Want(NamedTuple):
    """Results to compute while sequences are read.

    Attributes:
        scores: log-probabilities of the tokens.
        state: the state after them.
        features: the vector before each token; see `FeatureExtractor`.
        normalised: False for logits as scores; see `is_self_normalised`.
    """

    scores: bool = False
    state: bool = False
    features: bool = False
    normalised: bool = True


SCORES, STATE = Want(scores=True), Want(state=True)


class ReadResult(NamedTuple):
    """Results of reading sequences; those that were not wanted are undefined.

    Attributes:
        log_probs: natural-log probabilities [B, T], float32; 0 past a row's length.
        features: vectors [B, T, W], float32; 0 past a row's length.
        state: B rows.
    """

    log_probs: FloatArray = np.zeros((0, 0), np.float32)
    features: FloatArray = np.zeros((0, 0, 0), np.float32)
    state: Any = None


@runtime_checkable
class SequenceReader(Protocol[S_contra]):
    """Optional: read whole sequences in one pass."""

    def read(self, state: S_contra, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        """Read tokens, each given the state and the tokens before it; memory is bounded, however many there are.

        Args:
            state: B rows, the context of each sequence; it is not changed.
            tokens: ids [B, T], each in [0, V); what lies past a row's length is ignored.
            lengths: [B], each in [0, T]; 0 leaves a row's state as it was.
            want: results to compute.

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary.
        """
        ...


@runtime_checkable
class RaggedScorer(Protocol[S_contra]):
    """Optional: score concatenated sequences, without padding."""

    def score_ragged(self, state: S_contra, tokens: TokenIds, offsets: TokenIds) -> FloatArray:
        """Natural-log probabilities [N] of the tokens of B sequences.

        Args:
            state: B rows, the context of each sequence; it is not changed.
            tokens: ids of all sequences [N], each in [0, V).
            offsets: where each sequence starts, and N at the end [B + 1].

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary.
        """
        ...


@runtime_checkable
class ChoiceScorer(Protocol[S_contra]):
    """Optional: score single candidates for the next token, computing each row's distribution once."""

    def score_choices(self, state: S_contra, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        """Natural-log probabilities [C] of tokens, each as the next of one row.

        Args:
            state: B rows; it is not changed.
            rows: of each token, never falling [C].
            tokens: ids [C], each in [0, V).
        """
        ...


class TopTokens(NamedTuple):
    """The most probable next tokens of one distribution or of B, the most probable first.

    Attributes:
        ids: [k] or [B, k].
        log_probs: natural logarithms of their probabilities, of the same shape.
    """

    ids: TokenIds
    log_probs: FloatArray


@runtime_checkable
class TopKPredictor(Protocol[S_contra]):
    """Optional: find the most probable next tokens without computing the whole distribution."""

    def top_k(self, state: S_contra, k: int) -> TopTokens:
        """The k most probable tokens after each row; those equal in single precision in order of id.

        Raises:
            InvalidInputError: k is not in [1, V].
        """
        ...


BLOCK_TOKENS = 64
"""Neighbouring tokens of one sum for sampling."""


class BlockSums(NamedTuple):
    """Sums over blocks of tokens, from which the next token of R rows is sampled.

    Attributes:
        log_sums: log-sum-exp of the logits [R], float32; a logit less this is a log-probability.
        highest: the highest logit [R], float32.
        sums: exp((logit - highest) / temperature), summed over every 64 neighbouring tokens [R, V / 64 rounded up],
            float32.
        first: the logits of the first 64 tokens [R, 64], as `BlockSampler.logits` computes them.
        features: input of the output layer; private to the model.
    """

    log_sums: FloatArray
    highest: FloatArray
    sums: FloatArray
    first: FloatArray
    features: Any


@runtime_checkable
class BlockSampler(Protocol[S_contra]):
    """Optional: compute sums for sampling without storing the whole distribution."""

    def block_sums(self, state: S_contra, temperatures: FloatArray) -> BlockSums:
        """Sums for the next token of each row, at a temperature above 0 each [R], float32."""
        ...

    def logits(self, sums: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """The logits [N, 64] of one block of tokens each [N] after rows by number [N]; minus infinity past V."""
        ...


@runtime_checkable
class FeatureExtractor(Protocol[S_contra]):
    """Optional: the vector from which the next token is predicted; similar futures have similar vectors.

    A wrapper of models has these methods even if they have no features: check `feature_size`.

    Attributes:
        feature_size: numbers in a vector, W; 0 if the model has no features.
    """

    feature_size: int

    def features(self, state: S_contra) -> Array:
        """The vector of each row [B, W]."""
        ...


_MAX_DISTRIBUTION_ENTRIES = 1 << 21  # log-probabilities of `score_choices` in memory at once (8 MiB)


def is_lookup(model: LanguageModel[Any]) -> bool:
    """Return whether a model looks its predictions up: reading is cheap, and merging calls saves nothing."""
    return bool(getattr(model, "is_lookup", False))


def is_self_normalised(model: LanguageModel[Any]) -> bool:
    """Return whether a model was trained so that its logits approximate log-probabilities."""
    return bool(getattr(model, "self_normalised", False))


def feature_size(model: LanguageModel[Any]) -> int:
    """Numbers in the feature vectors of a model; 0 if it has none."""
    return model.feature_size if isinstance(model, FeatureExtractor) else 0


@runtime_checkable
class ContextMatcher(Protocol[S_contra]):
    """Optional: the length of the history that the model takes into account, as in back-off models.

    Attributes:
        num_context_lengths: number of context lengths: 0 to one less than this.
    """

    num_context_lengths: int

    def context_lengths(self, state: S_contra) -> npt.NDArray[np.int64]:
        """Number of last tokens on which each row's predictions depend [B]."""
        ...

    def context_lengths_per_token(
        self, state: S_contra, tokens: TokenIds, lengths: TokenIds
    ) -> npt.NDArray[np.int64]:
        """The context lengths before each of given tokens [B, T]; 0 past a row's length."""
        ...


LOG_ZERO = -9999.0
"""The logarithm of zero in JSON."""


def finite_logprob(logprob: float) -> float:
    """The log-probability as JSON has it: `LOG_ZERO` for minus infinity."""
    return LOG_ZERO if logprob == -math.inf else float(logprob)


def perplexity(logprob: float, count: int) -> float | None:
    """exp(−logprob / count); None if the count or a probability is zero."""
    if count == 0 or logprob == -math.inf:
        return None
    exponent = -logprob / count
    return math.exp(exponent) if exponent < 700 else None  # the largest double is e^709


def bits_per_unit(logprob: float, count: int) -> float | None:
    """−logprob in bits, per `count` bytes or words; None if the count or a probability is zero."""
    if count == 0 or logprob == -math.inf:
        return None
    return -logprob / math.log(2) / count


def entropy_bits(log_probs: FloatArray) -> npt.NDArray[np.float64]:
    """Shannon entropy in bits of each row of [B, V] natural-log probabilities, as [B]."""
    p = np.exp(log_probs, dtype=np.float64)
    terms = np.where(p > 0, p * np.where(np.isfinite(log_probs), log_probs, 0.0), 0.0)
    entropies: npt.NDArray[np.float64] = -terms.sum(axis=-1) / math.log(2)
    return entropies


def count_words(text: str) -> int:
    """Words for perplexity per word, whatever the tokenizer: runs between white space."""
    return len(text.split())


def pad_sequences(sequences: Sequence[Sequence[int] | TokenIds]) -> tuple[TokenIds, TokenIds]:
    """Ragged sequences as tokens [B, T], padded with `</s>`, and lengths [B]."""
    lengths = np.fromiter((len(s) for s in sequences), np.int64, len(sequences))
    tokens = np.full((len(sequences), int(lengths.max(initial=0))), EOS, dtype=np.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return tokens, lengths


def read_sequences(
    model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read tokens [B, T], of which row b has lengths[b], with any model; see `SequenceReader.read`.

    A model without `SequenceReader` reads token by token, and has no features.
    """
    # a step spares the preparations for sequences
    if want == STATE and tokens.shape[1] == 1 and lengths.all():
        return ReadResult(state=model.advance(state, tokens[:, 0]))
    if supports(model, SequenceReader):
        return model.read(state, tokens, lengths, want)
    scores = np.zeros(tokens.shape, dtype=np.float32)
    rows = np.arange(len(lengths))
    finished: list[tuple[TokenIds, Any]] = []
    for column in range(tokens.shape[1]):
        live = lengths[rows] > column
        if not live.all():  # rows have different lengths; finished rows drop out
            finished.append((rows[~live], state.select(np.flatnonzero(~live))))
            state, rows = state.select(np.flatnonzero(live)), rows[live]
        if rows.size == 0:
            break
        ids = tokens[rows, column]
        if want.scores:
            scores[rows, column] = to_numpy(model.next_log_probs(state))[np.arange(rows.size), ids]
        state = model.advance(state, ids)
    if finished:
        all_rows = finished[0][1].concatenate([s for _, s in finished[1:]] + ([state] if rows.size else []))
        order = np.concatenate([r for r, _ in finished] + [rows])
        state = all_rows.select(np.argsort(order))
    return ReadResult(scores, np.zeros((*tokens.shape, 0), dtype=np.float32), state)


def score_sequences(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
    """Log-probabilities [B, T] of given tokens with any model, 0 past a row's length; see `read_sequences`."""
    return read_sequences(model, state, tokens, lengths, SCORES).log_probs


def prefill_sequences(model: LanguageModel[Any], state: Any, tokens: TokenIds, lengths: TokenIds) -> Any:
    """The state after whole sequences, tokens [B, T], with any model; see `read_sequences`."""
    return read_sequences(model, state, tokens, lengths, STATE).state


def score_choices(model: LanguageModel[Any], state: Any, rows: TokenIds, tokens: TokenIds) -> FloatArray:
    """Log-probabilities [C] of candidates for the next token with any model; see `ChoiceScorer`.

    Of a model that neither scores choices nor looks them up, each row's distribution is computed once, a bounded
    number at a time.
    """
    if supports(model, ChoiceScorer):
        return model.score_choices(state, rows, tokens)
    if is_lookup(model):
        lengths = np.ones(len(tokens), dtype=np.int64)
        return score_sequences(model, state.select(rows), tokens[:, None], lengths)[:, 0]
    scores = np.empty(len(tokens), dtype=np.float32)
    used, numbers = np.unique(rows, return_inverse=True)
    size = max(1, _MAX_DISTRIBUTION_ENTRIES // len(model.vocabulary))
    for first in range(0, len(used), size):
        log_probs = to_numpy(model.next_log_probs(state.select(used[first : first + size])))
        cut = slice(*np.searchsorted(numbers, [first, first + size]))
        scores[cut] = log_probs[numbers[cut] - first, tokens[cut]]
    return scores
