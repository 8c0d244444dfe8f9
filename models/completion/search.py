"""Best-first search for the words and phrases that start with given bytes.

A word's probability sums over all its tokenisations, and a word ends only by a
following token (Vieira et al., "From Language Models over Tokens to Language Models
over Characters", 2024). The search expands the most probable token sequence first.
Unexplored sequences count by their mass: probabilities are exact if nothing stays
unexplored, else lower bounds.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace, merge, nlargest
from itertools import count, islice
from operator import itemgetter
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from models.arrays import Float64s, FloatArray, TokenIds
from models.completion.token_trie import NO_TOKENS, TokenTrie, WordState, fold_case, restore_words, scan_words
from models.completion.words import (
    NextWords,
    ScoredCompletion,
    SearchResult,
    largest_indices,
)
from models.prefix_cache import NextTokenEntry, Readings, state_bytes
from models.words import JOINERS

Masses: TypeAlias = Float64s
"""Probabilities, not logarithms [n]."""

_WORD_PROBABILITY = 0.25
"""Assumed probability of a phrase's best next word; less: more phrases and calls."""

_KEPT_LEADERS = 4
"""Texts, per text of the result, from which the best of a length are selected."""

_ROWS_PER_CUT = 32
"""Nodes with children, per expanded row, at which children are cut: cutting visits all."""

_ROWS_AT_ONCE = 16
"""Maximum expanded rows per step, for single words; each takes 0.1 ms."""

_READING_BYTES = 1000
"""Estimated memory of a reading besides its arrays."""

_MIN_PRUNED_CHILDREN = 1 << 14
"""Maximum children without pruning; each takes a hundred bytes."""

_SPACE = b" "


class MassTable:
    """Words and phrases with their masses, and the mass without a word.

    The typed prefix's probability is the sum of the masses `completed`, still
    `open` and `cut`; they count single words only, because every phrase starts with
    one.

    Args:
        max_words: words of the longest phrase.
        has_members: True if members of classes are written as one word, see
            `as_one_word`.

    Attributes:
        floors: mass per length below which a text is not among the best, unless it
            grows.
    """

    def __init__(self, max_words: int, *, has_members: bool = False) -> None:
        self._read = restore_words if has_members else str
        self._by_length: list[dict[bytes, float]] = [{} for _ in range(max_words)]
        self._leaders: list[dict[bytes, float]] = [{} for _ in range(max_words)]
        self.floors = [0.0] * max_words
        self.completed = self.open = self.cut = 0.0

    @property
    def live(self) -> float:
        """Probability of the typed prefix, as far as it is known."""
        return self.completed + self.open + self.cut

    @property
    def words(self) -> dict[bytes, float]:
        """Mass of each word found."""
        return self._by_length[0]

    def add(self, text: bytes, num_words: int, mass: float) -> None:
        """Add to the mass of a word or phrase; the caller updates `completed`."""
        found = self._by_length[num_words - 1]
        found[text] = mass = found.get(text, 0.0) + mass
        if mass >= self.floors[num_words - 1]:
            self._leaders[num_words - 1][text] = mass

    def discard(self, mass: float) -> None:
        """Move an open mass to the unexplored mass."""
        self.open -= mass
        self.cut += mass

    def pruning_thresholds(self, limit: int) -> list[float]:
        """Return the minimum mass to still enter the result, by a sequence's number of ended words.

        It enters if, with each further word's assumed probability but the next's,
        it is among the `limit` best of a length; 0 if a length has fewer.
        """
        thresholds: list[float] = []
        least = float("inf")
        for index, found in reversed(list(enumerate(self._leaders))):
            own = nlargest(limit, found.values())[-1] if len(found) >= limit else 0.0
            if len(found) > _KEPT_LEADERS * limit:
                self._leaders[index] = dict(nlargest(limit, found.items(), key=itemgetter(1)))
                self.floors[index] = own
            least = min(own, least / _WORD_PROBABILITY)
            thresholds.insert(0, least)
        return thresholds

    def result(self, limit: int, beginnings: Mapping[bytes, float]) -> SearchResult:
        """Return the best completions of each length, word beginnings if too few.

        Args:
            limit: maximum number per length.
            beginnings: masses of word beginnings without a word found.
        """
        found = [(masses, num_words, limit) for num_words, masses in enumerate(self._leaders, start=1)]
        completions = [
            ScoredCompletion(self._read(text.decode()), mass, num_words, masses is not beginnings)
            for masses, num_words, most in (*found, (beginnings, 1, max(limit - len(self.words), 0)))
            for text, mass in nlargest(most, masses.items(), key=itemgetter(1))
        ]
        completions.sort(key=lambda one: (-one.mass, one.text))
        live = self.live
        unexplored = max(self.open + self.cut, 0.0)
        return SearchResult(tuple(completions), live, unexplored / live if live > 0 else 0.0)


@dataclass(slots=True, eq=False)
class Reading:
    """State and next tokens after a token sequence. Searches after the same context share those of longer sequences.

    Attributes:
        states: model states, one row for this sequence.
        row: index of its row.
        next: log-probabilities of the next token [V], or the next words.
        longer: readings of sequences with one more token, by this token.
        continuations: continuations of the word at the end, once a search has
            needed them.
    """

    states: Any
    row: int
    next: Any
    longer: Readings = field(default_factory=Readings)
    continuations: Any = None

    @classmethod
    def after(cls, entry: NextTokenEntry) -> Self:
        """Return what the model read of a context."""
        return cls(entry.state, 0, entry.log_probs[0], Readings() if entry.longer is None else entry.longer)


class Node(NamedTuple):
    """Token sequence to expand.

    Attributes:
        reading: what the model read of it.
        mass: its probability.
        text: its bytes from the start of the current word.
        num_matched: number of prefix bytes matched.
        word_state: word state at its end.
        num_words: number of ended words.
    """

    reading: Reading
    mass: float
    text: bytes = b""
    num_matched: int = 0
    word_state: WordState = WordState()
    num_words: int = 0


class Child(NamedTuple):
    """Sequence with one more token, not expanded yet.

    Attributes:
        parent: node before the token.
        token: its last token.
        mass: its probability.
        num_words: number of ended words.
    """

    parent: Node
    token: int
    mass: float
    num_words: int


class _Siblings:
    """Children of one node, in ascending order of mass.

    Attributes:
        masses: masses of the remaining children, ascending.
    """

    __slots__ = ("_parent", "_sums", "_tokens", "masses", "num_words")

    def __init__(self, parent: Node, num_words: int, tokens: TokenIds, masses: Masses) -> None:
        order = np.argsort(-masses, kind="stable")[::-1]
        self._parent, self.num_words = parent, num_words
        self._tokens: list[int] = tokens[order].tolist()
        self.masses: list[float] = masses[order].tolist()
        self._sums: list[float] = [0.0, *masses[order].cumsum().tolist()]  # of the first 0, 1, …

    @property
    def best(self) -> float:
        """Mass of the most probable child; 0 if none remains."""
        return self.masses[-1] if self.masses else 0.0

    @property
    def mass(self) -> float:
        """Probability mass of all remaining children."""
        return self._sums[len(self.masses)]

    def pop(self) -> Child:
        """Remove and return the most probable child."""
        return Child(self._parent, self._tokens.pop(), self.masses.pop(), self.num_words)

    def cut(self, least: float) -> float:
        """Drop children below a mass; return their total mass."""
        past = bisect_left(self.masses, least)
        if not past:
            return 0.0
        dropped = self._sums[past]
        del self._tokens[:past], self.masses[:past]
        self._sums = [mass - dropped for mass in self._sums[past:]]
        return dropped

    def left(self) -> Iterator[Child]:
        """Iterate over the remaining children, the most probable first."""
        for token, mass in zip(reversed(self._tokens), reversed(self.masses), strict=True):
            yield Child(self._parent, token, mass, self.num_words)


class Frontier:
    """Priority queue of children by mass, relative to that expected for their number of ended words.

    Equal ones are in order of insertion.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Siblings]] = []
        self._numbers = count()
        self._num_children = 0

    def __len__(self) -> int:
        """Number of nodes with children."""
        return len(self._heap)

    @property
    def mass(self) -> float:
        """Probability mass of all children without a completed word."""
        return sum(siblings.mass for _, _, siblings in self._heap if not siblings.num_words)

    def add(self, parent: Node, num_words: int, tokens: TokenIds, masses: Masses) -> None:
        """Add children of a node.

        Args:
            parent: the node.
            num_words: number of ended words of each child.
            tokens: last token of each [n].
            masses: mass of each, above 0 [n].
        """
        if not len(tokens):
            return
        siblings = _Siblings(parent, num_words, tokens, masses)
        heappush(self._heap, (_sort_key(siblings), next(self._numbers), siblings))
        self._num_children += len(tokens)

    def prune(self, most: int) -> float:
        """Drop all but the most probable of very many children, to bound memory.

        Args:
            most: number of children that can still be expanded.

        Returns:
            Mass of the dropped children without an ended word.
        """
        if self._num_children <= max(_MIN_PRUNED_CHILDREN, 2 * most):
            return 0.0
        every = np.concatenate([siblings.masses for _, _, siblings in self._heap])
        least = float(np.partition(every, len(every) - most)[len(every) - most])
        return self.cut([least] * (1 + max(siblings.num_words for _, _, siblings in self._heap)))

    def cut(self, thresholds: Sequence[float]) -> float:
        """Drop children below a mass.

        Args:
            thresholds: minimum mass by number of ended words.

        Returns:
            Mass of the dropped children without an ended word.
        """
        dropped = 0.0
        for _, _, group in self._heap:
            if group.masses[0] < thresholds[group.num_words]:
                mass = group.cut(thresholds[group.num_words])
                dropped += 0.0 if group.num_words else mass
        self._heap = [entry for entry in self._heap if entry[2].masses]
        heapify(self._heap)
        self._num_children = sum(len(group.masses) for _, _, group in self._heap)
        return dropped

    def pop(self) -> Child:
        """Remove and return the most probable child of a filled queue."""
        _, number, siblings = self._heap[0]
        child = siblings.pop()
        self._num_children -= 1
        if siblings.best:
            heapreplace(self._heap, (_sort_key(siblings), number, siblings))
        else:
            heappop(self._heap)
        return child

    def first(self, limit: int) -> list[Child]:
        """Return the most probable children without an ended word, and keep them."""
        words = (siblings.left() for _, _, siblings in self._heap if not siblings.num_words)
        return list(islice(merge(*words, key=lambda child: -child.mass), limit))


@dataclass(frozen=True, slots=True)
class CompletionSettings:
    """Limits of a search for completions.

    Attributes:
        limit: maximum words, and maximum phrases of each length, in the result.
        max_words: words of the longest phrase.
        max_steps: maximum rows of model calls.
        rows_per_step: maximum rows per model call.
        max_word_bytes: maximum bytes per word after the typed prefix; longer words
            stay unexplored.
        floor: sequences up to this share of the live mass stay unexplored; 0
            explores all.
        settled: sequences that can hardly enter the result stay unexplored; those
            without an ended word only while all together have at most this share of
            the live mass; 0 explores all.
        ignore_case: match the prefix in any case.
        open_vocabulary: complete to any spelling. By default words outside the
            tokens' lexicon, if any, stay unexplored.
    """

    limit: int = 10
    max_words: int = 1
    max_steps: int = 128
    rows_per_step: int = 16
    max_word_bytes: int = 96
    floor: float = 1e-7
    settled: float = 0.2
    ignore_case: bool = False
    open_vocabulary: bool = False


def _sort_key(siblings: _Siblings) -> float:
    return -siblings.best / _WORD_PROBABILITY**siblings.num_words


class CompletionSearch:
    """Search for the continuations of a text.

    While `next_step` returns a step, run the model and call `update`. `result` can
    be called at any time.

    Args:
        tokens: the model's token trie.
        first: what the model read of the context.
        spelled: bytes that the next tokens start with: a word's beginning, perhaps
            after a space; see `prefix.split_prefix`.
        settings: limits of the search.
    """

    def __init__(
        self, tokens: TokenTrie, first: Reading, spelled: bytes, settings: CompletionSettings
    ) -> None:
        self._tokens, self._settings = tokens, settings
        self.rows_at_once = max(1, _ROWS_AT_ONCE // settings.max_words)
        self._lexicon = None if settings.open_vocabulary else tokens.lexicon
        self._spelled = self._key(spelled)
        self._sorted = tokens.folded if settings.ignore_case else tokens.exact
        self._spellings = tokens.folded_bytes if settings.ignore_case else tokens.token_bytes
        self._prefix = self._spelled.removeprefix(_SPACE)
        self._is_joined = self._prefix.decode(errors="replace").endswith(tuple(JOINERS))
        self._findings = MassTable(settings.max_words, has_members=tokens.has_members)
        self._frontier = Frontier()
        self._pending: list[Child] = []
        self._asked: list[Child] = []
        self._num_expanded = self._cut_at = 0
        self._first, self._readings = first, first.longer
        self._findings.open = 1.0
        self._expand(Node(first, 1.0))

    def update(self, state: Any, log_probs: FloatArray | list[NextWords], first: int = 0) -> None:
        """Expand nodes, given the next tokens after the requested sequences.

        Args:
            state: model state after the step [R], of this search alone.
            log_probs: log-probabilities of the next token of one or more rows [n,
                V], or as many next words.
            first: row of the state after the first of these.
        """
        asked = self._asked[: len(log_probs)]
        del self._asked[: len(asked)]
        for number, (child, row) in enumerate(zip(asked, log_probs, strict=True), start=first):
            longer = child.parent.reading.longer
            known = longer.get(child.token)
            shared = () if known is None else (known.longer, known.continuations)
            longer[child.token] = Reading(state, number, row, *shared)
        if isinstance(log_probs, np.ndarray) and log_probs.size:
            each = state_bytes(state.base) // len(state.base) + _READING_BYTES
            self._readings.num_bytes += len(log_probs) * each + log_probs.nbytes
        while self._pending and (reading := self._reading_of(self._pending[0])) is not None:
            self._expand(self._child_node(self._pending.pop(0), reading))
        for child in asked:
            reading = child.parent.reading.longer[child.token]
            if isinstance(reading.next, np.ndarray):  # rows that are still needed must not hold others
                reading.next = np.array(reading.next)

    def next_step(self) -> tuple[Any, TokenIds] | None:
        """Choose the next nodes to expand, and return R rows of states and a token to read in each [R].

        R is 0 if these nodes have been read, and the result None at the end.
        """
        if not self._pending:  # another search may have dropped what one of these needs
            self._pending = self._choose()
            self._num_expanded += len(self._pending)
        by_states: dict[int, list[Child]] = {}
        for child in self._pending:
            if self._reading_of(child) is None:
                by_states.setdefault(id(child.parent.reading.states), []).append(child)
        self._asked = [one for children in by_states.values() for one in children]
        if not self._asked:
            return (self._first.states.select(NO_TOKENS), NO_TOKENS) if self._pending else None
        first, *rest = (
            children[0].parent.reading.states.select(
                np.array([child.parent.reading.row for child in children])
            )
            for children in by_states.values()
        )
        tokens = [child.token for child in self._asked]
        return first.concatenate(rest) if rest else first, np.array(tokens)

    def _reading_of(self, child: Child) -> Reading | None:
        """Return the reading of a sequence; None if the model must read it."""
        reading = child.parent.reading.longer.get(child.token)
        return None if reading is None or reading.next is None else reading

    def _choose(self) -> list[Child]:
        """Remove and return the next sequences to expand; none at the end."""
        findings, settings = self._findings, self._settings
        findings.cut += self._frontier.prune(self._capacity())
        is_due = self._num_expanded >= self._cut_at
        if is_due:
            findings.open = self._frontier.mass  # removes accumulated rounding errors
        if settings.settled:
            thresholds = findings.pruning_thresholds(settings.limit)
            if findings.open > settings.settled * findings.live:
                thresholds[0] = 0.0
            if is_due:
                findings.cut += self._frontier.cut(thresholds)
                findings.open = self._frontier.mass
                self._cut_at = self._num_expanded + len(self._frontier) // _ROWS_PER_CUT
        return self._pop_best()

    @property
    def words(self) -> dict[bytes, float]:
        """Mass of each word found."""
        return self._findings.words

    def result(self) -> SearchResult:
        """Return the completions found so far."""
        few = len(self.words) < self._settings.limit
        begun = self._partial_words(self.words) if few else {}
        return self._findings.result(self._settings.limit, begun)

    def mass_of(self, word: str) -> float:
        """Return a word's probability as continuation; 0 if not found."""
        spelled = word.encode("utf-8", "surrogatepass")
        if not self._tokens.whole_words:
            return self._findings.words.get(spelled, 0.0)
        if not self._key(spelled).startswith(self._prefix):
            return 0.0
        ids = self._tokens.exact.equal_to(_SPACE + spelled)
        return sum(math.exp(self._first.next.log_prob(token)) for token in ids)

    def _capacity(self) -> int:
        """Maximum children to keep: those to expand or return as beginnings."""
        return max(self._settings.max_steps - self._num_expanded, self._settings.limit)

    def _pop_best(self) -> list[Child]:
        """Remove and return the most probable children of one model call."""
        settings = self._settings
        capacity = min(settings.rows_per_step, settings.max_steps - self._num_expanded)
        max_bytes = len(self._prefix) + settings.max_word_bytes * settings.max_words
        best: list[Child] = []
        while self._frontier and len(best) < capacity:
            child = self._frontier.pop()
            num_bytes = len(child.parent.text) + len(self._tokens.token_bytes[child.token])
            if num_bytes <= max_bytes and self._may_become_word(child):
                best.append(child)
            elif not child.num_words:
                self._findings.discard(child.mass)
        return best

    def _may_become_word(self, child: Child) -> bool:
        """True if a lexicon's word starts with a sequence's last; always without a lexicon."""
        if self._lexicon is None:
            return True
        text = child.parent.text + self._added_bytes(child.parent, child.token)
        return self._lexicon.has_beginning(_last_word(text).rstrip(JOINERS))

    def _child_node(self, child: Child, reading: Reading) -> Node:
        """Create a child's node."""
        parent = child.parent
        spelled = self._added_bytes(parent, child.token)
        num_matched = min(len(self._spelled), parent.num_matched + len(self._spellings[child.token]))
        word_state = (
            parent.word_state
            if self._tokens.whole_words
            else scan_words(parent.word_state, spelled)[1] or WordState()
        )
        return Node(reading, child.mass, parent.text + spelled, num_matched, word_state, child.num_words)

    def _added_bytes(self, node: Node, token: int) -> bytes:
        """Return the bytes that a token adds to the text of a node."""
        spelled = self._tokens.token_bytes[token]
        if node.num_matched == 0 and self._spelled.startswith(_SPACE):
            return spelled[len(_SPACE) :]
        return spelled

    def _expand(self, node: Node) -> None:
        """Expand a node by its next tokens, which may be words."""
        if self._tokens.whole_words:
            self._expand_words(node, node.reading.next)
        else:
            self._expand_pieces(node, node.reading.next)

    def _expand_words(self, node: Node, words: NextWords) -> None:
        """Complete a phrase by each word."""
        findings, settings = self._findings, self._settings
        interval, ended = self._sorted.interval(b"" if node.num_words else self._spelled), node.num_words + 1
        most = self._capacity() if ended < settings.max_words else settings.limit
        (ids, log_probs), mass = words.best(self._sorted.ids, *interval, most)
        masses = np.exp(log_probs).astype(np.float64) * node.mass
        if ended == 1:
            findings.open, findings.completed = 0.0, mass
        for token, own in zip(ids[: settings.limit].tolist(), masses.tolist(), strict=False):
            if ended == 1 or own >= findings.floors[ended - 1]:
                findings.add(node.text + self._added_bytes(node, token), ended, own)
        if ended < settings.max_words:
            self._push_children(node, ended, ids, masses)

    def _expand_pieces(self, node: Node, row: FloatArray) -> None:
        """Expand a node by the transitions of each token."""
        if not node.num_words:
            self._findings.open -= node.mass
        rest = self._spelled[node.num_matched :]
        moves = (
            self._tokens.transitions_along(node.word_state, rest, self._sorted)
            if rest
            else self._tokens.transitions(node.word_state)
        )
        masses = partial(_child_masses, node, row)
        num_words, is_known, inside = node.num_words + 1, True, moves.inside
        if len(moves.ending):
            text = node.text[: len(node.text) - len(node.word_state.pending)]
            is_known = self._complete(text, num_words, float(masses(moves.ending).sum()))
            if self._lexicon and not self._lexicon.has_longer(_last_word(text)):
                inside = self._tokens.undecided(inside)
                if not node.num_words:
                    self._findings.cut += float(masses(moves.inside).sum())
                    self._findings.cut -= float(masses(inside).sum())
        self._push_children(node, node.num_words, inside, masses(inside))
        self._expand_crossing(node, row, moves.crossing)
        if is_known and num_words < self._settings.max_words:
            self._push_children(node, num_words, moves.onward, masses(moves.onward))
            self._expand_crossing(node, row, moves.leaping, num_noted=1)

    def _push_children(self, node: Node, num_words: int, ids: TokenIds, masses: Masses) -> None:
        """Add a node's children above the floor to the frontier; discard the others."""
        findings, settings = self._findings, self._settings
        total = float(masses.sum())
        if not num_words:
            findings.open += total
        worth = np.flatnonzero(masses > settings.floor * findings.live)
        worth = worth[largest_indices(masses[worth], self._capacity())]
        if not num_words:
            findings.discard(total - float(masses[worth].sum()))
        self._frontier.add(node, num_words, ids[worth], masses[worth])

    def _expand_crossing(self, node: Node, row: FloatArray, ids: TokenIds, *, num_noted: int = 0) -> None:
        """Read tokens that end words inside them, or are parts of characters, one by one.

        The first `num_noted` words that a token ends are already counted.
        """
        if not len(ids):
            return
        findings, max_words = self._findings, self._settings.max_words
        masses = _child_masses(node, row, ids)
        worth = np.flatnonzero(masses > self._settings.floor * findings.live)
        if not node.num_words + num_noted:
            findings.cut += float(masses.sum() - masses[worth].sum())
        going: dict[int, list[tuple[int, float]]] = {}
        text = node.text[: len(node.text) - len(node.word_state.pending)]
        for token, mass in zip(ids[worth].tolist(), masses[worth].tolist(), strict=True):
            spelled = self._added_bytes(node, token)
            ends, word_state = scan_words(node.word_state, spelled)
            is_known = all(
                self._complete(text + (node.word_state.pending + spelled)[:end], ended, mass)
                for ended, end in enumerate(ends, start=node.num_words + 1)
                if node.num_words + num_noted < ended <= max_words
            )
            ended = node.num_words + len(ends)
            if is_known and word_state is not None and ended < max_words:
                going.setdefault(ended, []).append((token, mass))
        for ended, children in going.items():
            tokens, weights = (np.array(column) for column in zip(*children, strict=True))
            if not ended:
                findings.open += float(weights.sum())
            self._frontier.add(node, ended, tokens, weights)

    def _complete(self, text: bytes, num_words: int, mass: float) -> bool:
        """Record a word ended past the typed prefix; return False if unknown."""
        findings = self._findings
        is_known = self._lexicon is None or _last_word(text) in self._lexicon
        if mass <= 0 or (num_words == 1 and self._is_joined and len(self._key(text)) < len(self._prefix)):
            return is_known
        if is_known:
            findings.completed += mass if num_words == 1 else 0.0
            findings.add(text, num_words, mass)
        elif num_words == 1:
            findings.cut += mass
        return is_known

    def _key(self, spelled: bytes) -> bytes:
        """Normalise bytes for the comparison with the prefix."""
        return fold_case(spelled) if self._settings.ignore_case else spelled

    def _first_children(self, limit: int) -> list[Child]:
        """Return the most probable open sequences without an ended word."""
        return self._frontier.first(limit)

    def _partial_words(self, found: Iterable[bytes]) -> dict[bytes, float]:
        """Return unfinished words with their masses, given the words found."""
        masses: dict[bytes, float] = {}
        words = sorted(found)
        for child in self._first_children(4 * self._settings.limit):
            if not self._may_become_word(child):
                continue
            node = self._child_node(child, child.parent.reading)
            is_whole = (
                node.word_state.begun
                and not node.word_state.pending
                and node.num_matched == len(self._spelled)
            )
            if not is_whole or len(self._key(node.text)) <= len(self._prefix):
                continue
            # of the first word that begins with the text, if any
            index = bisect_left(words, node.text)
            if node.text in masses or not (index < len(words) and words[index].startswith(node.text)):
                masses[node.text] = masses.get(node.text, 0.0) + child.mass
        return masses


def _last_word(text: bytes) -> str:
    """Return a phrase's last word, begun or not, without an incomplete character."""
    return text[text.rfind(_SPACE) + 1 :].decode(errors="ignore")


def _child_masses(node: Node, row: FloatArray, ids: TokenIds) -> Masses:
    """Return joint probabilities of a node and next tokens `ids` [n]."""
    return np.exp(row.take(ids)).astype(np.float64) * node.mass
