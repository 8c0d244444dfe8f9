"""Words of the caller's that are right, whatever the model thinks."""

from collections.abc import Iterator, Mapping

from models.checking.lexicon import FuzzyLexicon


class UserDictionary:
    """A caller's words, found whatever their case.

    Args:
        words: how each is spelled, by its spelling in lower case.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words
        self._keys = list(words)
        self._lexicon: FuzzyLexicon | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, word: str) -> bool:
        return bool(self._words) and word.lower() in self._words

    def fuzzy_matches(self, word: str, max_edits: int) -> Iterator[tuple[str, int]]:
        """The words at 1 to `max_edits` edits from one, case aside, as the caller spells them, and how many edits."""
        if self._lexicon is None:
            self._lexicon = FuzzyLexicon(self._keys)
        found = self._lexicon.fuzzy_matches(word.lower(), max_edits)
        for place, edits in zip(found.indices.tolist(), found.edits.tolist(), strict=True):
            yield self._words[self._keys[place]], edits
