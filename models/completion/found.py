"""What a search for completions finds."""

from collections.abc import Mapping
from heapq import nlargest
from operator import itemgetter
from typing import NamedTuple


class ScoredCompletion(NamedTuple):
    """A word or phrase that the text may go on as.

    Attributes:
        text: it, from where the current word begins.
        mass: how probable it is that the text goes on so, jointly with what was typed of the word; the share
            of `Found.live_mass` is the probability given what was typed.
        num_words: in it.
        is_complete: whether it ends with a word. A beginning of one is told where the search was cut before
            any of its words was found; its mass is unexplored.
    """

    text: str
    mass: float
    num_words: int
    is_complete: bool


class SearchResult(NamedTuple):
    """What a search has found so far.

    Attributes:
        completions: the best of each number of words, the most probable first.
        live_mass: how probable what was typed is, as far as is known: never less than it is in truth.
        unexplored_mass: the share of it that no word was found for. This and the shares of all words found, told
            or not, sum to 1; both are 0 where no tokens spell what was typed.
    """

    completions: tuple[ScoredCompletion, ...]
    live_mass: float
    unexplored_mass: float


class MassTable:
    """Words and phrases with their masses, and what became of the rest.

    What was typed is as probable as all that was `completed`, is still `open`, or was `cut`; each counts single words
    only, as every phrase begins with one.

    Args:
        max_words: words of the longest phrase.
    """

    def __init__(self, max_words: int) -> None:
        self._by_length: list[dict[bytes, float]] = [{} for _ in range(max_words)]
        self.completed = self.open = self.cut = 0.0

    @property
    def live(self) -> float:
        """How probable what was typed is, as far as is known."""
        return self.completed + self.open + self.cut

    @property
    def words(self) -> dict[bytes, float]:
        """The mass of each word found."""
        return self._by_length[0]

    def add(self, text: bytes, num_words: int, mass: float) -> None:
        """Add a mass to that of a word or phrase; the account of `completed` is the caller's."""
        found = self._by_length[num_words - 1]
        found[text] = found.get(text, 0.0) + mass

    def discard(self, mass: float) -> None:
        """Take a mass that is open for one that will not be looked into."""
        self.open -= mass
        self.cut += mass

    def pruning_threshold(self, limit: int) -> float:
        """What a sequence must weigh to change the best of any length; 0 as long as there are too few of one."""
        least = float("inf")
        for found in self._by_length:
            if len(found) < limit:
                return 0.0
            least = min(least, nlargest(limit, found.values())[-1])
        return least

    def result(self, limit: int, beginnings: Mapping[bytes, float]) -> SearchResult:
        """The best of each length, and the best beginnings of words where there are too few words.

        Args:
            limit: how many of each length.
            beginnings: of words, none of which was found.
        """
        completions = [
            ScoredCompletion(text.decode(), mass, num_words, is_complete=True)
            for num_words, found in enumerate(self._by_length, start=1)
            for text, mass in nlargest(limit, found.items(), key=itemgetter(1))
        ]
        room = max(limit - len(self.words), 0)
        completions += [
            ScoredCompletion(text.decode(), mass, 1, is_complete=False)
            for text, mass in nlargest(room, beginnings.items(), key=itemgetter(1))
        ]
        completions.sort(key=lambda completion: (-completion.mass, completion.text))
        live = self.live
        return SearchResult(
            tuple(completions), live, max(self.open + self.cut, 0.0) / live if live > 0 else 0.0
        )
