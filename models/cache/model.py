"""Cache language model around any model: recently used tokens become more likely.

`CacheConfig` holds the equations and their sources.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from models.arrays import FloatArray, ModelBytes, TokenIds, add_bytes, array_bytes, to_numpy
from models.cache import kernels
from models.cache.config import CacheConfig
from models.cache.history import History
from models.cache.kernels import SimilarityDecay, inner_products, padded_width, to_unit_vectors
from models.errors import InvalidInputError, ManifestError
from models.files import CONFIG_FILE, read_config, write_config
from models.language_model import (
    FeatureExtractor,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Want,
    feature_size,
    read_sequences,
)
from models.vocabulary import BOS

# bench_families
_SEGMENT_TOKENS = 1_024  # tokens of a row whose features are in memory at once
_MAX_FEATURE_VALUES = 1 << 23  # numbers in all feature vectors in memory at once (32 MiB)
_MAX_QUERIES = 128  # maximum tokens whose windows are read in one pass
_MAX_COSINES = 1 << 21  # in memory at once, unless four windows have more


class CacheShares(NamedTuple):
    """Cache shares of T tokens.

    Attributes:
        shares: share of each token in the sum of weights, for F values of θ and H half-lives [T, F, H],
            float32; 0 if the window is empty.
        evidence: sum of the weights [T, F, H], float32; see `kernels.cache_shares`.
        history: history after the tokens.
    """

    shares: FloatArray
    evidence: FloatArray
    history: History


def score_with_history(
    history: History, tokens: TokenIds, features: FloatArray, *, decay: SimilarityDecay
) -> CacheShares:
    """Return the shares of tokens that follow a history.

    Memory is bounded by window and T.

    Args:
        history: history before the first token; its window applies to all tokens.
        tokens: ids [T].
        features: unit vector before each token [T, W]; W is 0 for a unigram cache.
        decay: decay within the history's window.
    """
    tokens = np.ascontiguousarray(tokens, dtype=np.int64)  # the kernels are compiled for this type
    is_stored = tokens != BOS
    before = len(history)
    ends = before + np.cumsum(is_stored) - is_stored  # number of cached tokens before each token [T]
    begins = np.maximum(ends - history.window, 0)
    new = np.ascontiguousarray(features[is_stored])
    remembered = np.concatenate([history.tokens, tokens[is_stored]], dtype=np.int32)
    shape = (len(tokens), len(decay.flatnesses), len(decay.decays))  # [T, F, H]
    shares, evidence = np.empty(shape, dtype=np.float32), np.empty(shape, dtype=np.float32)
    queries_per_pass = min(_MAX_QUERIES, max(4, _MAX_COSINES // max(len(remembered), 1)))
    for start in range(0, len(tokens), queries_per_pass):
        cut = slice(start, start + queries_per_pass)
        first, last = int(begins[start]), int(ends[cut][-1])
        # cosines [Q, N] of a pass: all windows of its queries lie in [first, last)
        cosines = np.zeros((len(tokens[cut]), last - first), dtype=np.float32)
        if features.shape[1]:
            queries = np.ascontiguousarray(features[cut])
            old = history.features[first:]
            inner_products(queries, old, 0, cosines)
            inner_products(queries, new[max(first - before, 0) : last - before], len(old), cosines)
        kernels.cache_shares(
            cosines,
            remembered[first:last],
            begins[cut] - first,
            ends[cut] - first,
            tokens[cut],
            decay.flatnesses,
            decay.decays,
            shares[cut],
            evidence[cut],
        )
    return CacheShares(shares, evidence, history.appended(tokens[is_stored], new))


class CacheState(NamedTuple):
    """State of the wrapped model, and the history of each of its B rows.

    The memory of a row is bounded by the window and shared by continuations of the row.
    """

    inner: Any
    histories: tuple[History, ...]

    def __len__(self) -> int:
        return len(self.histories)

    def select(self, rows: TokenIds) -> "CacheState":
        """Return a state of rows `rows[0], rows[1], …`; rows may repeat."""
        return CacheState(self.inner.select(rows), tuple(self.histories[row] for row in rows))

    def concatenate(self, states: Sequence["CacheState"]) -> "CacheState":
        """Return a state with the rows of this state, followed by the rows of each of `states`."""
        histories = [history for state in (self, *states) for history in state.histories]
        return CacheState(self.inner.concatenate([state.inner for state in states]), tuple(histories))


class CacheModel(SequenceReader[CacheState], LanguageModel[CacheState]):
    """Model mixed with a cache of its most recent tokens.

    Computes on the host, for any device of the wrapped model. While a history is empty, the prediction is the
    wrapped model's. `<s>` is never cached; `</s>` and `<unk>` are cached like other tokens.

    Args:
        inner: the model to wrap.
        config: see `CacheConfig`.

    Attributes:
        num_parameters: number of learnt values: the wrapped model's, θ, the half-life, λ and μ.

    Raises:
        InvalidInputError: the cache is continuous, and the model has no features.
    """

    family = "cache"

    def __init__(self, inner: LanguageModel[Any], config: CacheConfig) -> None:
        if config.kind == "continuous" and not feature_size(inner):
            raise InvalidInputError(
                f"cache.kind is continuous, but a model of the family {inner.family} has no features: use unigram",
                parameter="cache.kind",
            )
        self.inner = inner
        self.config = config
        self.vocabulary, self.normalised = inner.vocabulary, inner.normalised
        self.num_parameters = 4 + int(getattr(inner, "num_parameters", 0))
        self._decay = SimilarityDecay.of([config.flatness], [config.half_life], window=config.window)
        self._featured: FeatureExtractor[Any] | None = None
        if config.kind == "continuous" and isinstance(inner, FeatureExtractor):
            self._featured = inner
        self._width = padded_width(feature_size(inner)) if self._featured else 0

    @property
    def parts(self) -> tuple[LanguageModel[Any]]:
        """The wrapped model."""
        return (self.inner,)

    def with_parts(self, parts: Sequence[LanguageModel[Any]]) -> "CacheModel":
        """Return the cache around another model, the only part."""
        (inner,) = parts
        return CacheModel(inner, self.config)

    @override
    def memory(self) -> ModelBytes:
        return add_bytes([self.inner.memory(), array_bytes(self._decay)])

    @override
    def initial_state(self, batch: int) -> CacheState:
        return self._without_history(self.inner.initial_state(batch), batch)

    @override
    def empty_state(self, batch: int) -> CacheState:
        return self._without_history(self.inner.empty_state(batch), batch)

    @override
    def advance(self, state: CacheState, tokens: TokenIds) -> CacheState:
        tokens = self.vocabulary.check_ids(tokens, parameter="tokens")
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
        out = log_probs.copy()
        for row, history in enumerate(state.histories):
            if len(history) == 0:
                continue
            cosines = np.zeros(len(history), dtype=np.float32)
            if self._featured:
                inner_products(features[row : row + 1], history.features, 0, cosines[None])
            kernels.mix_row(
                cosines,
                history.tokens,
                self._decay.flatnesses[0],
                self._decay.decays[0],
                self.config.weight,
                self.config.prior,
                log_probs[row],
                out[row],
            )
        return out

    @override
    def read(self, state: CacheState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        self.vocabulary.check_ids(tokens[np.arange(tokens.shape[1]) < lengths[:, None]], parameter="tokens")
        scores, states = np.zeros(tokens.shape, dtype=np.float32), []
        for rows in self._groups(tokens.shape):
            group = state.select(np.arange(len(state))[rows])
            states.append(self._read_rows(group, tokens[rows], lengths[rows], want, scores[rows]))
        after = states[0].concatenate(states[1:]) if states else state
        return ReadResult(scores, np.zeros((*tokens.shape, 0), dtype=np.float32), after)

    def save(self, directory: Path) -> None:
        """Write the cache's configuration; the wrapped model is a separate checkpoint under `parts/`."""
        write_config(directory / CONFIG_FILE, dataclasses.asdict(self.config))

    @classmethod
    def load(cls, directory: Path, parts: Sequence[LanguageModel[Any]]) -> "CacheModel":
        """Rebuild a saved cache model from its directory and its one part, already loaded.

        Raises:
            ManifestError: config.json is not a cache's, or does not match the part.
        """
        path = directory / CONFIG_FILE
        config = read_config(path)
        try:
            (inner,) = parts
            return cls(inner, CacheConfig(**config))
        except (ValueError, TypeError, InvalidInputError) as error:
            raise ManifestError(f"{path}: not a cache's configuration: {error}") from None

    def _without_history(self, inner: Any, batch: int) -> CacheState:
        empty = History.empty(window=self.config.window, width=self._width)
        return CacheState(inner, (empty,) * batch)

    def _features(self, inner: Any) -> FloatArray:
        """Return the unit vector of every row [B, W]; W is 0 for a unigram cache."""
        if self._featured is None:
            return np.zeros((len(inner), 0), dtype=np.float32)
        return to_unit_vectors(to_numpy(self._featured.features(inner)))

    def _groups(self, shape: tuple[int, ...]) -> Iterator[slice]:
        """Yield slices of rows whose features fit into the memory limit."""
        rows, width = shape
        size = max(1, _MAX_FEATURE_VALUES // max(min(width, _SEGMENT_TOKENS) * self._width, 1))
        for start in range(0, rows, size):
            yield slice(start, start + size)

    def _read_rows(
        self, state: CacheState, tokens: TokenIds, lengths: TokenIds, want: Want, out: FloatArray
    ) -> CacheState:
        """Return the state after tokens of a few rows; write scores [B, T] to `out` if requested."""
        inner, histories = state.inner, list(state.histories)
        for start in range(0, tokens.shape[1], _SEGMENT_TOKENS):
            segment = tokens[:, start : start + _SEGMENT_TOKENS]
            counts = np.clip(lengths - start, 0, _SEGMENT_TOKENS)
            last = start + _SEGMENT_TOKENS >= tokens.shape[1]
            wanted = want._replace(state=want.state or not last, features=self._featured is not None)
            result = read_sequences(self.inner, inner, segment, counts, wanted)
            features = result.features if self._featured else np.zeros((*segment.shape, 0), np.float32)
            for row, count in enumerate(counts):
                ids, vectors = segment[row, :count], to_unit_vectors(features[row, :count])
                if not want.scores:
                    is_stored = ids != BOS
                    histories[row] = histories[row].appended(ids[is_stored], vectors[is_stored])
                    continue
                scored = score_with_history(histories[row], ids, vectors, decay=self._decay)
                histories[row] = scored.history
                kernels.mix_targets(
                    result.log_probs[row, :count],
                    scored.shares[:, 0, 0].copy(),
                    scored.evidence[:, 0, 0].copy(),
                    self.config.weight,
                    self.config.prior,
                    out[row, start : start + count],
                )
            inner = result.state
        return CacheState(inner, tuple(histories))
