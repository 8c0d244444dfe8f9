"""Words and phrases that completions must not have: of blocklists with their misspellings, and shown before."""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple
from unicodedata import normalize

from models.calls import Steps, map_in_steps
from models.completion.user_model import sentence_words
from models.language_model import CONTROL_TOKENS
from models.phrases import PhraseAutomaton
from models.scoring.model_weights import WeightedModel
from models.text_model import TextModel
from models.word_list import WordList
from models.words import word_pattern

_CONTROL_TOKENS = frozenset(CONTROL_TOKENS)
"""Placeholders in corpora; a vocabulary may have them as words, never offered."""


class Blocked(NamedTuple):
    """Words and phrases, folded, and lists of them, that completions must not have; texts that they must not be.

    Also the models whose completions are blocked.
    """

    phrases: Sequence[tuple[str, ...]] = ()
    lists: Sequence[WordList] = ()
    shown: Collection[str] = ()
    models: Sequence[TextModel] = ()

    def __bool__(self) -> bool:
        """Return whether anything is blocked."""
        return bool(self.phrases or self.lists or self.shown)

    def num_with_prefix(self, prefix: str) -> int:
        """Return the number of those that begin with a prefix, also in another case unless a list compares it."""
        if not self:
            return 0
        folded = prefix.casefold()
        return sum(words[0].startswith(folded) for words in self.phrases) + sum(
            one.num_with_prefix(prefix) for one in self.lists
        )

    def has_misspelling_in(self, text: str) -> bool:
        """True if a text has a word that may stand for a blocked one, and that no other model knows as right."""
        for form in word_pattern().findall(text):
            by_model = [one.tokenizer.misspellings.meant_by(_folded(form)) for one in self.models]
            if any(self._has(word) for meant in by_model for word in meant) and not any(
                one.is_known_word is not None and one.is_known_word(form)
                for one, meant in zip(self.models, by_model, strict=True)
                if not meant
            ):
                return True
        return False

    def _has(self, word: str) -> bool:
        return (word,) in self.phrases or any(word in one for one in self.lists)


NOT_BLOCKED = Blocked()
"""Nothing."""


def blocked_by(blocklist: Sequence[str | WordList], models: Sequence[WeightedModel]) -> Steps[Blocked]:
    """Fold the entries of a blocklist."""
    given = [one for one in blocklist if isinstance(one, str)]
    words = yield from map_in_steps(given, lambda one: tuple(_folded(one).split()), size=len)
    phrases = [*dict.fromkeys(filter(None, words))]
    return Blocked(phrases, lists_in(blocklist), models=[loaded for loaded, _ in models])


def lists_in(entries: Iterable[Any]) -> list[WordList]:
    """Return the stored lists among entries."""
    return [one for one in entries if isinstance(one, WordList)]


def is_blocked(text: str, blocked: Blocked, phrases: PhraseAutomaton[str] | None) -> bool:
    """Return whether a completion has a control token, or a blocked word or phrase, with or without punctuation."""
    if not blocked and text.isascii() and "<" not in text:
        return False
    if text in blocked.shown:
        return True
    folded = _folded(text)
    words = folded.split()
    return (
        not _CONTROL_TOKENS.isdisjoint(words)
        or (
            phrases is not None
            and any(map(phrases.find, (words, chain.from_iterable(sentence_words(folded)))))
        )
        or any(one.has_part_in(text) for one in blocked.lists)
    )


def _folded(text: str) -> str:
    return normalize("NFKC", text.casefold())
