"""Linear mixture: p(w | h) = Σ_i λ_i p_i(w | h), of models that share a vocabulary."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import Array, FloatArray, TokenIds, on_one_device, to_numpy
from models.errors import InvalidInputError, ManifestError, VocabularyMismatchError
from models.protocol import LanguageModel
from models.scoring import consume, score_sequences
from models.vocabulary import Vocabulary


class MixtureState(NamedTuple):
    """One state per part, each of the same B rows."""

    parts: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.parts[0])

    def select(self, rows: TokenIds) -> "MixtureState":
        """Rows of every part."""
        return MixtureState(tuple(part.select(rows) for part in self.parts))

    def concatenate(self, others: Sequence["MixtureState"]) -> "MixtureState":
        """Rows of every part, this one's first."""
        columns = zip(*(other.parts for other in others), strict=True) if others else ((),) * len(self.parts)
        return MixtureState(
            tuple(part.concatenate(rest) for part, rest in zip(self.parts, columns, strict=True))
        )


class MixtureModel:
    """Several models as one.

    Args:
        parts: at least one model; all with the same vocabulary.
        weights: λ, one a part; positive, summing to 1.

    Raises:
        VocabularyMismatchError: the parts' ids do not mean the same tokens.
        InvalidInputError: the weights are no distribution over the parts.
    """

    family = "mixture"

    def __init__(self, parts: Sequence[LanguageModel[Any]], weights: Sequence[float]) -> None:
        if not parts or len(parts) != len(weights):
            raise InvalidInputError(
                f"a mixture of {len(parts)} models has {len(weights)} weights", parameter="weights"
            )
        if not all(w > 0 for w in weights) or not math.isclose(sum(weights), 1.0, abs_tol=1e-6):
            raise InvalidInputError(
                f"mixture weights are {list(weights)}; they must be positive and sum to 1",
                parameter="weights",
            )
        for number, part in enumerate(parts):
            if part.vocabulary.fingerprint != parts[0].vocabulary.fingerprint:
                raise VocabularyMismatchError(
                    f"part {number} ({part.family}) has another vocabulary than part 0 ({parts[0].family})"
                )
        self.parts = tuple(parts)
        self.weights = tuple(float(w) for w in weights)
        self._log_weights: list[float] = np.log(np.asarray(weights, dtype=np.float64)).tolist()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that all parts share."""
        return self.parts[0].vocabulary

    @property
    def normalised(self) -> bool:
        """Whether every part is."""
        return all(part.normalised for part in self.parts)

    @property
    def num_parameters(self) -> int:
        """Numbers learnt by all parts, and the weights."""
        return len(self.weights) + sum(getattr(part, "num_parameters", 0) for part in self.parts)

    def initial_state(self, batch: int) -> MixtureState:
        """The state after `<s>` of every part."""
        return MixtureState(tuple(part.initial_state(batch) for part in self.parts))

    def empty_state(self, batch: int) -> MixtureState:
        """The state of every part after nothing."""
        return MixtureState(tuple(part.empty_state(batch) for part in self.parts))

    def advance(self, state: MixtureState, tokens: TokenIds) -> MixtureState:
        """Consume one token per row [B] in every part."""
        return MixtureState(
            tuple(part.advance(s, tokens) for part, s in zip(self.parts, state.parts, strict=True))
        )

    def next_log_probs(self, state: MixtureState) -> Array:
        """Log of the weighted sum of the parts' next-token probabilities [B, V].

        A torch tensor where every part answers with one on the same device, else NumPy.
        """
        return self._mix([part.next_log_probs(s) for part, s in zip(self.parts, state.parts, strict=True)])

    def score(self, state: MixtureState, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """Log of the weighted sum of the parts' scores [B, T]; 0 past a row's length."""
        scores = [
            score_sequences(part, s, tokens, lengths) for part, s in zip(self.parts, state.parts, strict=True)
        ]
        past_end = np.arange(tokens.shape[1]) >= lengths[:, None]
        mixed = to_numpy(self._mix(scores))
        mixed[past_end] = 0
        return mixed

    def prefill(self, state: MixtureState, tokens: TokenIds, lengths: TokenIds) -> MixtureState:
        """Consume whole sequences, tokens [B, T] of which row b has lengths[b], in every part."""
        return MixtureState(
            tuple(consume(part, s, tokens, lengths) for part, s in zip(self.parts, state.parts, strict=True))
        )

    def save(self, directory: Path) -> None:
        """Write the weights; the parts are checkpoints of their own under `parts/`."""
        config = {"weights": list(self.weights)}
        (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, directory: Path, parts: Sequence[LanguageModel[Any]]) -> "MixtureModel":
        """Rebuild from what `save` wrote and the parts, already loaded.

        Raises:
            ManifestError: config.json does not fit the parts.
        """
        path = directory / "config.json"
        try:
            weights = json.loads(path.read_text(encoding="utf-8"))["weights"]
            return cls(parts, weights)
        except (OSError, ValueError, KeyError, TypeError, OverflowError, InvalidInputError) as error:
            raise ManifestError(f"{path}: not a mixture's configuration: {error}") from None

    def _mix(self, log_probs: Sequence[Array]) -> Array:
        """Log of the weighted sum, computed where the parts are; on the host if that is not one place."""
        parts: Sequence[Any] = log_probs
        logaddexp: Any = np.logaddexp
        if on_one_device(log_probs):
            import torch  # whoever answered with a tensor has brought it in

            logaddexp = torch.logaddexp
        else:
            parts = [to_numpy(part) for part in log_probs]
        total: Array = parts[0] + self._log_weights[0]
        for weight, part in zip(self._log_weights[1:], parts[1:], strict=True):
            logaddexp(total, part + weight, out=total)
        return total


def fit_weights(
    log_probs: npt.NDArray[np.floating[Any]], *, iterations: int = 200, tolerance: float = 1e-7
) -> tuple[float, ...]:
    """Mixture weights that make held-out tokens most probable, by EM.

    λ_i ← mean over tokens of λ_i p_i / Σ_j λ_j p_j (Jelinek and Mercer 1980); the
    likelihood is concave in λ, so the start does not matter.

    Args:
        log_probs: natural-log probabilities [N, M] of N held-out tokens under M models.
        iterations: at most so many.
        tolerance: stop when no weight moves by more.

    Returns:
        M positive weights that sum to 1.

    Raises:
        InvalidInputError: there is no held-out token.
    """
    if log_probs.shape[0] == 0:
        raise InvalidInputError("mixture weights cannot be fitted on no held-out token", parameter="valid")
    peak = log_probs.max(axis=1, keepdims=True)
    p = np.exp(log_probs - np.where(np.isfinite(peak), peak, 0.0), dtype=np.float64)  # [N, M]
    p = p[p.sum(axis=1) > 0]  # tokens that no part thinks possible say nothing about the weights
    weights = np.full(p.shape[1], 1.0 / p.shape[1])
    for _ in range(iterations):
        joint = p * weights
        updated = (joint / joint.sum(axis=1, keepdims=True)).mean(axis=0)
        moved = float(np.abs(updated - weights).max())
        weights = updated
        if moved < tolerance:
            break
    weights = np.maximum(weights, 1e-6)  # a part is kept, however little it helps
    return tuple(float(w) for w in weights / weights.sum())
