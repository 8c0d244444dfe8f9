"""Cache language model around any model: recently used tokens become more likely.

`CacheConfig` holds the equations and their sources.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import override

from models.arrays import (
    Float64s,
    FloatArray,
    Int32s,
    ModelBytes,
    SharedSlots,
    TokenIds,
    add_bytes,
    array_bytes,
    to_numpy,
)
from models.cache import kernels
from models.cache.config import CacheConfig
from models.cache.kernels import DynamicMarginals, SimilarityDecay, inner_products
from models.errors import InputError, ManifestError
from models.files import CONFIG_FILE, check_config, read_config, write_config
from models.language_model import (
    BOS,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Want,
    feature_size,
    read_sequences,
    read_step_by_step,
)
from models.tensor_files import map_tensors, write_tensors

FREQUENCIES_FILE = "frequencies.safetensors"
"""File with the expected frequencies of the tokens, for dynamic marginals."""

# bench_families
_SEGMENT_TOKENS = 1_024  # tokens of a row whose features are in memory at once
_MAX_FEATURE_VALUES = 1 << 23  # numbers in feature vectors in memory at once (32 MiB)
_MAX_QUERIES = 128  # maximum tokens whose windows are read in one pass
_MAX_ENTRIES = 1 << 21  # probabilities in memory at once (8 MiB)
_MAX_COSINES = 1 << 21  # in memory at once, unless four windows have more

_MIN_CAPACITY = 16  # of the buffer of a history


class _Buffer(SharedSlots):
    """Tokens and features of histories that share their beginning."""

    __slots__ = ("features", "tokens")

    def __init__(self, capacity: int, width: int) -> None:
        super().__init__(capacity)
        self.tokens = np.empty(capacity, np.int32)
        self.features = np.empty((capacity, width), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The last `window` tokens of a text and the unit vector before each, the newest last; immutable.

    Cheap to extend: a range of a buffer shared with later histories of the text, copied only
    if the buffer is full or another continuation of the text has claimed the next entries.

    Attributes:
        window: maximum tokens.
        buffer: buffer of tokens and features.
        begin: slot of the oldest token.
        end: slot after the newest token.
    """

    window: int
    buffer: _Buffer
    begin: int
    end: int

    @classmethod
    def empty(cls, *, window: int, width: int) -> "History":
        """Return an empty history with unit vectors of `width` numbers; 0 without features."""
        return cls(window, _Buffer(0, width), 0, 0)

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def tokens(self) -> Int32s:
        """Tokens [N]; read-only."""
        return self.buffer.tokens[self.begin : self.end]

    @property
    def features(self) -> FloatArray:
        """Unit vector before each token [N, W]; read-only."""
        return self.buffer.features[self.begin : self.end]

    @property
    def nbytes(self) -> int:
        """Bytes of tokens and features, which other histories may share."""
        return self.tokens.nbytes + self.features.nbytes

    def appended(self, tokens: npt.NDArray[np.integer], features: FloatArray) -> "History":
        """Append tokens [K] and features [K, W], within the window."""
        if len(tokens) == 0:
            return self
        tokens, features = tokens[-self.window :], features[-self.window :]
        end = self.end + len(tokens)
        after = History(self.window, self.buffer, max(self.begin, end - self.window), end)
        if not self.buffer.claim(self.end, end):  # full or taken
            size, num_old = len(after), len(after) - len(tokens)
            slots = min(max(2 * size, _MIN_CAPACITY), self.window + max(self.window // 4, _MIN_CAPACITY))
            buffer = _Buffer(slots, self.buffer.features.shape[1])
            buffer.claim(0, size)
            buffer.tokens[:num_old] = self.tokens[len(self) - num_old :]
            buffer.features[:num_old] = self.features[len(self) - num_old :]
            after = History(self.window, buffer, 0, size)
        added = slice(after.end - len(tokens), after.end)
        after.buffer.tokens[added] = tokens
        after.buffer.features[added] = features
        return after


def score_with_history(
    history: History,
    tokens: TokenIds,
    features: FloatArray,
    *,
    decay: SimilarityDecay,
    vocab_size: int = 0,
) -> tuple[FloatArray, FloatArray, Float64s, History]:
    """Compute the shares of tokens after a history, in memory bounded by window and T.

    Args:
        history: history before the first token; its window applies to all tokens.
        tokens: ids [T].
        features: unit vector before each token [T, W]; W is 0 for a unigram cache.
        decay: decay within the history's window.
        vocab_size: V, for the largest shares too, with one θ and one half-life; else 0.

    Returns:
        Shares and evidence [T, F, H], float32, for F values of θ and H half-lives, as in `kernels.cache_shares`;
        largest shares [T], 0 unless requested; the history after the tokens.
    """
    # the kernels are compiled for this type
    tokens = np.ascontiguousarray(tokens, np.int64)
    kept = tokens != BOS
    before = len(history)
    ends = before + np.cumsum(kept) - kept  # cached tokens before each token [T]
    begins = np.maximum(ends - history.window, 0)
    new = np.ascontiguousarray(features[kept])
    known = np.concatenate([history.tokens, tokens[kept]], dtype=np.int32)
    shape = (len(tokens), len(decay.flatnesses), len(decay.decays))  # [T, F, H]
    shares, evidence = np.empty(shape, np.float32), np.empty(shape, np.float32)
    masses, largest = np.zeros(vocab_size), np.zeros(len(tokens))
    most = min(_MAX_QUERIES, max(4, _MAX_COSINES // max(len(known), 1)))
    for start in range(0, len(tokens), most):
        cut = slice(start, start + most)
        first, last = int(begins[start]), int(ends[cut][-1])
        # cosines [Q, N] of a pass: all windows of its queries lie in [first, last)
        cosines = np.zeros((len(tokens[cut]), last - first), np.float32)
        if features.shape[1]:
            queries = np.ascontiguousarray(features[cut])
            old = history.features[first:]
            inner_products(queries, old, 0, cosines)
            inner_products(queries, new[max(first - before, 0) : last - before], len(old), cosines)
        windows = known[first:last], begins[cut] - first, ends[cut] - first
        results: Any = shares[cut], evidence[cut], masses, largest[cut]
        kernels.cache_shares(cosines, *windows, tokens[cut], *decay, *results)
    return shares, evidence, largest, history.appended(tokens[kept], new)


class CacheState(NamedTuple):
    """State of the wrapped model, and the history of each of its B rows.

    The memory of a row is bounded by the window and shared by continuations of the row.
    """

    inner: Any
    histories: tuple[History, ...]

    def __len__(self) -> int:
        return len(self.histories)

    def select(self, rows: TokenIds) -> "CacheState":
        """Return rows `rows[0], rows[1], …`, which may repeat."""
        return CacheState(self.inner.select(rows), tuple(self.histories[row] for row in rows))

    def concatenate(self, states: Sequence["CacheState"]) -> "CacheState":
        """Join this state's rows and those of `states`."""
        histories = [history for state in (self, *states) for history in state.histories]
        return CacheState(self.inner.concatenate([state.inner for state in states]), tuple(histories))


class CacheScores(NamedTuple):
    """Terms that a cache model mixes for each of N tokens, for one θ and one half-life.

    See `score_with_history`.

    Attributes:
        log_probs: the wrapped model's log-probabilities, adapted by any dynamic marginals [N].
        shares: [N].
        evidence: [N].
        largest: [N]; ignored without a gate.
    """

    log_probs: FloatArray
    shares: FloatArray
    evidence: FloatArray
    largest: Float64s = np.zeros(0)

    def mixed(self, config: CacheConfig) -> FloatArray:
        """Return log-probabilities [N] with the weight of a cache."""
        out = np.empty(len(self.log_probs), np.float32)
        cached = np.ascontiguousarray(self.shares), np.ascontiguousarray(self.evidence), self.largest
        kernels.mix_targets(np.ascontiguousarray(self.log_probs), *cached, _coefficients(config), out)
        return out


def _coefficients(config: CacheConfig) -> Float64s:
    """Return the coefficients of `kernels.effective_weight`."""
    return np.array(config.gate or (config.weight, config.prior), np.float64)


class CacheModel(SequenceReader[CacheState], LanguageModel[CacheState]):
    """Model mixed with a cache of its most recent tokens.

    Computes on the host, whatever the wrapped model's device. While a history is empty, the prediction is the
    wrapped model's. `<s>` is never cached; `</s>` and `<unk>` are, like other tokens.

    Args:
        inner: the model to wrap.
        config: see `CacheConfig`.
        frequencies: u of the dynamic marginals, each token's expected frequency [V]; None without.

    Attributes:
        parts: the wrapped model.
        num_parameters: learnt values: the wrapped model's and the configuration's.

    Raises:
        InputError: the cache is continuous, and the model has no features; or there are dynamic marginals
            without frequencies of the vocabulary.
    """

    family = "cache"

    def __init__(
        self, inner: LanguageModel, config: CacheConfig, frequencies: FloatArray | None = None
    ) -> None:
        if config.kind == "continuous" and not feature_size(inner):
            raise InputError.of(
                "cache.kind",
                f"is continuous, but a model of the family {inner.family} has no features: use unigram",
            )
        self.inner, self.parts = inner, (inner,)
        self.config = config
        self.vocabulary, self.normalised = inner.vocabulary, inner.normalised
        learnt = 2 + len(_coefficients(config)) + (4 if config.marginals else 0)
        self.num_parameters = learnt + int(getattr(inner, "num_parameters", 0))
        self.frequencies, self._marginals = frequencies, None
        if config.marginals is not None:
            if frequencies is None or frequencies.shape != (len(self.vocabulary),):
                raise InputError("the frequencies of dynamic marginals are not those of the vocabulary")
            self._marginals = DynamicMarginals(config.marginals, frequencies, window=config.window)
        self._coefficients = _coefficients(config)
        self._decay = SimilarityDecay.of([config.flatness], [config.half_life], window=config.window)
        # of a unit vector; 0 for a unigram cache
        self._width = kernels.padded_width(feature_size(inner) if config.kind == "continuous" else 0)

    def with_parts(self, parts: Sequence[LanguageModel]) -> "CacheModel":
        """Return the cache around another model, the only part."""
        (inner,) = parts
        return CacheModel(inner, self.config, self.frequencies)

    @override
    def memory(self) -> ModelBytes:
        frequencies = () if self.frequencies is None else (self.frequencies,)
        return add_bytes([self.inner.memory(), array_bytes((*self._decay, *frequencies))])

    @override
    def initial_state(self, batch: int) -> CacheState:
        return self._without_history(self.inner.initial_state(batch), batch)

    @override
    def empty_state(self, batch: int) -> CacheState:
        return self._without_history(self.inner.empty_state(batch), batch)

    @override
    def advance(self, state: CacheState, tokens: TokenIds) -> CacheState:
        tokens = self.vocabulary.check_ids(tokens, param="tokens")
        features = self._features(state.inner)
        after = self.inner.advance(state.inner, tokens)
        histories = tuple(
            history if token == BOS else history.appended(tokens[row : row + 1], features[row : row + 1])
            for row, (history, token) in enumerate(zip(state.histories, tokens, strict=True))
        )
        return CacheState(after, histories)

    @override
    def next_log_probs(self, state: CacheState) -> FloatArray:
        log_probs = np.ascontiguousarray(to_numpy(self.inner.next_log_probs(state.inner)))
        features = self._features(state.inner)
        out, decay = log_probs.copy(), (self._decay.flatnesses[0], self._decay.decays[0])
        for row, history in enumerate(state.histories):
            if len(history) == 0:
                continue
            own = log_probs[row : row + 1]
            if self._marginals:
                own = self._marginals.adapt(own, history.tokens, np.array([len(history)]))
            cosines = np.zeros(len(history), np.float32)
            if self._width:
                inner_products(features[row : row + 1], history.features, 0, cosines[None])
            kernels.mix_row(cosines, history.tokens, *decay, self._coefficients, own[0], out[row])
        return out

    @override
    def read(self, state: CacheState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        if want.before:
            return read_step_by_step(self, state, tokens, lengths, want)
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        self.vocabulary.check_ids(tokens[is_token], param="tokens")
        scores, states = np.zeros(tokens.shape, np.float32), []
        # rows whose features fit into the memory limit
        most = max(1, _MAX_FEATURE_VALUES // max(min(tokens.shape[1], _SEGMENT_TOKENS) * self._width, 1))
        for first in range(0, len(tokens), most):
            rows = slice(first, first + most)
            group = state.select(np.arange(len(state))[rows])
            for start in range(0, tokens.shape[1], _SEGMENT_TOKENS):
                segment = tokens[rows, start : start + _SEGMENT_TOKENS]
                counts = np.clip(lengths[rows] - start, 0, _SEGMENT_TOKENS)
                last = start + _SEGMENT_TOKENS >= tokens.shape[1]
                wanted = want._replace(state=want.state or not last)
                terms, group = self.read_segment(group, segment, counts, wanted)
                for row, (scored, count) in enumerate(zip(terms, counts[: len(terms)], strict=True)):
                    scores[rows][row, start : start + count] = scored.mixed(self.config)
            states.append(group)
        return ReadResult(scores, states[0].concatenate(states[1:]) if states else state)

    def read_segment(
        self, state: CacheState, tokens: TokenIds, lengths: TokenIds, want: Want
    ) -> tuple[list[CacheScores], CacheState]:
        """Read few tokens of each row, in memory proportional to them; see `SequenceReader.read`.

        Returns:
            Terms for each row's tokens, empty if no scores are requested; the state after them.
        """
        marginals = self._marginals if want.scores else None
        wanted = want._replace(
            scores=want.scores and marginals is None,
            before=marginals is not None,
            features=self._width > 0,
        )
        result = read_sequences(self.inner, state.inner, tokens, lengths, wanted)
        vectors = np.zeros((int(lengths.sum()), 0), np.float32)
        if self._width:
            vectors = self._features(result.before)
        ends, scores, histories = np.cumsum(lengths), list[CacheScores](), list[History]()
        for row, (history, count, end) in enumerate(zip(state.histories, lengths, ends, strict=True)):
            ids, units = tokens[row, :count], vectors[end - count : end]
            is_stored = ids != BOS
            log_probs = result.log_probs[row, :count] if wanted.scores else np.zeros(0, np.float32)
            if marginals is not None:
                log_probs = self._adapted(marginals, result.before, end - count, history, ids)
            if not want.scores:
                histories.append(history.appended(ids[is_stored], units[is_stored]))
                continue
            size = len(self.vocabulary) if self.config.gate else 0
            found = score_with_history(history, ids, units, decay=self._decay, vocab_size=size)
            shares, evidence, largest, after = found
            scores.append(CacheScores(log_probs, shares[:, 0, 0], evidence[:, 0, 0], largest))
            histories.append(after)
        return scores, CacheState(result.state, tuple(histories))

    def _adapted(
        self, marginals: DynamicMarginals, before: Any, begin: int, history: History, tokens: TokenIds
    ) -> FloatArray:
        """Return adapted log-probabilities of tokens [T] after states, from row `begin` on."""
        is_stored, out = tokens != BOS, np.empty(len(tokens), np.float32)
        ends = len(history) + np.cumsum(is_stored) - is_stored
        known = np.concatenate([history.tokens, tokens[is_stored]], dtype=np.int32)
        size = max(1, _MAX_ENTRIES // len(self.vocabulary))
        for start in range(0, len(tokens), size):
            cut = slice(start, min(start + size, len(tokens)))
            rows = self.inner.next_log_probs(before.select(np.arange(begin + cut.start, begin + cut.stop)))
            adapted = marginals.adapt(np.ascontiguousarray(to_numpy(rows)), known, ends[cut])
            out[cut] = adapted[np.arange(len(adapted)), tokens[cut]]
        return out

    def save(self, directory: Path) -> None:
        """Write configuration and frequencies; the wrapped model is under `parts/`."""
        write_config(directory / CONFIG_FILE, asdict(self.config))
        if self.frequencies is not None:
            write_tensors(directory / FREQUENCIES_FILE, {"frequencies": self.frequencies})

    @classmethod
    def load(cls, directory: Path, parts: Sequence[LanguageModel]) -> "CacheModel":
        """Rebuild a saved cache model from its folder and its one loaded part.

        Raises:
            ManifestError: config.json is not a cache's, or does not match the part.
        """
        path = directory / CONFIG_FILE
        config = check_config(CacheConfig, read_config(path), path)
        expected = None
        if config.marginals is not None:
            expected = map_tensors(directory / FREQUENCIES_FILE).get("frequencies")
            if expected is None or expected.dtype != np.float32 or not (expected >= 0).all():
                raise ManifestError(f"{directory / FREQUENCIES_FILE}: no frequencies")
        try:
            (inner,) = parts
            return cls(inner, config, expected)
        except (ValueError, InputError) as error:
            raise ManifestError(f"{path}: not a cache's configuration: {error}") from None

    def _without_history(self, inner: Any, batch: int) -> CacheState:
        empty = History.empty(window=self.config.window, width=self._width)
        return CacheState(inner, (empty,) * batch)

    def _features(self, inner: Any) -> FloatArray:
        """Return the unit vector of every row [B, W]; W is 0 for a unigram cache."""
        if not self._width:
            return np.zeros((len(inner), 0), np.float32)
        model: Any = self.inner
        return kernels.to_unit_vectors(to_numpy(model.features(inner)))
