"""Words of the caller's that are right, whatever the model thinks."""

from collections.abc import Mapping

from models.checking.lexicon import Lexicon, Near


class Dictionary:
    """A caller's words, found whatever their case.

    Args:
        words: how each is spelled, by its spelling in lower case.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self._words = words
        self._keys = list(words)
        self._lexicon: Lexicon | None = None

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, word: str) -> bool:
        return bool(self._words) and word.lower() in self._words

    def __getitem__(self, place: int) -> str:
        """A word as the caller spells it."""
        return self._words[self._keys[place]]

    def near(self, word: str, max_edits: int) -> Near:
        """The places of words at 1 to `max_edits` edits from one, case aside."""
        if self._lexicon is None:
            self._lexicon = Lexicon(self._keys)
        return self._lexicon.near(word.lower(), max_edits)
