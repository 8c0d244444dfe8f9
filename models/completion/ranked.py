"""Ranked completions, their settings, and what is known of a keystroke besides the text before the caret."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from models.completion.corrections import Gains, KeyLetters
from models.completion.prefix import PrefixSplit
from models.completion.search import CompletionSettings
from models.language_model import is_lookup
from models.text_model import TextModel

LOOK_UPS_PER_STEP, COMPLETIONS_PER_STEP = 32, 256
"""Completions looked up and compared in a step."""


class TypingEvidence(NamedTuple):
    """Knowledge of a keystroke besides the text before the caret on its line.

    Attributes:
        before: lines before it; empty if unknown.
        after: text after the caret; empty if unknown.
        keys: probabilities of the letters meant by each character of the typed
            prefix; none if it is certain.
        gains: probability of typing errors by model address, relative to equally
            probable ones.
    """

    before: str = ""
    after: str = ""
    keys: Sequence[KeyLetters] = ()
    gains: Mapping[str, Gains] = MappingProxyType({})

    def lines_read(self, loaded: TextModel) -> str:
        """Return the earlier lines that a model reads; none if it begins each line anew, as n-gram models do."""
        return "" if is_lookup(loaded.model) else self.before


NO_EVIDENCE = TypingEvidence()
"""The line up to the caret is all that is known."""


@dataclass(frozen=True, slots=True)
class RankingSettings(CompletionSettings):
    """Limits and order of ranked completions.

    Attributes:
        min_probability: minimum probability of the completions that are returned.
        rank: `probability`, or `savings` for the probability times the characters
            saved.
        fuzzy: maximum typing errors in the prefix to correct; also limited to one
            per two letters of the prefix.
        user_weight: weight λ of the user's words and the dictionary, if any of
            these words match.
    """

    min_probability: float = 0.0
    rank: str = "probability"
    fuzzy: int = 0
    user_weight: float = 0.2


@dataclass(slots=True)
class RankedCompletion:
    """A completion, with its probability by the model and the user's words.

    Attributes:
        text: text from the start of the current word.
        num_words: number of words.
        edits: edits between its beginning and the typed prefix.
        is_complete: true if it ends at the end of a word.
        of_model: mass by the model; after ranking, its part of the probability
            given the typed text.
        of_user: mass by the user's words, likewise.
        begun: end of the text that a member of a class with earlier words begins
            with; empty for the current word.
    """

    text: str
    num_words: int
    edits: int
    is_complete: bool = True
    of_model: float = 0.0
    of_user: float = 0.0
    begun: str = ""

    @property
    def probability(self) -> float:
        """Probability given the typed text."""
        return min(1.0, self.of_model + self.of_user)


def starts_with(text: str, prefix: str, settings: RankingSettings) -> bool:
    """Return whether a text begins with a prefix, in its case or in any."""
    if settings.ignore_case:
        return text.casefold().startswith(prefix.casefold())
    return text.startswith(prefix)


class Ranking(NamedTuple):
    """Ranked completions of a text.

    Attributes:
        typed: the text's context and typed prefix, at the first beginning of the
            current word by any model.
        completions: completions, best first.
        unexplored: probability, given the typed text, of what was not searched.
        weights: weight of each model after the typed text [M].
    """

    typed: PrefixSplit
    completions: list[RankedCompletion]
    unexplored: float
    weights: list[float]
