"""Search for the words that start with given bytes, over the pieces of a tokenizer, by compiled code.

It finds the words that `CompletionSearch` finds. The continuations of a word are
ranked once and kept with its reading, so searches for the next letters of the same
word share them.
"""

from collections.abc import Sequence
from heapq import nlargest
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from models.arrays import Bools, Int32s
from models.completion.frontier import (
    CUT,
    HEAP,
    OPEN,
    POOL,
    ROW_TYPE,
    SEARCH_TYPE,
    WORDS,
    Continuations,
    add_node,
    index_words,
    new_search,
    pop_best,
    prune,
    rank_continuations,
)
from models.completion.search import Child, CompletionSearch, CompletionSettings, Node, Reading
from models.completion.text_hashes import OPEN_VOCABULARY, HashedLexicon, HashedTexts, TokenHashes, text_hash
from models.completion.token_trie import TokenTrie, WordState, restore_words, scan_words
from models.completion.words import ScoredCompletion, SearchResult
from models.kernels.compilation import version_for
from models.prefix_cache import LimitedCache
from models.words import JOINERS, UNSPACED

_SPACE = b" "

_MIN_RANKED = 128
"""Tokens kept at least of the continuations of a word: as many as a search expands by default."""

_MAX_BEGINNINGS = 256
"""Cached beginnings of words with their next tokens."""

_NUM_WORDS, _NUM_PLACES = 1 << 10, 1 << 12
"""Initial places for words and for children."""

_MAX_PLACES = 1 << 16
"""Places for children above which only the most probable are kept."""


class WordPieces(NamedTuple):
    """Tokens after a beginning of a word, by their effect on the word.

    Attributes:
        inside: tokens that continue the word, or must be read byte by byte [n].
        is_undecided: whether each may turn out to follow the word [n].
        ending: tokens that end the word before them, including `</s>`.
        crossing: tokens that end the word inside them [C].
        groups: letters that each of these adds to the word, by number [C].
        letters: these letters [G].
        hashed: their hashes.
    """

    inside: Int32s
    is_undecided: Bools
    ending: Int32s
    crossing: Int32s
    groups: Int32s
    letters: Sequence[bytes]
    hashed: HashedTexts


class PieceTables:
    """Tokens and words of a token trie, and kernels, for searches.

    It keeps no reference to the trie, which keeps it: the garbage collector would
    never free the two.

    Attributes:
        tokens: spelling of each token.
        bare: the same without a first space.
        lexicon: known words.
    """

    def __init__(self, trie: TokenTrie) -> None:
        self.tokens = TokenHashes.of(trie.token_bytes)
        self.bare = TokenHashes.of([spelled.removeprefix(_SPACE) for spelled in trie.token_bytes])
        self.lexicon = OPEN_VOCABULARY
        if trie.lexicon is not None:
            self.lexicon = HashedLexicon.of(form.encode() for form in trie.lexicon.forms())
        self.rank = version_for(rank_continuations, ROW_TYPE)
        self.add_node = version_for(add_node, SEARCH_TYPE)
        self.pop_best = version_for(pop_best, SEARCH_TYPE)
        self._pieces = LimitedCache[Any, WordPieces](_MAX_BEGINNINGS)

    @classmethod
    def of(cls, trie: TokenTrie) -> "PieceTables":
        """Return the tables of a token trie, made once."""
        if "pieces" not in trie.derived:
            trie.derived["pieces"] = cls(trie)
        tables: PieceTables = trie.derived["pieces"]
        return tables

    def pieces(self, trie: TokenTrie, word_state: WordState, spelled: bytes, *, any_case: bool) -> WordPieces:
        """Return the tokens after a beginning of a word that begin with these bytes, or that these begin with."""
        key = word_state, spelled, any_case
        if (found := self._pieces.find(key)) is None:
            found = _find_pieces(trie, word_state, spelled, any_case=any_case)
            self._pieces.insert(key, found, 1)
        return found


class PieceSearch(CompletionSearch):
    """Search for the words that continue a text; see `CompletionSearch`."""

    def __init__(
        self, tokens: TokenTrie, first: Reading, spelled: bytes, settings: CompletionSettings
    ) -> None:
        self._tables = PieceTables.of(tokens)
        self._words = OPEN_VOCABULARY if settings.open_vocabulary else self._tables.lexicon
        self._most = max(_MIN_RANKED, settings.max_steps)
        self._arrays = new_search(settings.max_steps + 1, _NUM_WORDS, _NUM_PLACES)
        self._nodes: list[tuple[Node, WordPieces]] = []
        self._pieces: dict[tuple[WordState, int], WordPieces] = {}
        self._masses: dict[bytes, float] = {}
        super().__init__(tokens, first, spelled, settings)

    @override
    def _expand(self, node: Node) -> None:
        pieces, continuations = self._continue(node)
        self._make_room(len(continuations.tokens), 1 + len(pieces.letters))
        text, pending = node.text, node.word_state.pending
        full = whole = stem = text_hash(text)
        if pending:
            whole = text_hash(text[: -len(pending)])
            stem = text_hash(text.decode(errors="ignore").rstrip(JOINERS).encode())
        self._nodes.append((node, pieces))
        self._tables.add_node(
            self._arrays,
            continuations,
            pieces.hashed,
            self._words,
            node.mass,
            full,
            whole,
            stem,
            len(text),
            len(pending),
            not text.isascii() and UNSPACED.search(text.decode(errors="ignore")) is not None,
            node.num_matched == 0 and self._spelled.startswith(_SPACE),
            len(pieces.ending) > 0,
            self._settings.floor,
            self._capacity(),
            len(self._prefix) if self._is_joined else 0,
        )

    def _continue(self, node: Node) -> tuple[WordPieces, Continuations]:
        """Return the tokens after a node and its continuations; past the prefix, these are kept for other searches."""
        rest, reading = self._spelled[node.num_matched :], node.reading
        key = node.word_state, node.num_matched
        if key not in self._pieces:
            self._pieces[key] = self._tables.pieces(
                self._tokens, node.word_state, rest, any_case=self._settings.ignore_case
            )
        pieces = self._pieces[key]
        keeps = not rest and self._most == _MIN_RANKED
        if keeps and reading.continuations is not None:
            return pieces, reading.continuations
        continuations = self._tables.rank(reading.next, *pieces[:5], len(pieces.letters), self._most)
        if keeps:
            reading.continuations = continuations
            self._readings.num_bytes += sum(part.nbytes for part in continuations)
            # only searches for a prefix that is longer than the text need the distribution again
            if len(node.text) > len(self._prefix):
                self._readings.num_bytes -= reading.next.nbytes
                reading.next = None
        return pieces, continuations

    @override
    def _reading_of(self, child: Child) -> Reading | None:
        reading = child.parent.reading.longer.get(child.token)
        if reading is None or reading.next is not None:
            return reading
        is_matched = child.parent.num_matched + len(self._spellings[child.token]) >= len(self._spelled)
        return reading if is_matched and self._most == _MIN_RANKED else None

    @override
    def _choose(self) -> list[Child]:
        settings = self._settings
        count = min(settings.rows_per_step, settings.max_steps - self._num_expanded)
        columns = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count)
        max_bytes = len(self._prefix) + settings.max_word_bytes
        count = self._tables.pop_best(
            self._arrays,
            self._words,
            self._tables.tokens,
            self._tables.bare,
            settings.settled,
            settings.limit,
            max_bytes,
            *columns,
        )
        chosen = zip(*(column[:count].tolist() for column in columns), strict=True)
        return [Child(self._nodes[node][0], token, mass, 0) for node, token, mass in chosen]

    @override
    def result(self) -> SearchResult:
        arrays, limit = self._arrays, self._settings.limit
        read = restore_words if self._tokens.has_members else str
        masses = arrays.word_masses[: arrays.counts[WORDS]]
        best = np.argsort(-masses, kind="stable")[:limit]
        found = [
            ScoredCompletion(read(self._text(word).decode()), mass, 1, is_complete=True)
            for word, mass in zip(best.tolist(), masses[best].tolist(), strict=True)
        ]
        if len(found) < limit:
            begun = self._partial_words(self.words)
            found += [
                ScoredCompletion(read(text.decode()), mass, 1, is_complete=False)
                for text, mass in nlargest(limit - len(found), begun.items(), key=itemgetter(1))
            ]
        found.sort(key=lambda one: (-one.mass, one.text))
        live, unexplored = float(arrays.totals.sum()), max(float(arrays.totals[[OPEN, CUT]].sum()), 0.0)
        return SearchResult(tuple(found), live, unexplored / live if live > 0 else 0.0)

    @property
    @override
    def words(self) -> dict[bytes, float]:
        count = int(self._arrays.counts[WORDS])
        masses = self._arrays.word_masses[:count].tolist()
        return dict(zip(map(self._text, range(count)), masses, strict=True))

    @override
    def mass_of(self, word: str) -> float:
        if len(self._masses) < self._arrays.counts[WORDS]:
            self._masses = self.words
        return self._masses.get(word.encode("utf-8", "surrogatepass"), 0.0)

    def _text(self, word: int) -> bytes:
        """Return the text of a word by its number."""
        node, pieces = self._nodes[int(self._arrays.word_nodes[word])]
        text = node.text[: len(node.text) - len(node.word_state.pending)]
        group = int(self._arrays.word_groups[word])
        return text + pieces.letters[group] if group >= 0 else text

    @override
    def _first_children(self, limit: int) -> list[Child]:
        arrays, found = self._arrays, list[Child]()
        for node in arrays.heap[: arrays.counts[HEAP]].tolist():
            own = slice(arrays.firsts[node], arrays.pasts[node])
            masses = (arrays.masses[node] * arrays.shares[own]).tolist()
            for token, mass in zip(arrays.tokens[own].tolist(), masses, strict=True):
                found.append(Child(self._nodes[node][0], token, mass, 0))
        return nlargest(limit, found, key=lambda child: child.mass)

    def _make_room(self, children: int, words: int) -> None:
        """Make room for more children and words."""
        arrays = self._arrays
        most = max(_MAX_PLACES, 4 * self._capacity())
        if arrays.counts[POOL] + children > most:
            prune(arrays, most // 2)  # more than the search can expand, as some may become no word
        if (needed := int(arrays.counts[POOL]) + children) > len(arrays.tokens):
            arrays = _enlarged(arrays, ("tokens", "shares", "sums"), 2 * needed)
        if (needed := int(arrays.counts[WORDS]) + words) > len(arrays.word_masses):
            size = 1 << needed.bit_length()
            names = "word_hashes", "word_masses", "word_nodes", "word_groups"
            arrays = _enlarged(arrays, names, size)._replace(slots=np.full(2 * size, -1, np.int32))
            index_words(arrays)
        self._arrays = arrays


def _find_pieces(trie: TokenTrie, word_state: WordState, spelled: bytes, *, any_case: bool) -> WordPieces:
    moves = trie.transitions(word_state)
    if spelled:
        moves = trie.transitions_along(word_state, spelled, trie.folded if any_case else trie.exact)
    numbers: dict[bytes, int] = {}
    crossing, groups, bytewise = list[int](), list[int](), list[int]()
    for token in moves.crossing.tolist():
        added = trie.token_bytes[token][spelled.startswith(_SPACE) :]
        ends, after = scan_words(word_state, added)
        if ends:
            crossing.append(token)
            groups.append(numbers.setdefault((word_state.pending + added)[: ends[0]], len(numbers)))
        elif after is not None:
            bytewise.append(token)
    inside = [*moves.inside.tolist(), *bytewise]
    undecided = {*trie.undecided(moves.inside).tolist(), *bytewise}
    return WordPieces(
        np.array(inside, np.int32),
        np.array([token in undecided for token in inside], np.bool_),
        moves.ending.astype(np.int32),
        np.array(crossing, np.int32),
        np.array(groups, np.int32),
        [*numbers],
        HashedTexts.of([*numbers]),
    )


def _enlarged(arrays: Any, names: Sequence[str], size: int) -> Any:
    """Return the state of a search with larger arrays."""
    larger = {}
    for name in names:
        old = getattr(arrays, name)
        larger[name] = np.empty(size, old.dtype)
        larger[name][: len(old)] = old
    return arrays._replace(**larger)
