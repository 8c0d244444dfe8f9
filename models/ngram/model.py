"""The n-gram model: the automaton behind the protocol that all families share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from models.arrays import FloatArray, TokenIds
from models.config_file import CONFIG_FILE, read_config, write_config
from models.errors import InvalidInputError, ManifestError
from models.ngram import contexts, distributions, sampling, top, walking
from models.ngram.automaton import AUTOMATON_FILE, Automaton
from models.ngram.inputs import (
    check_k,
    check_offsets,
    check_one_per_row,
    check_shapes,
    token_spans,
    unknown_id_error,
)
from models.ngram.threads import run_balanced
from models.ngram.verification import verify_automaton
from models.protocol import TopTokens
from models.vocabulary import Vocabulary

_NO_ORDERS, _NO_BACKOFFS = np.zeros(0, np.uint8), np.zeros(0, np.float32)


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


class NGramScores(NamedTuple):
    """Scores of tokens [B, T] and where they come from; 0 past a row's length.

    Attributes:
        log_probs: natural-log probabilities [B, T].
        orders: the length of the longest n-gram that is listed and ends in the token [B, T], uint8; 1 is a unigram.
        log_backoffs: natural logarithm of what was charged for backing off to it [B, T].
    """

    log_probs: FloatArray
    orders: npt.NDArray[np.uint8]
    log_backoffs: FloatArray


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
        check_one_per_row(tokens.shape, len(state))
        out = np.empty(len(state), dtype=np.int32)
        bad = walking.advance_rows(self.automaton, state.ids, tokens, out)
        if bad >= 0:
            raise unknown_id_error(tokens, bad, len(self.vocabulary))
        return NGramState(out)

    def next_log_probs(self, state: NGramState) -> FloatArray:
        """Natural-log probabilities [B, V] of the token that follows each row; minus infinity for `<s>`."""
        out = np.empty((len(state), len(self.vocabulary)), dtype=np.float32)
        distributions.write_distributions(self.automaton, state.ids, out)
        return out

    def top_k(self, state: NGramState, k: int) -> TopTokens:
        """The k most probable tokens after each row, found without touching the rest of the vocabulary.

        Those equal in single precision are in order of id.

        Args:
            state: B rows.
            k: at most V.

        Raises:
            InvalidInputError: k is not in [1, V].
        """
        check_k(k, len(self.vocabulary))
        ids = np.empty((len(state), k), dtype=np.int64)
        log_probs = np.empty((len(state), k), dtype=np.float32)
        top.top_k_words(self.automaton, state.ids, ids, log_probs)
        return TopTokens(ids, log_probs)

    def sample(self, state: NGramState, random: np.random.Generator) -> TokenIds:
        """Draw the next token of each row [B] from its distribution, without computing the whole of it.

        Args:
            state: B rows.
            random: gives one seed a row.
        """
        seeds = random.integers(2**64, size=len(state), dtype=np.uint64)
        tokens = np.empty(len(state), dtype=np.int64)
        sampling.sample_words(self.automaton, state.ids, seeds, tokens)
        return tokens

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
        return self._score(state, tokens, lengths, detailed=False).log_probs

    def score_detailed(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> NGramScores:
        """What `score` answers, and from which n-gram each probability comes.

        Raises:
            InvalidInputError: see `score`.
        """
        return self._score(state, tokens, lengths, detailed=True)

    def score_ragged(
        self, state: NGramState, tokens: TokenIds, offsets: TokenIds, *, threads: int = 1
    ) -> FloatArray:
        """Log-probabilities of sequences that lie one after the other, without padding.

        Args:
            state: B rows, the context of each sequence; it is not changed.
            tokens: ids of all sequences [N], each in [0, V).
            offsets: where each sequence starts, and N at the end [B + 1].
            threads: how many cores to use; the answer is the same.

        Returns:
            Natural-log probabilities [N].

        Raises:
            InvalidInputError: the shapes do not fit, or an id is outside the vocabulary.
        """
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        check_offsets(tokens, offsets, len(state))
        out = np.empty(len(tokens), dtype=np.float32)

        def run(rows: slice) -> int:
            begins, ends = offsets[:-1][rows], offsets[1:][rows]
            return walking.score_spans(
                self.automaton, state.ids[rows], tokens, begins, ends, out, _NO_ORDERS, _NO_BACKOFFS
            )

        bad = max(run_balanced(run, offsets, threads))
        if bad >= 0:
            raise unknown_id_error(tokens, bad, len(self.vocabulary))
        return out

    def _score(
        self, state: NGramState, tokens: TokenIds, lengths: TokenIds, *, detailed: bool
    ) -> NGramScores:
        stretches = token_spans(tokens, lengths, len(state))
        scores = NGramScores(
            np.zeros(tokens.shape, dtype=np.float32),
            np.zeros(tokens.shape if detailed else (0, 0), dtype=np.uint8),
            np.zeros(tokens.shape if detailed else (0, 0), dtype=np.float32),
        )
        bad = walking.score_spans(
            self.automaton,
            state.ids,
            *stretches,
            scores.log_probs.reshape(-1),
            scores.orders.reshape(-1),
            scores.log_backoffs.reshape(-1),
        )
        if bad >= 0:
            raise unknown_id_error(stretches.tokens, bad, len(self.vocabulary))
        return scores

    def prefill(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> NGramState:
        """The state after tokens [B, T], of which row b has lengths[b].

        Only the last order − 1 tokens of a row can matter, so that many steps do, however long it is.

        Raises:
            InvalidInputError: the shapes do not fit, or one of those ids is outside the vocabulary.
        """
        tokens, lengths = np.asarray(tokens, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
        check_shapes(tokens, lengths, len(state))
        reach = self.order - 1
        after = NGramState(np.where(lengths >= reach, np.int32(0), state.ids))
        rows = np.arange(len(state))
        for back in range(reach, 0, -1):
            live = lengths >= back
            if live.any():
                column = np.where(live, tokens[rows, np.maximum(lengths - back, 0)], 0)
                after = NGramState(np.where(live, self.advance(after, column).ids, after.ids))
        return after

    @property
    def num_context_lengths(self) -> int:
        """A context has 0 to order − 1 tokens."""
        return self.order

    def context_lengths(self, state: NGramState) -> npt.NDArray[np.int64]:
        """How many of the last tokens each row's future depends on [B]."""
        return contexts.context_lengths(self.automaton, state.ids)

    def context_lengths_per_token(
        self, state: NGramState, tokens: TokenIds, lengths: TokenIds
    ) -> npt.NDArray[np.int64]:
        """The same before each of tokens [B, T], of which row b has lengths[b]; 0 past a row's length.

        Raises:
            InvalidInputError: see `score`.
        """
        stretches = token_spans(tokens, lengths, len(state))
        out = np.zeros(tokens.shape, dtype=np.int64)
        bad = contexts.context_lengths_per_token(self.automaton, state.ids, *stretches, out.reshape(-1))
        if bad >= 0:
            raise unknown_id_error(stretches.tokens, bad, len(self.vocabulary))
        return out

    def save(self, directory: Path) -> None:
        """Write config.json and the automaton."""
        write_config(directory / CONFIG_FILE, {"order": self.order, "normalised": self.normalised})
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
        verify_automaton(automaton, directory / AUTOMATON_FILE)
        config = read_config(path)
        try:
            order, normalised = config["order"], config["normalised"]
            model = cls(automaton, vocabulary, normalised=bool(normalised))
        except (KeyError, InvalidInputError) as error:
            raise ManifestError(f"{path}: not an n-gram model's configuration: {error}") from None
        if order != automaton.order:
            raise ManifestError(f"{path}: order is {order}, {AUTOMATON_FILE} has {automaton.order}")
        return model
