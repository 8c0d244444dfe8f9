"""The n-gram model: the automaton behind the protocol that all families share."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.errors import InvalidInputError, ManifestError
from models.ngram import kernels
from models.ngram.automaton import AUTOMATON_FILE, Automaton
from models.vocabulary import Vocabulary

CONFIG_FILE = "config.json"


@dataclass(frozen=True, eq=False, slots=True)
class NGramState:
    """B contexts as state numbers of one automaton.

    Two rows with the same number have the same future, whatever texts led there.

    Attributes:
        ids: state numbers [B], int32.
    """

    ids: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: TokenIds) -> "NGramState":
        """A state with rows `rows[0], rows[1], …` of this one; rows may repeat."""
        return NGramState(self.ids[rows])

    def concatenate(self, others: Sequence["NGramState"]) -> "NGramState":
        """A state with this one's rows, then those of each of `others`."""
        return NGramState(np.concatenate([self.ids, *(other.ids for other in others)]))


class NGramModel:
    """A back-off n-gram model of any order and smoothing.

    Args:
        automaton: states and arcs.
        vocabulary: what word ids mean.
        normalised: whether every distribution sums to 1; the estimator or reader knows.

    Raises:
        InvalidInputError: the automaton is of another vocabulary's size.
    """

    family = "ngram"

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, *, normalised: bool = True) -> None:
        if automaton.vocab_size != len(vocabulary):
            raise InvalidInputError(
                f"the n-gram automaton has {automaton.vocab_size} unigrams, the vocabulary {len(vocabulary)} tokens",
                parameter="vocabulary",
            )
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.normalised = normalised

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return self.automaton.order

    @property
    def num_parameters(self) -> int:
        """One probability per n-gram and one back-off weight per context."""
        return self.automaton.num_arcs + self.automaton.num_states

    def initial_state(self, batch: int) -> NGramState:
        """The state after `<s>`, in each of `batch` rows."""
        return NGramState(np.full(batch, self.automaton.initial, dtype=np.int32))

    def empty_state(self, batch: int) -> NGramState:
        """The empty context, in each of `batch` rows."""
        return NGramState(np.zeros(batch, dtype=np.int32))

    def advance(self, state: NGramState, tokens: TokenIds) -> NGramState:
        """Consume one token per row.

        Args:
            state: B rows; it is not changed.
            tokens: ids [B], each in [0, V).

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary.
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        if tokens.shape != (len(state),):
            raise InvalidInputError(
                f"tokens have the shape {list(tokens.shape)}, the state has {len(state)} rows",
                parameter="tokens",
            )
        out = np.empty(len(state), dtype=np.int32)
        bad = kernels.advance(self.automaton, state.ids, tokens, out)
        if bad >= 0:
            raise self._outside(tokens, bad)
        return NGramState(out)

    def next_log_probs(self, state: NGramState) -> FloatArray:
        """Natural-log probabilities [B, V] of the token that follows each row; minus infinity for `<s>`."""
        out = np.empty((len(state), len(self.vocabulary)), dtype=np.float32)
        kernels.distribution(self.automaton, state.ids, out)
        return out

    def score(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> FloatArray:
        """Log-probabilities of given tokens, each given the state and the tokens before it.

        Args:
            state: B rows, the context of each sequence; it is not changed.
            tokens: ids [B, T], each in [0, V); what lies past a row's length is ignored.
            lengths: [B], each in [0, T].

        Returns:
            Natural-log probabilities [B, T]; 0 past a row's length.

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary.
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        lengths = np.ascontiguousarray(lengths, dtype=np.int64)
        if tokens.ndim != 2 or len(tokens) != len(state) or lengths.shape != (len(state),):
            raise InvalidInputError(
                f"tokens have the shape {list(tokens.shape)} and lengths {list(lengths.shape)}; "
                f"for a state of {len(state)} rows they must be [{len(state)}, T] and [{len(state)}]",
                parameter="tokens",
            )
        if lengths.max(initial=0) > tokens.shape[1]:
            raise InvalidInputError(
                f"lengths go up to {lengths.max()}, tokens have {tokens.shape[1]} columns",
                parameter="lengths",
            )
        out = np.zeros(tokens.shape, dtype=np.float32)
        bad = kernels.score(self.automaton, state.ids, tokens, lengths, out)
        if bad >= 0:
            raise self._outside(tokens, bad)
        return out

    def prefill(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> NGramState:
        """The state after tokens [B, T], of which row b has lengths[b].

        Only the last order − 1 tokens of a row can matter, so that many steps do, however long it is.

        Raises:
            InvalidInputError: one of those ids is outside the vocabulary.
        """
        reach = self.order - 1
        after = NGramState(np.where(lengths >= reach, np.int32(0), state.ids))
        rows = np.arange(len(state))
        for back in range(reach, 0, -1):
            live = lengths >= back
            if live.any():
                column = np.where(live, tokens[rows, np.maximum(lengths - back, 0)], 0)
                after = NGramState(np.where(live, self.advance(after, column).ids, after.ids))
        return after

    def save(self, directory: Path) -> None:
        """Write config.json and the automaton."""
        config = {"order": self.order, "normalised": self.normalised}
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        self.automaton.save(directory / AUTOMATON_FILE)

    @classmethod
    def load(cls, directory: Path, vocabulary: Vocabulary, *, device: str) -> "NGramModel":  # noqa: ARG003 - every family's loader takes it
        """Map what `save` wrote.

        Args:
            directory: a checkpoint.
            vocabulary: the one it was saved with.
            device: not looked at; this family computes on the CPU.

        Raises:
            ManifestError: a file is not what `save` writes, or is of another vocabulary.
        """
        path = directory / CONFIG_FILE
        automaton = Automaton.load(directory / AUTOMATON_FILE)
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            order, normalised = config["order"], config["normalised"]
            model = cls(automaton, vocabulary, normalised=bool(normalised))
        except (OSError, ValueError, KeyError, TypeError, InvalidInputError) as error:
            raise ManifestError(f"{path}: not an n-gram model's configuration: {error}") from None
        if order != automaton.order:
            raise ManifestError(f"{path}: order is {order}, {AUTOMATON_FILE} has {automaton.order}")
        return model

    def _outside(self, tokens: TokenIds, place: int) -> InvalidInputError:
        return InvalidInputError(
            f"token {place} of the batch is {tokens.flat[place]}, but token ids are 0 to {len(self.vocabulary) - 1}",
            parameter="tokens",
        )
