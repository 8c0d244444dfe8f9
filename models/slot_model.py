"""Language model whose classes are replaced by their members.

p(w | h) = p(w | h') + Σ_c p(c | h') · p(w | c): the first term if w is the model's own token, the
sum over the classes with the member w. h' is the history h in which each member is replaced by one
reading, an ordinary token or the mark of a class, whichever was more probable at its position. The
reading depends on earlier tokens only, so each row sums to 1, as in class-based models (Brown et
al. 1992), even if a member is spelled like an ordinary word.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from typing_extensions import override

from models.arrays import FloatArray, ModelBytes, TokenIds, index_ranges, to_numpy
from models.language_model import (
    STATE,
    ChoiceScorer,
    LanguageModel,
    ReadResult,
    SequenceReader,
    Want,
    is_lookup,
    read_sequences,
    score_choices,
)
from models.slots import Slots, check_slots
from models.tokenizers import Tokenizer


class SlotModel(ChoiceScorer, SequenceReader, LanguageModel):
    """Model over V tokens and the members of classes, W tokens in all; states are those of the model.

    Args:
        model: model over V tokens.
        tokenizer: tokenizer with the members, over W tokens.
    """

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        self.model, self.family, self.normalised = model, model.family, model.normalised
        self.vocabulary, self.is_lookup = tokenizer.vocabulary, is_lookup(model)
        self._num_plain, size = len(model.vocabulary), len(tokenizer.vocabulary)
        shares = {} if tokenizer.members is None else tokenizer.members.shares
        members, classes = np.array([*shares], np.int64).reshape(-1, 2).T
        log_shares = np.log(np.array([*shares.values()])).astype(np.float32)
        self._by_class = [
            (given, members[classes == given], log_shares[classes == given]) for given in np.unique(classes)
        ]
        plain = np.setdiff1d(np.arange(self._num_plain), classes)
        of, tokens = np.concatenate([[plain, plain], [members, classes]], axis=1)
        order = np.lexsort((tokens, of))
        all_shares = np.concatenate([np.zeros(len(plain), np.float32), log_shares])
        # readings of all tokens in order: index of each token's first reading, then their number [W + 1]; the
        # model's token of each reading, and the natural log of the text's probability, given that token
        self._offsets = np.searchsorted(of[order], np.arange(size + 1))
        self._reading_tokens, self._reading_log_shares = tokens[order], all_shares[order]
        # one reading of each token; of a class itself, which no text has, none
        counts = np.diff(self._offsets)
        firsts = np.minimum(self._offsets[:-1], len(tokens) - 1)
        self._token = np.where(counts > 0, self._reading_tokens[firsts], np.arange(size))
        self._log_share = np.where(counts > 0, self._reading_log_shares[firsts], -np.inf).astype(np.float32)
        self._is_ambiguous = counts > 1

    @override
    def memory(self) -> ModelBytes:
        return self.model.memory()

    @override
    def initial_state(self, batch: int) -> Any:
        return self.model.initial_state(batch)

    @override
    def empty_state(self, batch: int) -> Any:
        return self.model.empty_state(batch)

    def advance(self, state: Any, tokens: TokenIds) -> Any:
        """Consume one token per row [B], in its more probable reading."""
        read, unsure = self._token[tokens], np.flatnonzero(self._is_ambiguous[tokens])
        if unsure.size:
            read[unsure], _ = self._resolve(state.select(unsure), tokens[unsure])
        return self.model.advance(state, read)

    def next_log_probs(self, state: Any) -> FloatArray:
        """Return log-probabilities [B, W] of the next token; −∞ for classes."""
        plain = to_numpy(self.model.next_log_probs(state))
        rows = np.full((len(plain), len(self.vocabulary)), -np.inf, np.float32)
        rows[:, : self._num_plain] = plain
        for given, _, _ in self._by_class:
            rows[:, given] = -np.inf
        for given, members, log_shares in self._by_class:
            rows[:, members] = np.logaddexp(rows[:, members], plain[:, [given]] + log_shares)
        return rows

    def read(self, state: Any, tokens: TokenIds, lengths: TokenIds, want: Want) -> ReadResult:
        """Read sequences, members in their more probable reading."""
        read, added = self._read_as(state, tokens, lengths)
        result = read_sequences(self.model, state, read, lengths, want)
        if not want.scores:
            return result
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        return result._replace(
            log_probs=np.where(is_token, to_numpy(result.log_probs) + added, np.float32(0))
        )

    @override
    def score_choices(self, state: Any, rows: TokenIds, tokens: TokenIds) -> FloatArray:
        scores, begins, _ = self._score_readings(state, rows, tokens)
        answer = np.full(len(tokens), -np.inf, np.float32)
        if scores.size:
            known = self._offsets[tokens + 1] > self._offsets[tokens]
            answer[known] = np.logaddexp.reduceat(scores, begins[known])
        return answer

    def _score_readings(
        self, state: Any, rows: TokenIds, tokens: TokenIds
    ) -> tuple[FloatArray, TokenIds, TokenIds]:
        """Return readings' log-probabilities and tokens, and candidates' first readings."""
        first, end = self._offsets[tokens], self._offsets[tokens + 1]
        counts, indices = end - first, index_ranges(first, end)
        begins = np.cumsum(counts) - counts
        read = self._reading_tokens[indices]
        scores = score_choices(self.model, state, np.repeat(rows, counts), read)
        return scores + self._reading_log_shares[indices], begins, read

    def _resolve(self, state: Any, tokens: TokenIds) -> tuple[TokenIds, FloatArray]:
        """Choose the more probable reading of one ambiguous token per row.

        Returns:
            The model's tokens [B], and what all readings add to their log-probabilities [B].
        """
        scores, begins, read = self._score_readings(state, np.arange(len(tokens)), tokens)
        totals = np.logaddexp.reduceat(scores, begins)
        is_best = scores == np.repeat(
            np.maximum.reduceat(scores, begins), np.diff(begins, append=len(scores))
        )
        best = np.flatnonzero(is_best)
        best = best[np.searchsorted(best, begins)]  # the first of equals
        log_shares = self._reading_log_shares[self._offsets[tokens] + best - begins]
        with np.errstate(invalid="ignore"):
            more = np.nan_to_num(totals - scores[best], nan=0.0)
        return read[best], (log_shares + more).astype(np.float32)

    def _read_as(self, state: Any, tokens: TokenIds, lengths: TokenIds) -> tuple[TokenIds, FloatArray]:
        """Return the model's tokens [B, T] and what to add to their log-probabilities [B, T].

        Ambiguous tokens are resolved from left to right, the first of all rows together, then the second, ….
        """
        read, added = self._token[tokens], self._log_share[tokens]
        is_token = np.arange(tokens.shape[1]) < lengths[:, None]
        rows, columns = np.nonzero(self._is_ambiguous[tokens] & is_token)
        # number of tokens read by the state of each row
        done = np.zeros(len(lengths), np.int64)
        live = np.arange(len(lengths))
        while rows.size:
            firsts = np.flatnonzero(np.diff(rows, prepend=-1))
            at, column = rows[firsts], columns[firsts]
            state, live = state.select(np.searchsorted(live, at)), at
            counts = column - done[at]
            indices = np.minimum(done[at, None] + np.arange(max(counts.max(), 1)), column[:, None])
            state = read_sequences(self.model, state, read[at[:, None], indices], counts, STATE).state
            read[at, column], added[at, column] = self._resolve(state, tokens[at, column])
            done[at] = column
            rows, columns = np.delete(rows, firsts), np.delete(columns, firsts)
        return read, added


def without_members(model: LanguageModel) -> LanguageModel:
    """Return the model within a model with members; any other model as it is."""
    return model.model if isinstance(model, SlotModel) else model


def with_slots(
    model: LanguageModel, tokenizer: Tokenizer, given: Mapping[str, Sequence[str] | Mapping[str, float]]
) -> tuple[LanguageModel, Tokenizer]:
    """Return a model and its tokenizer with other members of some classes; others keep theirs.

    Args:
        model: a model, with or without members.
        tokenizer: its tokenizer.
        given: members of classes, a list or weights.

    Raises:
        InputError: see `check_slots`; also a member without a word.
    """
    if tokenizer.members is not None:
        model, tokenizer = without_members(model), tokenizer.members.plain
    checked = check_slots(given, known=tokenizer.classes, param="slots")
    slots: Slots = {**tokenizer.slots, **checked}
    extended = tokenizer.with_slots(slots)
    return SlotModel(model, extended), extended
