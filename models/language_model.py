"""Vocabulary, protocol of all model families, optional capabilities, and scoring with any model.

Decoders, endpoints and metrics depend on `LanguageModel` only: it starts, advances and predicts
from an immutable state. Optional capabilities are separate protocols, detected by `supports`
not by trial calls.

Three control tokens have the same ids in every model: `<unk>` 0, `<s>` 1, `</s>` 2. They are ids,
not spellings: the characters "<s>" in a text are looked up among ordinary tokens only, never
become a control token.

Log-probabilities are natural logarithms. The logarithm of zero is minus infinity in memory and
`LOG_ZERO` in JSON.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs, TypeVar

from models.arrays import Array, Float64s, FloatArray, Int64s, ModelBytes, TokenIds, to_numpy
from models.errors import InputError

UNK, BOS, EOS = 0, 1, 2
CONTROL_TOKENS = ("<unk>", "<s>", "</s>")

C = TypeVar("C")

BLOCK_TOKENS = 64
"""Number of adjacent tokens that one block sum covers."""

_MAX_DISTRIBUTION_ENTRIES = 1 << 21  # of `score_choices`, in memory at once (8 MiB)

LOG_ZERO = -9999.0
"""The logarithm of zero in JSON."""


class Vocabulary:
    """Immutable list of tokens; a token's id is its index in the list.

    Args:
        tokens: the ordinary tokens, in id order from 3 on, without duplicates.

    Attributes:
        tokens: all tokens in id order, the three control tokens first.
        ids: ids of the ordinary tokens, ascending; control tokens are excluded on purpose.

    Raises:
        InputError: a token occurs twice.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = (*CONTROL_TOKENS, *tokens)
        self.ids = {token: index for index, token in enumerate(self.tokens) if index >= len(CONTROL_TOKENS)}
        if len(self.ids) + len(CONTROL_TOKENS) != len(self.tokens):
            seen: set[str] = set()
            twice = next(t for t in self.tokens[3:] if t in seen or seen.add(t))  # type: ignore[func-returns-value]
            raise InputError(f"the vocabulary lists the token {twice!r:.80} twice", param="vocabulary")

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, token_id: int) -> str:
        return self.tokens[token_id]

    def __contains__(self, token: str) -> bool:
        return token in self.ids

    def id_of(self, token: str) -> int:
        """Return the id of an ordinary token; the id of `<unk>` for any other string."""
        return self.ids.get(token, UNK)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the tokens in order: equal exactly for equal vocabularies."""
        text = json.dumps(self.tokens, ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def check_ids(self, ids: Sequence[int] | npt.NDArray[np.integer], *, param: str) -> TokenIds:
        """Return the ids as an array [T] after checking that each is in the vocabulary.

        Raises:
            InputError: an id is outside [0, V); the message names its index and value.
        """
        try:
            array = np.asarray(ids, np.int64).reshape(-1)
        except OverflowError:
            index = next(i for i, v in enumerate(ids) if not -(2**63) <= int(v) < 2**63)
            raise self._outside(param, index, int(ids[index])) from None
        bad = np.flatnonzero((array < 0) | (array >= len(self)))
        if bad.size:
            raise self._outside(param, int(bad[0]), int(array[bad[0]]))
        return array

    def _outside(self, param: str, index: int, value: int) -> InputError:
        return InputError(
            f"{param}[{index}] is {value}, but this model's token ids are 0 to {len(self) - 1}",
            param=f"{param}[{index}]",
        )


class State(Protocol):
    """State of a model after B texts, one row each; immutable."""

    def __len__(self) -> int:
        """Number of rows, B."""

    def select(self, rows: TokenIds) -> Self:
        """Return a state of rows `rows[0], rows[1], …`; rows may repeat."""

    def concatenate(self, states: Sequence[Self]) -> Self:
        """Return a state with this state's rows, then those of each of `states`."""


S = TypeVar("S", bound=State, default=Any)
S_contra = TypeVar("S_contra", bound=State, contravariant=True, default=Any)


def supports(model: object, capability: type[C]) -> TypeIs[C]:
    """True if a model's class has all methods of an optional capability.

    As `isinstance`, which checks all methods at each call (10 µs, Python 3.11).
    """
    return issubclass(type(model), capability)


class LanguageModel(Protocol[S]):
    """A distribution over the next token given the tokens so far.

    Attributes:
        family: name of the family, as in the checkpoint's manifest: `ngram`, `lstm`, ….
        vocabulary: tokens of the ids; V is their number.
        normalised: whether each row of `next_log_probs` sums to 1 within 1e-5.
    """

    family: str
    vocabulary: Vocabulary
    normalised: bool

    def memory(self) -> ModelBytes:
        """Return the memory of the model's weights or tables, without small objects."""

    def initial_state(self, batch: int) -> S:
        """Return the state after `<s>`, in each of `batch` rows."""

    def empty_state(self, batch: int) -> S:
        """Return the state before any token, in each of `batch` rows."""

    def advance(self, state: S, tokens: TokenIds) -> S:
        """Consume one token per row.

        Args:
            state: B rows; unchanged.
            tokens: ids [B], each in [0, V).

        Returns:
            The state after the tokens.

        Raises:
            InputError: shapes do not match, or an id is outside the vocabulary (networks leave this
                check to the caller).
        """

    def next_log_probs(self, state: S) -> Array:
        """Return log-probabilities [B, V] of the next token of each row.

        `</s>` and `<unk>` are predicted like other tokens; `<s>` never, so its entry is minus infinity.
        """


class Want(NamedTuple):
    """Results to compute while sequences are read.

    Attributes:
        scores: log-probabilities of the tokens.
        state: the state after the tokens.
        before: the state before each token.
        features: state before each token, perhaps only what `FeatureExtractor.features` needs.
        normalised: False to score with logits; see `is_self_normalised`.
    """

    scores: bool = False
    state: bool = False
    before: bool = False
    features: bool = False
    normalised: bool = True


SCORES, STATE = Want(scores=True), Want(state=True)


class ReadResult(NamedTuple):
    """Results of reading sequences; a result that was not requested is undefined.

    Attributes:
        log_probs: log-probabilities [B, T], float32; 0 past a row's length.
        state: B rows.
        before: state before each of N tokens, row by row, N rows. It predicts the tokens, but may lack what is
            necessary to advance.
    """

    log_probs: FloatArray = np.zeros((0, 0), np.float32)
    state: Any = None
    before: Any = None


@runtime_checkable
class SequenceReader(Protocol[S_contra]):
    """Optional: read complete sequences in one pass."""

    def read(self, state: S_contra, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        """Read tokens, each given the state and tokens before it, in memory bounded for any number.

        Args:
            state: B rows, the context of each sequence; unchanged.
            tokens: ids [B, T], each in [0, V); entries past a row's length are ignored.
            lengths: [B], each in [0, T]; 0 leaves the state of a row unchanged.
            want: results to compute.

        Raises:
            InputError: shapes do not match, or an id is outside the vocabulary.
        """


@runtime_checkable
class RaggedScorer(Protocol[S_contra]):
    """Optional: score joined sequences, without padding."""

    def score_ragged(self, state: S_contra, tokens: TokenIds, offsets: TokenIds) -> FloatArray:
        """Return log-probabilities [N] of the tokens of B sequences.

        Args:
            state: B rows, the context of each sequence; unchanged.
            tokens: ids of all sequences [N], each in [0, V).
            offsets: start of each sequence, then N [B + 1].

        Raises:
            InputError: shapes do not match, or an id is outside the vocabulary.
        """


@runtime_checkable
class ChoiceScorer(Protocol[S_contra]):
    """Optional: score candidates for the next token, computing each row's distribution once."""

    def score_choices(self, state: S_contra, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        """Return log-probabilities [C] of candidates, each for a row's next token.

        Args:
            state: B rows; unchanged.
            rows: row of each candidate, in ascending order [C].
            tokens: ids [C], each in [0, V).
        """


class TopTokens(NamedTuple):
    """Most probable next tokens of one distribution or of B, by descending probability.

    Attributes:
        ids: [k] or [B, k].
        log_probs: their log-probabilities, in the shape of `ids`.
    """

    ids: TokenIds
    log_probs: FloatArray


@runtime_checkable
class TopKPredictor(Protocol[S_contra]):
    """Optional: find the most probable next tokens without full distributions."""

    def top_k(self, state: S_contra, k: int) -> TopTokens:
        """Return each row's k most probable next tokens; ties in single precision by id.

        Raises:
            InputError: k is not in [1, V].
        """


class BlockSums(NamedTuple):
    """Sums over blocks of tokens, from which the next token of R rows is sampled.

    Attributes:
        log_sums: log-sum-exp of the logits [R], float32; a logit minus this is a log-probability.
        highest: the highest logit [R], float32.
        sums: exp((logit - highest) / temperature), summed over every 64 adjacent tokens [R, V / 64 rounded up],
            float32.
        first: the logits of the first 64 tokens [R, 64], as `BlockSampler.logits` computes them.
        features: the output layer's input; private to the model.
    """

    log_sums: FloatArray
    highest: FloatArray
    sums: FloatArray
    first: FloatArray
    features: Any


@runtime_checkable
class BlockSampler(Protocol[S_contra]):
    """Optional: compute sums for sampling without storing the full distribution."""

    def block_sums(self, state: S_contra, temperatures: FloatArray) -> BlockSums:
        """Return sums for each row's next token, at temperatures above 0 [R], float32."""

    def logits(self, sums: BlockSums, rows: TokenIds, blocks: TokenIds) -> FloatArray:
        """Return the logits [N, 64] of N pairs of row [N] and block of tokens [N]; minus infinity past V."""


@runtime_checkable
class FeatureExtractor(Protocol[S_contra]):
    """Optional: return the vector that predicts the next token, similar for similar futures.

    Wrappers have these methods even if their models lack features: check `feature_size`.

    Attributes:
        feature_size: length of a vector, W; 0 if the model has no features.
    """

    feature_size: int

    def features(self, state: S_contra) -> Array:
        """Return the vector of each row [B, W]."""


def is_lookup(model: LanguageModel) -> bool:
    """True if a model's predictions are table lookups.

    If so, reading is cheap, and merging calls saves nothing.
    """
    return bool(getattr(model, "is_lookup", False))


def ngram_order(model: LanguageModel) -> int | None:
    """Return the length of an n-gram model's longest n-grams; None for other families."""
    return getattr(model, "order", None) if model.family == "ngram" else None


def is_self_normalised(model: LanguageModel) -> bool:
    """True if logits were trained to approximate log-probabilities."""
    return bool(getattr(model, "self_normalised", False))


def feature_size(model: LanguageModel) -> int:
    """Length of a model's feature vectors; 0 if it has no features."""
    return model.feature_size if isinstance(model, FeatureExtractor) else 0


@runtime_checkable
class ContextMatcher(Protocol[S_contra]):
    """Optional: return the length of the context used, as in back-off models.

    Attributes:
        num_context_lengths: number of context lengths, from 0 to one less than this.
    """

    num_context_lengths: int

    def context_lengths(self, state: S_contra) -> Int64s:
        """Number of last tokens that each row's predictions depend on [B]."""


def finite_logprob(logprob: float) -> float:
    """Return a log-probability for JSON, with `LOG_ZERO` instead of minus infinity."""
    return LOG_ZERO if logprob == -math.inf else float(logprob)


def weighted(log_probs: Float64s, weights: npt.ArrayLike) -> Float64s:
    """Multiply log-probabilities [...] by weights; −∞ stays so, unless the weight is 0."""
    impossible = np.isneginf(log_probs)
    products: Float64s = np.multiply(weights, np.where(impossible, 0.0, log_probs))
    products[impossible & np.not_equal(weights, 0)] = -np.inf
    return products


def perplexity(logprob: float, count: int) -> float | None:
    """Return exp(−logprob / count); None if the count or a probability is zero."""
    if count == 0 or logprob == -math.inf:
        return None
    exponent = -logprob / count
    return math.exp(exponent) if exponent < 700 else None  # the largest double is e^709


def bits_per_unit(logprob: float, count: int) -> float | None:
    """Return −logprob in bits per unit (byte, word); None if the count or a probability is 0."""
    if count == 0 or logprob == -math.inf:
        return None
    return -logprob / math.log(2) / count


def entropy_bits(log_probs: FloatArray) -> Float64s:
    """Return the Shannon entropy in bits [B] of each row of log-probabilities [B, V]."""
    p = np.exp(log_probs, dtype=np.float64)
    terms = np.where(p > 0, p * np.where(np.isfinite(log_probs), log_probs, 0.0), 0.0)
    entropies: Float64s = -terms.sum(axis=-1) / math.log(2)
    return entropies


def pad_sequences(sequences: Sequence[Sequence[int] | TokenIds]) -> tuple[TokenIds, TokenIds]:
    """Return ragged sequences as tokens [B, T], padded with `</s>`, and lengths [B]."""
    lengths = np.fromiter((len(s) for s in sequences), np.int64, len(sequences))
    tokens = np.full((len(sequences), int(lengths.max(initial=0))), EOS, np.int64)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
    return tokens, lengths


def read_sequences(
    model: LanguageModel, state: Any, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read lengths[b] tokens of each row [B, T] with any model, in one pass if possible; see `SequenceReader.read`."""
    # a single step avoids the setup for sequences
    if want == STATE and tokens.shape[1] == 1 and lengths.all():
        return ReadResult(state=model.advance(state, tokens[:, 0]))
    if supports(model, SequenceReader):
        return model.read(state, tokens, lengths, want)
    return read_step_by_step(model, state, tokens, lengths, want)


def read_step_by_step(
    model: LanguageModel, state: Any, tokens: TokenIds, lengths: TokenIds, want: Want
) -> ReadResult:
    """Read sequences token by token; see `read_sequences`."""
    scores = np.zeros(tokens.shape, np.float32)
    rows = np.arange(len(lengths))
    finished: list[tuple[TokenIds, Any]] = []
    before: list[tuple[TokenIds, Any]] = []
    for column in range(tokens.shape[1]):
        live = lengths[rows] > column
        if not live.all():  # remove finished rows
            finished.append((rows[~live], state.select(np.flatnonzero(~live))))
            state, rows = state.select(np.flatnonzero(live)), rows[live]
        if rows.size == 0:
            break
        ids = tokens[rows, column]
        if want.before or want.features:
            before.append((rows * tokens.shape[1] + column, state))
        if want.scores:
            scores[rows, column] = to_numpy(model.next_log_probs(state))[np.arange(rows.size), ids]
        state = model.advance(state, ids)
    after = in_order([*finished, (rows, state)] if rows.size else finished) if finished else state
    return ReadResult(scores, after, in_order(before) if before else state.select(rows[:0]))


def in_order(parts: Sequence[tuple[TokenIds, Any]]) -> Any:
    """Return a state of the rows of all parts, in order of their numbers."""
    numbers, (first, *rest) = np.concatenate([n for n, _ in parts]), [state for _, state in parts]
    return first.concatenate(rest).select(np.argsort(numbers))


def score_sequences(model: LanguageModel, state: Any, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
    """Return log-probabilities [B, T] of tokens, 0 past a row's length; see `read_sequences`."""
    return read_sequences(model, state, tokens, lengths, SCORES).log_probs


def prefill_sequences(model: LanguageModel, state: Any, tokens: TokenIds, lengths: TokenIds) -> Any:
    """Return the state after sequences of tokens [B, T]; see `read_sequences`."""
    return read_sequences(model, state, tokens, lengths, STATE).state


def score_choices(model: LanguageModel, state: Any, rows: TokenIds, tokens: TokenIds) -> FloatArray:
    """Return log-probabilities [C] of candidates with any model; see `ChoiceScorer`.

    If the model neither scores choices nor is a lookup, each row's distribution is computed once, a bounded
    number of rows at a time.
    """
    if supports(model, ChoiceScorer):
        return model.score_choices(state, rows, tokens)
    if is_lookup(model):
        lengths = np.ones(len(tokens), np.int64)
        return score_sequences(model, state.select(rows), tokens[:, None], lengths)[:, 0]
    scores = np.empty(len(tokens), np.float32)
    used, numbers = np.unique(rows, return_inverse=True)
    size = max(1, _MAX_DISTRIBUTION_ENTRIES // len(model.vocabulary))
    for first in range(0, len(used), size):
        log_probs = to_numpy(model.next_log_probs(state.select(used[first : first + size])))
        cut = slice(*np.searchsorted(numbers, [first, first + size]))
        scores[cut] = log_probs[numbers[cut] - first, tokens[cut]]
    return scores
