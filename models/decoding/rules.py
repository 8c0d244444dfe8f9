"""Decoding rules: stop strings, and rules of rows as arrays for kernels: biases, penalties, work buffers.

Stop strings are found in text that arrives in pieces, and as the token sequences that spell a text.
"""

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import AnyArray, Bools, Float64s, FloatArray, Int32s, Int64s, TokenIds
from models.decoding.parameters import DecodingParameters
from models.language_model import UNK
from models.phrases import NO_TOKEN_PHRASES, PhraseAutomaton
from models.tokenizers import Tokenizer

_PRECEDING = ("a", "e", "s", ".")
"""Characters before a text that is tokenised in the middle of a word."""

_MAX_VALUES = 1 << 20
"""Maximum values that are kept (8 MiB)."""

Nodes: TypeAlias = tuple[int, int]
"""Node of the banned and of the weighted sequences after the generated tokens."""

TEMPERATURE, TOP_K, TYPICAL_P, TOP_P, MIN_P, REPETITION, PRESENCE, FREQUENCY, END_AFTER = range(9)
"""Columns of `KernelRows.rules`: temperature 0 is greedy, top-k 0 off, END_AFTER the minimum before `</s>`."""

SUM_BLOCK = 512
"""Entries per block of the weight sums."""

HISTOGRAM_BUCKETS = 2048
"""Buckets of the histogram of keys."""

_MAX_WIDTHS = 32
"""Vocabulary sizes with buffers per thread; the oldest buffers are dropped."""

_thread_buffers = threading.local()

_MIN_BLOCK_TEMPERATURE = 0.05
"""Minimum temperature for drawing by blocks; below it, weights underflow in single precision."""

_UNLIMITED = 1 << 31
"""More tokens than in any vocabulary."""

_NO_IDS = np.zeros(0, np.int32)


class StopStrings:
    """Filter that passes text up to the first stop string.

    Text is held back only while its end may be the beginning of a stop string.

    Args:
        stops: non-empty strings; without any, no text is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return text certainly in no stop string; empty after a stop."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [offset for stop in self._stops if (offset := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return the text held back, at the end of the input."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix that properly begins the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


class Tail(NamedTuple):
    """Search state of a text that may have a stop string.

    Attributes:
        raw: the end of the text, which may be the beginning of a stop string.
        begun: True if the text is not empty.
        stopped: True if the text has a stop string.
    """

    raw: bytes = b""
    begun: bool = False
    stopped: bool = False


class StopBytes:
    """Search for stop strings in texts that branch; a text's state is an immutable value.

    Args:
        stops: non-empty strings, at least one.
        token_bytes: bytes that each token adds to a text [V].
        strip_space: True if the leading space of the first token is not part of the text.
    """

    def __init__(self, stops: Sequence[str], token_bytes: Sequence[bytes], *, strip_space: bool) -> None:
        self._stops = tuple(stop.encode() for stop in stops)
        self._token_bytes = token_bytes
        self._strip_space = strip_space
        self._kept = max(map(len, self._stops)) - 1

    def advance(self, tail: Tail, token: int) -> Tail:
        """Append a token to a text."""
        raw = self._token_bytes[token]
        if self._strip_space and not tail.begun:
            begun, raw = bool(raw), raw.removeprefix(b" ")
        else:
            begun = True
        text = tail.raw + raw
        stopped = any(stop in text for stop in self._stops)
        return Tail(text[max(0, len(text) - self._kept) :], begun, stopped)


def spellings(tokenizer: Tokenizer, text: str) -> list[tuple[int, ...]]:
    """Return distinct token sequences that spell a text at a word's start or inside.

    Other spellings may exist, and within a word the first token may include earlier characters.
    Sequences with an unknown word are omitted.
    """
    text = tokenizer.normaliser(text)
    raw, token_bytes = text.encode(), tokenizer.token_bytes
    found = [tuple(tokenizer.encode(text))]
    if (piece := tokenizer.vocabulary.ids.get(text)) is not None:
        found.append((piece,))
    for before in _PRECEDING:
        ids, num_before = tokenizer.encode_after(before, text)
        found.append(tuple(ids[num_before:]))
    apart = [ids for ids in found[1:] if b"".join(token_bytes[i] for i in ids) == raw]
    return [ids for ids in dict.fromkeys([found[0], *apart]) if ids and UNK not in ids]


class BannedSequences(PhraseAutomaton[int]):
    """Automaton over generated tokens to find ends of banned sequences."""

    _overlap = True

    def banned(self, node: int) -> set[int]:
        """Return the tokens that would complete a sequence."""
        return {
            token
            for end, _ in self._suffixes(node)
            for child, token in self._children(end)
            if self._complete[child] >= 0
        }


_NOTHING_BANNED = BannedSequences()


class TokenBias:
    """Values to add to the scores of the next token, after the generated tokens.

    Tokens that continue a weighted sequence get their share of its weight, taken back if the sequence does not
    follow. Tokens that would complete a banned sequence get minus infinity.

    Args:
        always: tokens, and values that are always added.
        banned: sequences of ids.
        phrases: sequences of ids with weights.

    Attributes:
        has_sequences: True if the values depend on the generated tokens.
        is_empty: True if nothing is ever added.
    """

    START: Nodes = (PhraseAutomaton.START, PhraseAutomaton.START)

    def __init__(
        self,
        always: Iterable[tuple[int, float]] = (),
        banned: BannedSequences = _NOTHING_BANNED,
        phrases: PhraseAutomaton[int] = NO_TOKEN_PHRASES,
    ) -> None:
        self._always = dict(always)
        self._banned = banned
        self._weighted = phrases
        self._values: dict[Nodes, tuple[Int32s, FloatArray]] = {}
        self._num_values = 0
        self._worth = cache(lambda node: phrases.worth(*phrases.credit(node)))
        self.has_sequences = bool(self._banned.num_bytes or phrases.num_bytes)
        self.is_empty = not (self._always or self.has_sequences)

    def advance(self, nodes: Nodes, token: int) -> Nodes:
        """Return the nodes after one more token."""
        return self._banned.advance(nodes[0], token)[0], self._weighted.advance(nodes[1], token)[0]

    def after(self, nodes: Nodes) -> tuple[Int32s, FloatArray]:
        """Return tokens and what to add to their scores, relative to others; read-only."""
        if nodes not in self._values:
            banned, node = nodes
            weighted, values = self._weighted, dict(self._always)
            left = weighted.worth(weighted.finish(node))
            for token, (following, found) in sorted(weighted.following(node).items()):
                gain = weighted.worth(found) + self._worth(following) - left
                values[token] = values.get(token, 0.0) + gain
            values |= dict.fromkeys(sorted(self._banned.banned(banned)), -math.inf)
            self._num_values += len(values)
            if self._num_values > _MAX_VALUES:
                self._values, self._num_values = {}, len(values)
            self._values[nodes] = np.array([*values], np.int32), np.array([*values.values()], np.float32)
        return self._values[nodes]

    def taken_back(self, nodes: Nodes) -> float:
        """Return what to add to totals after nodes: minus the credit for the incomplete."""
        return self._weighted.taken_back(nodes[1])


class KernelRows(NamedTuple):
    """R rows with their rules. Rows may share parts of the arrays that have spans.

    Attributes:
        rules: rule parameters of each row [R, 9].
        bias_ids: tokens with a bias.
        bias_values: bias of each.
        bias_spans: start and end of each row's biases [R, 2].
        prompt_ids: distinct tokens of prompts.
        prompt_spans: start and end of each row's prompt tokens [R, 2].
        history: generated tokens [R, at least the maximum length].
        lengths: number of generated tokens of each row [R].
    """

    rules: Float64s
    bias_ids: Int32s
    bias_values: FloatArray
    bias_spans: Int64s
    prompt_ids: Int32s
    prompt_spans: Int64s
    history: Int32s
    lengths: Int64s


class KernelBuffers(NamedTuple):
    """Work arrays for one row of V entries; V' is V rounded up to full blocks.

    Attributes:
        scores: [V']; minus infinity beyond V.
        weights: [V']; 0 beyond V.
        keys: [V'].
        ids: [V'].
        indices: [V'].
        counts: [V]; all 0 between rows.
        histogram: [2048].
        sums: sum of each block [V' / 512].
    """

    scores: FloatArray
    weights: FloatArray
    keys: FloatArray
    ids: Int32s
    indices: Int32s
    counts: Int32s
    histogram: Float64s
    sums: Float64s


def buffers_for(width: int) -> KernelBuffers:
    """Return this thread's buffers for V entries, which fit the inner caches."""
    by_width: dict[str, KernelBuffers] = vars(_thread_buffers)  # those of this thread
    buffers = by_width.get(str(width))
    if buffers is None:
        if len(by_width) == _MAX_WIDTHS:
            del by_width[next(iter(by_width))]
        padded = -(-width // SUM_BLOCK) * SUM_BLOCK
        buffers = by_width[str(width)] = KernelBuffers(
            np.full(padded, -np.inf, np.float32),
            np.zeros(padded, np.float32),
            np.zeros(padded, np.float32),
            np.zeros(padded, np.int32),
            np.zeros(padded, np.int32),
            np.zeros(width, np.int32),
            np.zeros(HISTOGRAM_BUCKETS),
            np.zeros(padded // SUM_BLOCK),
        )
    return buffers


@dataclass(frozen=True, slots=True, eq=False)
class Rules:
    """Decoding rules of a request for one of its prompts, shared by all rows of that prompt.

    Attributes:
        numbers: a row of `KernelRows.rules` [9].
        prompt_ids: distinct tokens of the prompt [P]; empty if no rule needs them.
        biases: biases of tokens.
        unfiltered: True if tokens are drawn from the model's distribution minus control tokens, at a temperature
            that is not too low: no rule needs the full distribution or the generated tokens.
    """

    numbers: Float64s
    prompt_ids: Int32s
    biases: TokenBias
    unfiltered: bool


def compile_rules(parameters: DecodingParameters, prompt: TokenIds, biases: TokenBias | None = None) -> Rules:
    """Compile a request's rules for a prompt's rows [T]; default biases: `logit_bias`."""
    biases = biases or TokenBias(parameters.logit_bias)
    numbers = [
        0.0 if parameters.greedy else parameters.temperature,
        float(min(parameters.top_k or 0, _UNLIMITED)),
        parameters.typical_p,
        parameters.top_p,
        parameters.min_p,
        parameters.repetition_penalty,
        parameters.presence_penalty,
        parameters.frequency_penalty,
        np.inf if parameters.ignore_eos else float(parameters.min_tokens),
    ]
    looks_back = parameters.repetition_penalty != 1
    truncates = parameters.top_k is not None or parameters.min_p > 0
    truncates |= min(parameters.top_p, parameters.typical_p) < 1
    penalises = looks_back or parameters.presence_penalty != 0 or parameters.frequency_penalty != 0
    is_cold = parameters.greedy or parameters.temperature < _MIN_BLOCK_TEMPERATURE
    return Rules(
        np.array(numbers),
        np.unique(prompt).astype(np.int32) if looks_back else _NO_IDS,
        biases,
        unfiltered=biases.is_empty and not (truncates or penalises or is_cold),
    )


@dataclass(frozen=True, eq=False)
class RuleTable:
    """Rules of R rows, immutable.

    Attributes:
        row_rules: rules of each row [R].
    """

    row_rules: Sequence[Rules]

    def select(self, rows: TokenIds) -> "RuleTable":
        """Select rows by index; an index may repeat."""
        return RuleTable([self.row_rules[row] for row in rows.tolist()])

    @cached_property
    def numbers(self) -> Float64s:
        """Rule parameters in the layout of `KernelRows.rules` [R, 9]."""
        numbers = [rules.numbers for rules in self.row_rules]
        return np.concatenate(numbers).reshape(len(numbers), -1)

    def biases(self, nodes: Int64s) -> tuple[Int32s, FloatArray, Int64s]:
        """Return tokens with a bias after nodes [R, 2], the biases, and the span of each row."""
        return self._biases_after(nodes.tolist()) if self.has_sequences else self._constant_biases

    @cached_property
    def _constant_biases(self) -> tuple[Int32s, FloatArray, Int64s]:
        return self._biases_after([TokenBias.START] * len(self.row_rules))

    def _biases_after(self, nodes: Sequence[Nodes]) -> tuple[Int32s, FloatArray, Int64s]:
        parts = [rules.biases.after((*own,)) for rules, own in zip(self.row_rules, nodes, strict=True)]
        (ids, spans), (values, _) = (pack_ragged(column) for column in zip(*parts, strict=True))
        return ids, values, spans

    @cached_property
    def prompt_ids(self) -> tuple[Int32s, Int64s]:
        """Distinct tokens of the prompts, and the span of each row."""
        return pack_ragged([rules.prompt_ids for rules in self.row_rules])

    @cached_property
    def unfiltered(self) -> Bools:
        """Mask of rows sampled at a temperature from all but control tokens [R]."""
        return np.array([rules.unfiltered for rules in self.row_rules])

    @cached_property
    def has_sequences(self) -> bool:
        """True if the biases of any row depend on its generated tokens."""
        return any(rules.biases.has_sequences for rules in self.row_rules)


def pack_ragged(parts: Sequence[AnyArray]) -> tuple[AnyArray, Int64s]:
    """Join the rows' parts; return also the start and end of each [R, 2].

    An array shared by several rows is stored once.
    """
    spans = {}
    different, end = [], 0
    for part in parts:
        if id(part) not in spans:
            spans[id(part)] = (end, end := end + len(part))
            different.append(part)
    return np.concatenate(different), np.array([spans[id(part)] for part in parts], np.int64)
