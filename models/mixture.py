"""Linear mixture of models with one vocabulary: p(w | h) = Σ_i λ_i(h) p_i(w | h)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from models.arrays import Array, FloatArray, ModelBytes, TokenIds, add_bytes, on_one_device, to_numpy
from models.errors import InputError, ManifestError, VocabularyMismatchError
from models.files import CONFIG_FILE, read_config, write_config
from models.language_model import (
    ChoiceScorer,
    ContextMatcher,
    FeatureExtractor,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Want,
    feature_size,
    read_sequences,
    score_choices,
)

_NEGLIGIBLE = np.float32(-100)
"""Difference of logarithms, negligible beside 1 in single precision."""


class MixtureState(NamedTuple):
    """States of all parts, each with the same B rows."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def select(self, rows: TokenIds) -> "MixtureState":
        """Return the given rows of every part."""
        return MixtureState(tuple(part.select(rows) for part in self.parts))

    def concatenate(self, states: Sequence["MixtureState"]) -> "MixtureState":
        """Return the rows of this state, then those of `states`, for every part."""
        columns = zip(*(state.parts for state in (self, *states)), strict=True)
        return MixtureState(tuple(first.concatenate(rest) for first, *rest in columns))


class MixtureModel(
    ChoiceScorer[MixtureState],
    FeatureExtractor[MixtureState],
    SequenceReader[MixtureState],
    LanguageModel[MixtureState],
):
    """Linear mixture of several models.

    The weights are constant, or depend on the context length that the first `ContextMatcher` among the parts,
    an n-gram model, uses: the longer, the more reliable that model. The context length is the same
    for every next word, unlike the length of a word's n-gram, so rows still sum to 1.

    Args:
        parts: at least one model; all with the same vocabulary.
        weights: λ, one per part; positive, summing to 1.
        weights_by_context: λ for each context length [C, M], instead of `weights`.

    Raises:
        VocabularyMismatchError: the vocabularies of the parts differ.
        InputError: the weights are no distribution over the parts, or the weights by context do not
            match the context lengths of a part.
    """

    family = "mixture"

    def __init__(
        self,
        parts: Sequence[LanguageModel],
        weights: Sequence[float],
        *,
        weights_by_context: Sequence[Sequence[float]] = (),
    ) -> None:
        for row in (weights, *weights_by_context):
            if not parts or len(parts) != len(row):
                raise InputError(f"a mixture of {len(parts)} models has {len(row)} weights", param="weights")
            if not all(w > 0 for w in row) or not math.isclose(sum(row), 1.0, abs_tol=1e-6):
                raise InputError(
                    f"mixture weights are {list(row)}; they must be positive and sum to 1",
                    param="weights",
                )
        for number, part in enumerate(parts):
            if part.vocabulary.fingerprint != parts[0].vocabulary.fingerprint:
                raise VocabularyMismatchError(
                    f"part {number} ({part.family}) has another vocabulary than part 0 ({parts[0].family})"
                )
        self.parts = tuple(parts)
        self.weights = tuple(float(w) for w in weights)
        self.weights_by_context = tuple(tuple(float(w) for w in row) for row in weights_by_context)
        self._matching = find_context_matcher(parts) if weights_by_context else None
        self._matcher: Any = None if self._matching is None else parts[self._matching]
        count = getattr(self._matcher, "num_context_lengths", 0)
        if len(weights_by_context) != count:
            which = "no part has any"
            if self._matching is not None:
                which = f"part {self._matching} ({parts[self._matching].family}) has {count}"
            raise InputError(
                f"there are mixture weights for {len(weights_by_context)} context lengths, but {which}",
                param="weights_by_context",
            )
        # [M], or a row for each context [C, M]
        self._log_weights = np.log(np.asarray(weights_by_context or weights)).astype(np.float32)
        sizes = [feature_size(part) for part in parts]
        # part 0 if none has features
        self._featured = next((number for number, size in enumerate(sizes) if size), 0)
        self.feature_size = sizes[self._featured]
        self.vocabulary, self.normalised = parts[0].vocabulary, all(part.normalised for part in parts)
        learnt = [int(getattr(part, "num_parameters", 0)) for part in parts]
        self.num_parameters = int(self._log_weights.size) + sum(learnt)

    def with_parts(self, parts: Sequence[LanguageModel]) -> "MixtureModel":
        """Return a mixture of other models with the same weights."""
        return MixtureModel(parts, self.weights, weights_by_context=self.weights_by_context)

    @override
    def memory(self) -> ModelBytes:
        return add_bytes(part.memory() for part in self.parts)

    @override
    def initial_state(self, batch: int) -> MixtureState:
        return MixtureState(tuple(part.initial_state(batch) for part in self.parts))

    @override
    def empty_state(self, batch: int) -> MixtureState:
        return MixtureState(tuple(part.empty_state(batch) for part in self.parts))

    @override
    def advance(self, state: MixtureState, tokens: TokenIds) -> MixtureState:
        return MixtureState(
            tuple(part.advance(s, tokens) for part, s in zip(self.parts, state.parts, strict=True))
        )

    def next_log_probs(self, state: MixtureState) -> Array:
        """Return the log of the weighted sum of the parts' next probabilities [B, V].

        A torch tensor if every part returns one on the same device, else a NumPy array.
        """
        log_probs = [part.next_log_probs(s) for part, s in zip(self.parts, state.parts, strict=True)]
        if self._matching is None:
            return self._mix(log_probs, self._log_weights)
        lengths = self._matcher.context_lengths(state.parts[self._matching])
        return self._mix(log_probs, self._log_weights[lengths, None])

    @override
    def read(self, state: MixtureState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        results = []
        for number, (part, s) in enumerate(zip(self.parts, state.parts, strict=True)):
            of_part = want._replace(
                before=want.before or (want.scores and number == self._matching),
                features=want.features and number == self._featured,
            )
            results.append(read_sequences(part, s, tokens, lengths, of_part))
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        log_probs = results[0].log_probs
        if want.scores:
            logs = self._log_weights
            if self._matching is not None:
                used = np.zeros(tokens.shape, np.int64)
                used[is_token] = self._matcher.context_lengths(results[self._matching].before)
                logs = logs[used]
            log_probs = to_numpy(self._mix([result.log_probs for result in results], logs))
            log_probs[~is_token] = 0
        states = zip(*((result.state, result.before) for result in results), strict=True)
        after, before = map(MixtureState, states)
        return ReadResult(log_probs, after, before)

    @override
    def score_choices(self, state: MixtureState, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        scores = [
            score_choices(part, s, rows, tokens) for part, s in zip(self.parts, state.parts, strict=True)
        ]
        weights = self._log_weights
        if self._matching is not None:
            weights = weights[self._matcher.context_lengths(state.parts[self._matching])[rows]]
        return to_numpy(self._mix(scores, weights))

    def features(self, state: MixtureState) -> Array:
        """Return the vectors [B, W] of the first part that has features."""
        part: Any = self.parts[self._featured]
        features: Array = part.features(state.parts[self._featured])
        return features

    def save(self, directory: Path) -> None:
        """Write the weights; the parts are separate checkpoints under `parts/`."""
        rows = self.weights_by_context
        by_context = {"weights_by_context": rows} if rows else {}
        write_config(directory / CONFIG_FILE, {"weights": self.weights, **by_context})

    @classmethod
    def load(cls, directory: Path, parts: Sequence[LanguageModel]) -> "MixtureModel":
        """Rebuild a saved mixture from its folder and its loaded parts.

        Raises:
            ManifestError: config.json does not match the parts.
        """
        path = directory / CONFIG_FILE
        config = read_config(path)
        try:
            return cls(parts, config["weights"], weights_by_context=config.get("weights_by_context", ()))
        except (ValueError, KeyError, TypeError, OverflowError, InputError) as error:
            raise ManifestError(f"{path}: not a mixture's configuration: {error}") from None

    def _mix(self, log_probs: Sequence[Array], log_weights: FloatArray) -> Array:
        """Return the log of the weighted sum, on the parts' device, or on the host if they differ.

        Args:
            log_probs: log-probabilities of each part, all of one shape.
            log_weights: […, M]; all but the last dimension broadcast with `log_probs`.
        """
        parts: Sequence[Any] = log_probs
        add: Any = _logaddexp_in_place
        weights: Any = log_weights
        if on_one_device(log_probs):
            import torch  # already imported: the parts returned tensors

            add = lambda total, more: torch.logaddexp(total, more, out=total)  # noqa: E731 - one of two
            # constant weights stay on the host: as arguments, they are not copied
            weights = torch.as_tensor(log_weights, device=parts[0].device if log_weights.ndim > 1 else None)
        else:
            parts = [to_numpy(part) for part in log_probs]
        total: Array = parts[0] + weights[..., 0]
        for number, part in enumerate(parts[1:], start=1):
            add(total, part + weights[..., number])
        return total


def _logaddexp_in_place(total: FloatArray, more: FloatArray) -> None:
    """Write log(exp(total) + exp(more)) into `total`, ten times as fast as `np.logaddexp`.

    An entry's result does not depend on its position: NumPy computes exponentials and logarithms in single
    precision equally at all positions.
    """
    high = np.maximum(total, more)
    low = np.minimum(total, more, out=total)
    with np.errstate(invalid="ignore"):  # two zero probabilities give −∞ − (−∞)
        low -= high
    np.fmax(low, _NEGLIGIBLE, out=low)
    np.exp(low, out=low)
    low += 1
    np.log(low, out=low)
    low += high


def find_context_matcher(parts: Sequence[LanguageModel]) -> int | None:
    """Return the index of the first part that is a `ContextMatcher`, or None."""
    return next((number for number, part in enumerate(parts) if isinstance(part, ContextMatcher)), None)
