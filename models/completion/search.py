"""The words and phrases that begin with given bytes, each with its probability summed over all tokenisations.

A word that is spelled by several sequences of tokens is as probable as all of them together, and it has ended
only when the next token says so (Vieira et al., "From Language Models over Tokens to Language Models over
Characters", 2024). The search looks into the most probable sequence first. What it has not looked into is known
by its mass: probabilities are exact when nothing is left, lower bounds before.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Array, FloatArray, TokenIds, to_numpy
from models.completion.found import MassTable, SearchResult
from models.completion.frontier import Child, Frontier, Masses, Node
from models.completion.spelled import TokenTrie, fold_case
from models.completion.words import JOINERS, WordState, scan_words

_SPACE = b" "


@dataclass(frozen=True, slots=True)
class CompletionSettings:
    """How far a search for completions goes.

    Attributes:
        limit: words, and phrases of each length, to tell.
        max_words: words of the longest phrase.
        max_steps: rows that the model may be asked for.
        rows_per_step: of them at once.
        max_word_bytes: what a word may have beyond what was typed, and each more of a phrase; longer ones stay
            unexplored.
        floor: sequences of no more than this share of the live mass stay unexplored; 0 for none.
        settled: the search ends as soon as no sequence left weighs as much as the last that is told, and all those
            left have no more than this share of the live mass; 0 looks into all.
        ignore_case: whether what the next tokens must begin with stands for any case.
    """

    limit: int = 10
    max_words: int = 1
    max_steps: int = 128
    rows_per_step: int = 16
    max_word_bytes: int = 96
    floor: float = 1e-7
    settled: float = 0.2
    ignore_case: bool = False


class SearchStep(NamedTuple):
    """What a search asks a model: to read a token each, and what may come next.

    Attributes:
        state: R rows.
        tokens: ids [R].
    """

    state: Any
    tokens: TokenIds


class CompletionSearch:
    """A search for what a text goes on as.

    First `update` it the distribution after the context; then step the model and `update`, as long as it has something
    to `ask`. `result` may be asked for at any time.

    Args:
        tokens: of the model.
        spelled: what the next tokens begin with: the beginning of a word, perhaps after a space; see `typed.cut`.
        settings: how far to go.
    """

    def __init__(self, tokens: TokenTrie, spelled: bytes, settings: CompletionSettings) -> None:
        self._tokens, self._settings = tokens, settings
        self._spelled = self._key(spelled)
        self._sorted = tokens.folded if settings.ignore_case else tokens.exact
        self._spellings = tokens.folded_bytes if settings.ignore_case else tokens.token_bytes
        self._prefix = self._spelled.removeprefix(_SPACE)
        self._is_joined = self._prefix.decode(errors="replace").endswith(tuple(JOINERS))
        self._findings = MassTable(settings.max_words)
        self._frontier = Frontier()
        self._pending: list[Child] = []
        self._num_requested = 0
        self._first: FloatArray | None = None

    def update(self, state: Any, log_probs: Array) -> None:
        """Look at what may come next.

        Args:
            state: after the context [1], or after what was asked for [R].
            log_probs: of the next token [1 or R, V].
        """
        rows = to_numpy(log_probs)
        look = self._expand_words if self._tokens.whole_words else self._expand
        if self._first is None:
            self._first = rows[0]
            self._findings.open = 1.0
            look(Node(state, 0, 1.0), rows[0])
        for number, child in enumerate(self._pending):
            look(self._child_node(child, state, number), rows[number])
        self._pending = []

    def next_step(self) -> SearchStep | None:
        """What to find out next; None if the search is over."""
        self._findings.cut += self._frontier.prune(self._capacity())
        self._findings.open = self._frontier.mass  # rounding has added up, and 0 must be 0
        if self._is_converged():
            return None
        by_states: dict[int, list[Child]] = {}
        for child in self._pop_best():
            by_states.setdefault(id(child.parent.states), []).append(child)
        if not by_states:
            return None
        self._pending = [child for children in by_states.values() for child in children]
        self._num_requested += len(self._pending)
        first, *others = (
            children[0].parent.states.select(np.array([child.parent.row for child in children]))
            for children in by_states.values()
        )
        tokens = [child.token for child in self._pending]
        return SearchStep(first.concatenate(others) if others else first, np.array(tokens))

    def result(self) -> SearchResult:
        """What has been found so far."""
        return self._findings.result(self._settings.limit, self._partial_words())

    @property
    def words(self) -> dict[str, float]:
        """All words found, or where each token is one the best, with the mass of each."""
        return {word.decode(): mass for word, mass in self._findings.words.items()}

    def mass_of(self, word: str) -> float:
        """How probable it is that the text goes on as a word, as far as was found; 0 if it was not."""
        spelled = word.encode("utf-8", "surrogatepass")
        if not self._tokens.whole_words:
            return self._findings.words.get(spelled, 0.0)
        if self._first is None or not self._key(spelled).startswith(self._prefix):
            return 0.0
        ids = self._tokens.exact.equal_to(_SPACE + spelled)
        return sum(float(np.exp(self._first[token])) for token in ids)

    def _is_converged(self) -> bool:
        """Whether what is not looked into cannot change the best any more, or little."""
        settings, findings = self._settings, self._findings
        return (
            findings.open <= settings.settled * findings.live
            and self._frontier.best < findings.pruning_threshold(settings.limit)
        )

    def _capacity(self) -> int:
        """Children that are kept: no more than the steps left could be looked into, or told as beginnings."""
        return max(self._settings.max_steps - self._num_requested, self._settings.limit)

    def _pop_best(self) -> list[Child]:
        """The most probable children, taken out: as many as the model may be asked for at once."""
        settings = self._settings
        room = min(settings.rows_per_step, settings.max_steps - self._num_requested)
        max_bytes = len(self._prefix) + settings.max_word_bytes * settings.max_words
        best: list[Child] = []
        while self._frontier and len(best) < room:
            child = self._frontier.pop()
            num_bytes = len(child.parent.text) + len(self._tokens.token_bytes[child.token])
            if num_bytes <= max_bytes:
                best.append(child)
            elif not child.num_words:
                self._findings.discard(child.mass)
        return best

    def _child_node(self, child: Child, states: Any, row: int) -> Node:
        """A node of a child whose next token's distribution has become known."""
        parent = child.parent
        spelled = self._added_bytes(parent, child.token)
        num_matched = min(len(self._spelled), parent.num_matched + len(self._spellings[child.token]))
        place = (
            parent.word_state
            if self._tokens.whole_words
            else scan_words(parent.word_state, spelled).word_state or WordState()
        )
        return Node(states, row, child.mass, parent.text + spelled, num_matched, place, child.num_words)

    def _added_bytes(self, node: Node, token: int) -> bytes:
        """What a token adds to the text of a node."""
        spelled = self._tokens.token_bytes[token]
        if node.num_matched == 0 and self._spelled.startswith(_SPACE):
            return spelled[len(_SPACE) :]
        return spelled

    def _expand_words(self, node: Node, row: FloatArray) -> None:
        """Complete a phrase by each word, where each token is one."""
        findings = self._findings
        ids = self._sorted.ids if node.num_words else self._sorted.with_prefix(self._spelled)
        masses = _child_masses(node, row, ids)
        num_words = node.num_words + 1
        if num_words == 1:
            findings.open, findings.completed = 0.0, float(masses.sum())
        for place in _largest_indices(masses, self._settings.limit).tolist():
            if masses[place] > 0:
                text = node.text + self._added_bytes(node, int(ids[place]))
                findings.add(text, num_words, float(masses[place]))
        if num_words < self._settings.max_words:
            self._push_children(node, num_words, ids, masses)

    def _expand(self, node: Node, row: FloatArray) -> None:
        """Go through what each token does after a node."""
        if not node.num_words:
            self._findings.open -= node.mass
        rest = self._spelled[node.num_matched :]
        moves = (
            self._tokens.transitions_along(node.word_state, rest, self._sorted)
            if rest
            else self._tokens.transitions(node.word_state)
        )
        num_words = node.num_words + 1
        if len(moves.ending):
            word = node.text[: len(node.text) - len(node.word_state.pending)]
            self._complete(word, num_words, float(_child_masses(node, row, moves.ending).sum()))
        self._push_children(node, node.num_words, moves.inside, _child_masses(node, row, moves.inside))
        self._expand_crossing(node, row, moves.crossing)
        if num_words < self._settings.max_words:
            self._push_children(node, num_words, moves.onward, _child_masses(node, row, moves.onward))
            self._expand_crossing(node, row, moves.leaping, num_noted=1)

    def _push_children(self, node: Node, num_words: int, ids: TokenIds, masses: Masses) -> None:
        """Put those children of a node into the frontier that are worth it; the others are given up."""
        findings, settings = self._findings, self._settings
        total = float(masses.sum())
        if not num_words:
            findings.open += total
        worth = np.flatnonzero(masses > settings.floor * findings.live)
        worth = worth[_largest_indices(masses[worth], self._capacity())]
        if not num_words:
            findings.discard(total - float(masses[worth].sum()))
        self._frontier.add(node, num_words, ids[worth], masses[worth])

    def _expand_crossing(self, node: Node, row: FloatArray, ids: TokenIds, *, num_noted: int = 0) -> None:
        """Read tokens one by one that end words inside of them, or parts of characters.

        Args:
            node: what is before them.
            row: log-probabilities after it [V].
            ids: the tokens [n].
            num_noted: of the words that they end, those that are complete already.
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
            ends, place = scan_words(node.word_state, spelled)
            for number, end in enumerate(ends[num_noted : max_words - node.num_words], start=num_noted):
                word = text + (node.word_state.pending + spelled)[:end]
                self._complete(word, node.num_words + number + 1, mass)
            num_words = node.num_words + len(ends)
            if place is not None and num_words < max_words:
                going.setdefault(num_words, []).append((token, mass))
        for num_words, children in going.items():
            tokens, weights = (np.array(column) for column in zip(*children, strict=True))
            if not num_words:
                findings.open += float(weights.sum())
            self._frontier.add(node, num_words, tokens, weights)

    def _complete(self, text: bytes, num_words: int, mass: float) -> None:
        """Note that a word has ended, unless that was before the end of what was typed."""
        if mass <= 0:
            return
        if num_words == 1:
            if self._is_joined and len(self._key(text)) < len(self._prefix):
                return
            self._findings.completed += mass
        self._findings.add(text, num_words, mass)

    def _key(self, spelled: bytes) -> bytes:
        """Bytes as they are compared with what was typed."""
        return fold_case(spelled) if self._settings.ignore_case else spelled

    def _partial_words(self) -> dict[bytes, float]:
        """Where too few words were found, beginnings of others, with the masses of their sequences."""
        masses: dict[bytes, float] = {}
        words = self._findings.words
        if len(words) >= self._settings.limit:
            return masses
        for child in self._frontier.first(4 * self._settings.limit):
            node = self._child_node(child, None, 0)
            is_whole = (
                node.word_state.begun
                and not node.word_state.pending
                and node.num_matched == len(self._spelled)
            )
            if not is_whole or len(self._key(node.text)) <= len(self._prefix):
                continue
            if node.text in masses or not any(word.startswith(node.text) for word in words):
                masses[node.text] = masses.get(node.text, 0.0) + child.mass
        return masses


def _child_masses(node: Node, row: FloatArray, ids: TokenIds) -> Masses:
    """How probable a node and each of some tokens after it are [n]."""
    return np.exp(row.take(ids)).astype(np.float64) * node.mass


def _largest_indices(values: Masses, count: int) -> TokenIds:
    """Where the largest of some values are, in no order; of equal ones whichever."""
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(values, len(values) - count)[len(values) - count :]
