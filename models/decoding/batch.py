"""R rows that are decoded together by the parameters of one request, as they grow."""

from collections.abc import Sequence

import numpy as np

from models.arrays import FloatArray, TokenIds
from models.decoding.banned import BannedSequences
from models.decoding.parameters import DecodingParameters
from models.decoding.rows import Int32s, Int64s, Rows, rules_of
from models.vocabulary import BOS, EOS, UNK

_NONE = np.zeros(0, np.int64)


class Batch:
    """Keeps what rules need to know of each row: its prompt, what was generated, which tokens are banned.

    Args:
        parameters: of all rows.
        prompts: tokens of each row's prompt; the same array for rows of one prompt.
        banned: sequences that are never completed.
    """

    def __init__(
        self,
        parameters: DecodingParameters,
        prompts: Sequence[TokenIds],
        banned: BannedSequences | None = None,
    ) -> None:
        self._parameters = parameters
        self._banned = banned
        self._generated = 0
        count = len(prompts)
        self._rules = np.tile(np.array(rules_of(parameters)), (count, 1))
        ids, values = [UNK, BOS], [-np.inf, -np.inf]
        ids += [token_id for token_id, _ in parameters.logit_bias]
        values += [bias for _, bias in parameters.logit_bias]
        self._edit_ids = np.array([*ids, EOS], np.int32)  # the last is left out where `</s>` may come
        self._edit_values = np.array([*values, -np.inf], np.float32)
        self._prompt_ids, self._prompt_spans = _unique(
            prompts if parameters.repetition_penalty != 1 else [_NONE] * count
        )
        self._history = np.zeros((count, 16 if parameters.penalises else 1), np.int32)
        self._lengths = np.zeros(count, np.int64)
        self._nodes = [BannedSequences.START] * count
        self._rows: Rows | None = None

    def rows(self) -> Rows:
        """What is to be known for the next token; valid until the batch changes."""
        if self._rows is None:
            edits = self._shared_edits() if self._banned is None else self._own_edits(self._banned)
            self._rows = Rows(
                self._rules, *edits, self._prompt_ids, self._prompt_spans, self._history, self._lengths
            )
        return self._rows

    def append(self, tokens: TokenIds) -> None:
        """Each row goes on with a token [R]."""
        if self._parameters.penalises:
            if self._generated == self._history.shape[1]:
                self._history = np.concatenate([self._history, np.zeros_like(self._history)], axis=1)
                self._rows = None
            self._history[:, self._generated] = tokens
            self._lengths += 1
        if self._banned is not None:
            pairs = zip(self._nodes, tokens.tolist(), strict=True)
            self._nodes = [self._banned.advance(node, token) for node, token in pairs]
            self._rows = None
        self._generated += 1
        if self._generated == self._parameters.min_tokens:
            self._rows = None

    def select(self, rows: Sequence[int]) -> None:
        """Go on with some of the rows, which may repeat."""
        self._rules = self._rules[: len(rows)] if len(rows) <= len(self._rules) else self._rules[rows]
        self._prompt_spans, self._history = self._prompt_spans[rows], self._history[rows]
        self._lengths = self._lengths[rows]
        self._nodes = [self._nodes[row] for row in rows]
        self._rows = None

    def _num_shared(self) -> int:
        """How many of the edits that all rows share hold now."""
        endless = self._parameters.ignore_eos or self._generated < self._parameters.min_tokens
        return len(self._edit_ids) - (not endless)

    def _shared_edits(self) -> tuple[Int32s, FloatArray, Int64s]:
        spans = np.tile(np.array([0, self._num_shared()]), (len(self._rules), 1))
        return self._edit_ids, self._edit_values, spans

    def _own_edits(self, banned: BannedSequences) -> tuple[Int32s, FloatArray, Int64s]:
        shared_ids = self._edit_ids[: self._num_shared()]
        shared_values = self._edit_values[: self._num_shared()]
        parts = [banned.banned(node) for node in self._nodes]
        ids = np.concatenate([ids for part in parts for ids in (shared_ids, part)])
        values = np.full(len(ids), -np.inf, np.float32)
        ends = np.cumsum([len(shared_ids) + len(part) for part in parts])
        spans = np.stack([np.concatenate([[0], ends[:-1]]), ends], axis=1)
        for first in spans[:, 0]:
            values[first : first + len(shared_values)] = shared_values
        return ids, values, spans


def _unique(prompts: Sequence[TokenIds]) -> tuple[Int32s, Int64s]:
    """The tokens of each prompt once, one after the other, and each row's span; rows of one prompt share theirs."""
    spans: dict[int, tuple[int, int]] = {}
    parts, end = [_NONE.astype(np.int32)], 0
    for prompt in prompts:
        if id(prompt) not in spans:
            parts.append(np.unique(prompt).astype(np.int32))
            spans[id(prompt)] = (end, end := end + len(parts[-1]))
    return np.concatenate(parts), np.array([spans[id(prompt)] for prompt in prompts], np.int64)
