r"""Scores of whole texts by an n-gram model of words, from their bytes, in one kernel call.

The general way makes a Python object of each word, which costs several times as much as the lookups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import types

from models.arrays import Float32s, Int32s, Int64s, TokenIds, UInt8s
from models.kernels.compilation import version_for
from models.language_model import EOS, UNK
from models.ngram.automaton import Automaton
from models.ngram.model import NGramModel
from models.ngram.scoring import automaton_kernel, score_spans, type_of
from models.tokenizers import Tokenizer, WordTokenizer
from models.word_index import join_lines
from models.word_kernels import BYTES, WORD_TABLE_TYPE, WordHashTable, encode_lines


@automaton_kernel(
    types.int64,
    WORD_TABLE_TYPE,
    types.int32[::1],
    BYTES,
    types.int64,
    types.int32,
    types.int64[::1],
    types.int64[::1],
    types.float32[::1],
)
def score_lines(
    automaton: Automaton,
    table: WordHashTable,
    word_ids: Int32s,
    text: UInt8s,
    last: int,
    start: int,
    tokens: Int64s,
    offsets: Int64s,
    log_probs: Float32s,
) -> int:
    r"""Write the ids and natural-log probabilities of L lines joined by "\n".

    Args:
        automaton: the model.
        table: the words that have ids.
        word_ids: id of each word of the table [W].
        text: the lines.
        last: id to append to each line; −1 for none.
        start: state before each line.
        tokens: written; as long as half the number of bytes, rounded up, and L more [N].
        offsets: written, number of tokens before each line, then in total [L + 1].
        log_probs: written [N].

    Returns:
        −1, or the position of a token outside the vocabulary.
    """
    num_lines = len(offsets) - 1
    words = np.empty(len(tokens), np.int32)
    encode_lines(text, table, word_ids, UNK, words, offsets)
    # move each line by the ids appended before it, the last line first: no word is overwritten
    states = np.empty(num_lines, np.int32)
    added = 0 if last < 0 else 1
    for line in range(num_lines):
        states[line] = start
        begin, end, shift = offsets[line], offsets[line + 1], added * line
        for position in range(begin, end):
            tokens[position + shift] = words[position]
        if added:
            tokens[end + shift] = last
    for line in range(num_lines + 1):
        offsets[line] += added * line
    no_orders, no_backoffs = np.empty(0, np.uint8), np.empty(0, np.float32)
    bad: int = score_spans(
        automaton, states, tokens, offsets[:-1], offsets[1:], log_probs, no_orders, no_backoffs
    )
    return bad


class ScoredLines(NamedTuple):
    """Scores of L texts.

    Attributes:
        tokens: joined ids of all texts [N].
        log_probs: natural-log probability of each token [N].
        offsets: start of each text, then N.
    """

    tokens: TokenIds
    log_probs: Float32s
    offsets: list[int]


class LineScorer:
    """Scorer of texts without contexts, for an n-gram model whose tokens are words between white space.

    Args:
        model: the model.
        tokenizer: its tokenizer.
    """

    def __init__(self, model: NGramModel, tokenizer: WordTokenizer) -> None:
        self._automaton, self._normalise = model.automaton, tokenizer.normaliser.all
        self._words = tokenizer.index
        self._score_lines = version_for(score_lines, type_of(self._automaton))

    @staticmethod
    def of(model: object, tokenizer: Tokenizer) -> "LineScorer | None":
        """Return a scorer for a model and its tokenizer; None for others."""
        if not (isinstance(model, NGramModel) and isinstance(tokenizer, WordTokenizer)):
            return None
        is_plain = tokenizer.pattern is None and tokenizer.members is None and not tokenizer.unicode_spaces
        return LineScorer(model, tokenizer) if is_plain else None

    def score(self, texts: Sequence[str], *, bos: bool, eos: bool) -> ScoredLines:
        """Score each of L ≥ 1 texts, after `<s>` if `bos`, with its `</s>` if `eos`."""
        text, automaton = join_lines(self._normalise(texts)), self._automaton
        size = (len(text) + 1) // 2 + len(texts)  # of a word and the space after it
        tokens, log_probs = np.empty(size, np.int64), np.empty(size, np.float32)
        offsets = np.empty(len(texts) + 1, np.int64)
        start, last = automaton.initial if bos else 0, EOS if eos else -1
        table, ids = self._words.table, self._words.ids
        self._score_lines(automaton, table, ids, text, last, start, tokens, offsets, log_probs)
        return ScoredLines(tokens, log_probs, offsets.tolist())
