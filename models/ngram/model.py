"""N-gram model: an automaton by the common protocol, with checked inputs and bulk scoring."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from typing_extensions import override

from models.arrays import (
    AnyArray,
    Float64s,
    FloatArray,
    Int32s,
    Int64s,
    ModelBytes,
    TokenIds,
    UInt8s,
    array_bytes,
)
from models.errors import InputError, ManifestError
from models.files import CONFIG_FILE, read_config, write_config
from models.kernels.threads import run_slices
from models.language_model import (
    EOS,
    ContextMatcher,
    LanguageModel,
    RaggedScorer,
    ReadResult,
    SequenceReader,
    TopKPredictor,
    TopTokens,
    Vocabulary,
    Want,
)
from models.ngram import scoring, top_k
from models.ngram.automaton import AUTOMATON_FILE, Automaton
from models.ngram.build import verify_automaton
from models.ngram.scoring import compile_kernels
from models.tokenizers import Tokenizer

_NO_ORDERS, _NO_BACKOFFS = np.zeros(0, np.uint8), np.zeros(0, np.float32)


def check_one_per_row(shape: tuple[int, ...], rows: int) -> None:
    """Raise InputError unless a shape has one token per row of a state."""
    if shape != (rows,):
        raise InputError.of("tokens", f"have the shape {list(shape)}, the state has {rows} rows")


def check_shapes(tokens: TokenIds, lengths: TokenIds, rows: int) -> None:
    """Raise InputError unless tokens are [B, T], and lengths [B] and at most T."""
    if tokens.ndim != 2 or len(tokens) != rows or lengths.shape != (rows,):
        raise InputError.of(
            "tokens",
            f"have the shape {list(tokens.shape)} and lengths {list(lengths.shape)}; "
            f"for a state of {rows} rows they must be [{rows}, T] and [{rows}]",
        )
    if lengths.max(initial=0) > tokens.shape[1]:
        raise InputError.of("lengths", f"go up to {lengths.max()}, tokens have {tokens.shape[1]} columns")


def check_offsets(tokens: TokenIds, offsets: TokenIds, rows: int) -> None:
    """Raise InputError unless tokens are [N], and offsets [B + 1] ascend from 0 to N."""
    if tokens.ndim != 1 or offsets.shape != (rows + 1,):
        raise InputError(
            f"tokens have the shape {list(tokens.shape)} and offsets {list(offsets.shape)}; "
            f"for {rows} rows they must be [N] and [{rows + 1}]",
            param="offsets",
        )
    ascends = offsets[0] == 0 and offsets[-1] == len(tokens)
    # one row's offsets are 0 and N
    if not ascends or (rows > 1 and (offsets[1:] < offsets[:-1]).any()):
        raise InputError.of("offsets", f"do not ascend from 0 to {len(tokens)}")


def check_k(k: int, vocab_size: int) -> None:
    """Raise InputError unless k is in [1, V]."""
    if not 1 <= k <= vocab_size:
        raise InputError.of("k", f"is {k}, it can be 1 to {vocab_size}, the size of the vocabulary")


def check_known(tokens: TokenIds, bad: int, vocab_size: int) -> None:
    """Raise InputError for the token at index `bad` of a batch, unless it is negative."""
    if bad >= 0:
        raise InputError(
            f"token {bad} of the batch is {tokens.flat[bad]}, but token ids are 0 to {vocab_size - 1}",
            param="tokens",
        )


@dataclass(frozen=True, eq=False, slots=True)
class NGramState:
    """B contexts as state numbers of one automaton.

    Rows with equal numbers have the same future, even after different texts.

    Attributes:
        ids: state numbers [B], int32.
    """

    ids: Int32s

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: TokenIds) -> Self:
        """Return rows `rows[0], rows[1], …`, which may repeat."""
        return type(self)(self.ids[rows])

    def concatenate(self, others: Sequence[Self]) -> Self:
        """Return the rows of this state, then those of `others`."""
        return type(self)(np.concatenate([self.ids, *(state.ids for state in others)]))


class NGramScores(NamedTuple):
    """Scores of tokens [B, T] and their n-grams; 0 past a row's length.

    Attributes:
        log_probs: log-probabilities [B, T].
        orders: length of the longest listed n-gram up to the token [B, T], uint8; 1 is a unigram.
        log_backoffs: natural logarithm of the back-off charged to reach that n-gram [B, T].
    """

    log_probs: FloatArray
    orders: UInt8s
    log_backoffs: FloatArray


class NGramModel(
    ContextMatcher[NGramState],
    RaggedScorer[NGramState],
    SequenceReader[NGramState],
    TopKPredictor[NGramState],
    LanguageModel[NGramState],
):
    """Back-off n-gram model of any order and smoothing.

    Args:
        automaton: states and arcs.
        vocabulary: tokens of the word ids.
        normalised: whether all distributions sum to 1, as the estimator or reader says.

    Attributes:
        order: length of the longest n-gram; a context has 0 to order − 1 tokens.
        num_parameters: one probability per n-gram and one back-off weight per context.

    Raises:
        InputError: automaton and vocabulary differ in size.
    """

    family, is_lookup = "ngram", True

    def __init__(self, automaton: Automaton, vocabulary: Vocabulary, *, normalised: bool = True) -> None:
        if automaton.vocab_size != len(vocabulary):
            raise InputError(
                f"the n-gram automaton has {automaton.vocab_size} unigrams, the vocabulary {len(vocabulary)} tokens",
                param="vocabulary",
            )
        compile_kernels(automaton)
        self.automaton = automaton
        self.vocabulary = vocabulary
        self.normalised = normalised
        self.order = self.num_context_lengths = automaton.order
        self.num_parameters = automaton.num_arcs + automaton.num_states

    @override
    def memory(self) -> ModelBytes:
        return array_bytes(self.automaton)

    @override
    def initial_state(self, batch: int) -> NGramState:
        return NGramState(np.full(batch, self.automaton.initial, np.int32))

    @override
    def empty_state(self, batch: int) -> NGramState:
        return NGramState(np.zeros(batch, np.int32))

    @override
    def advance(self, state: NGramState, tokens: TokenIds) -> NGramState:
        tokens = np.ascontiguousarray(tokens, np.int64)
        check_one_per_row(tokens.shape, len(state))
        out = np.empty(len(state), np.int32)
        bad = scoring.advance_rows(self.automaton, state.ids, tokens, out)
        check_known(tokens, bad, len(self.vocabulary))
        return NGramState(out)

    @override
    def next_log_probs(self, state: NGramState) -> FloatArray:
        out = np.empty((len(state), len(self.vocabulary)), np.float32)
        scoring.write_distributions(self.automaton, state.ids, out)
        return out

    @override
    def top_k(self, state: NGramState, k: int) -> TopTokens:
        check_k(k, len(self.vocabulary))
        ids = np.empty((len(state), k), np.int64)
        log_probs = np.empty((len(state), k), np.float32)
        top_k.top_k_words(self.automaton, state.ids, ids, log_probs)
        return TopTokens(ids, log_probs)

    @override
    def read(self, state: NGramState, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        log_probs, before = _NO_BACKOFFS, None
        if want.scores:
            log_probs = np.zeros(tokens.shape, np.float32)
            outputs = log_probs, _NO_ORDERS, _NO_BACKOFFS
            self._walk(scoring.score_spans, state, tokens, lengths, outputs)
        after = self._prefill(state, tokens, lengths) if want.state else state
        if want.before:
            states = np.zeros(tokens.shape, np.int32)
            self._walk(scoring.states_before, state, tokens, lengths, (states,))
            before = NGramState(states[np.arange(tokens.shape[1]) < lengths[:, None]])
        return ReadResult(log_probs, after, before)

    def score_detailed(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> NGramScores:
        """Score tokens, with the length of each probability's n-gram.

        Raises:
            InputError: see `read`.
        """
        kinds = np.float32, np.uint8, np.float32
        scores = NGramScores(*(np.zeros(tokens.shape, kind) for kind in kinds))
        self._walk(scoring.score_spans, state, tokens, lengths, scores)
        return scores

    @override
    def score_ragged(self, state: NGramState, tokens: TokenIds, offsets: TokenIds) -> FloatArray:
        tokens = np.ascontiguousarray(tokens, np.int64)
        offsets = np.ascontiguousarray(offsets, np.int64)
        check_offsets(tokens, offsets, len(state))
        out = np.empty(len(tokens), np.float32)
        spans = tokens, offsets[:-1], offsets[1:]
        bad = scoring.score_spans(self.automaton, state.ids, *spans, out, _NO_ORDERS, _NO_BACKOFFS)
        check_known(tokens, bad, len(self.vocabulary))
        return out

    def _walk(
        self, walk: Any, state: NGramState, tokens: TokenIds, lengths: TokenIds, outputs: Iterable[AnyArray]
    ) -> None:
        """Call a kernel of spans with outputs [B, T] or empty; check the ids."""
        tokens = np.ascontiguousarray(tokens, np.int64)
        lengths = np.ascontiguousarray(lengths, np.int64)
        check_shapes(tokens, lengths, len(state))
        begins = np.arange(len(state)) * tokens.shape[1]
        arrays = tokens, *outputs
        flat, *out = (array.reshape(-1) for array in arrays)
        bad = walk(self.automaton, state.ids, flat, begins, begins + lengths, *out)
        check_known(tokens, bad, len(self.vocabulary))

    def _prefill(self, state: NGramState, tokens: TokenIds, lengths: TokenIds) -> NGramState:
        """Return the state after tokens, of which only the last order − 1 matter."""
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

    @override
    def context_lengths(self, state: NGramState) -> Int64s:
        return np.searchsorted(self.automaton.order_starts, state.ids.astype(np.int64) - 1, side="right")

    def save(self, directory: Path) -> None:
        """Write config.json and the automaton."""
        write_config(directory / CONFIG_FILE, {"order": self.order, "normalised": self.normalised})
        self.automaton.save(directory / AUTOMATON_FILE)

    @classmethod
    def load(cls, directory: Path, vocabulary: Vocabulary, *, device: str) -> "NGramModel":  # noqa: ARG003 - protocol
        """Map a model, given its vocabulary; `device` is ignored.

        Raises:
            ManifestError: a file was not written by `save`, or has another vocabulary.
        """
        path = directory / CONFIG_FILE
        automaton = Automaton.load(directory / AUTOMATON_FILE)
        verify_automaton(automaton, directory / AUTOMATON_FILE)
        config = read_config(path)
        try:
            order, normalised = config["order"], config["normalised"]
            model = cls(automaton, vocabulary, normalised=bool(normalised))
        except (KeyError, InputError) as error:
            raise ManifestError(f"{path}: not an n-gram model's configuration: {error}") from None
        if order != automaton.order:
            raise ManifestError(f"{path}: order is {order}, {AUTOMATON_FILE} has {automaton.order}")
        return model


class SentenceScores(NamedTuple):
    """Natural-log probabilities of the tokens of B sentences, with `</s>`.

    Attributes:
        log_probs: joined log-probabilities of all sentences [N].
        offsets: start of each sentence, then N [B + 1].
    """

    log_probs: FloatArray
    offsets: TokenIds

    @property
    def sums(self) -> Float64s:
        """The log-probability of each sentence [B]."""
        return np.add.reduceat(self.log_probs, self.offsets[:-1], dtype=np.float64)


def score_lines(
    model: NGramModel, tokenizer: Tokenizer, lines: Sequence[str], *, threads: int = 1
) -> SentenceScores:
    """Score each line as a sentence after `<s>`, with its `</s>`.

    Also tokenises in `threads` threads, without effect on the result.

    Raises:
        InputError: the tokenizer has ids outside the model's vocabulary.
    """

    def score(share: slice) -> SentenceScores:
        ids, ends = tokenizer.encode_ragged(lines[share])
        offsets = ends + np.arange(len(ends))  # one </s> per sentence
        tokens: Any = np.insert(ids, ends[1:], EOS)
        state = model.initial_state(len(ends) - 1)
        return SentenceScores(model.score_ragged(state, tokens, offsets), offsets)

    cuts = np.linspace(0, len(lines), max(1, min(threads, len(lines))) + 1).astype(int).tolist()
    parts = run_slices(score, cuts)
    if len(parts) == 1:
        return parts[0]
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    return SentenceScores(
        np.concatenate([part.log_probs for part in parts]), np.concatenate([[0], np.cumsum(lengths)])
    )
