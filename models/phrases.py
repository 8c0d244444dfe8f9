"""Phrases of a user, such as names that a model has never seen, found in texts and along paths.

Words are compared without case and surrounding punctuation. From left to right, the longest phrase at a
place counts, and its words belong to no other phrase.

Sources: Aho and Corasick (1975), "Efficient string matching"; Aleksic et al. (2015), "Bringing contextual
information to Google speech recognition".
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Generic, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from models.arrays import Float64s
from models.errors import InvalidInputError
from models.tokenizers import Tokenizer
from models.vocabulary import UNK

PHRASES = "phrases"
"""Feature of phrases without a class; `phrases:street` is that of the class `street`."""

MAX_PHRASES = 10_000
MAX_TOKEN_PHRASES = 1000
"""Maximum phrases of a request that finds them in tokens, in all their spellings."""

MAX_CLASSES = 16
MAX_PHRASE_WORDS = 16
MAX_PHRASE_CHARACTERS = 200
MAX_PHRASE_WEIGHT = 1000.0
DEFAULT_FEATURE_WEIGHT = 10.0
"""Weight of the features if no weights are given; exceeds the share of a word among a thousand others, ln 1000 = 7."""

_PUNCTUATION = ".,;:!?…\"'“”„‘’«»¿¡()[]"  # noqa: RUF001 - typographic quotation marks


class Phrase(BaseModel):
    """A phrase that texts may contain."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        serialize_by_alias=True,
    )

    text: Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_PHRASE_CHARACTERS})]
    """One to 16 words, compared without case and surrounding punctuation."""
    weight: Annotated[
        float, Field(json_schema_extra={"exclusiveMinimum": 0, "maximum": MAX_PHRASE_WEIGHT})
    ] = 1.0
    """Value of each occurrence in the feature, above 0 and at most 1000."""
    class_name: Annotated[str, Field(alias="class", pattern=r"^[A-Za-z0-9_.-]{0,64}$")] = ""
    """Class `NAME`, with a feature of its own, `phrases:NAME`; empty for the feature `phrases`."""

    @property
    def feature(self) -> str:
        """Name of the feature that counts the phrase."""
        return f"{PHRASES}:{self.class_name}" if self.class_name else PHRASES


def is_phrase_feature(name: str) -> bool:
    """True for the names of features that count phrases."""
    return name.partition(":")[0] == PHRASES


def fold_words(text: str) -> list[str]:
    """Return the words of a text in lower case without surrounding punctuation."""
    return [word.strip(_PUNCTUATION) for word in text.casefold().split()]


H = TypeVar("H", bound=Hashable)

Found: TypeAlias = tuple[int, ...]
"""Indices of phrases, in the order of their occurrences."""


class PhraseAutomaton(Generic[H]):
    """Automaton that finds phrases while items, such as words or tokens, are read one by one.

    A node is the end of the read items that may still become a phrase. A phrase is found when no longer phrase at its
    place is possible. On average, an item takes at most two steps, however many phrases there are.

    Args:
        phrases: different sequences of items.
        weights: weight of each phrase.

    Attributes:
        num_bytes: estimated memory; 0 without phrases.
    """

    START = 0

    def __init__(self, phrases: Sequence[Sequence[H]] = (), weights: Sequence[float] = ()) -> None:
        self._next: list[dict[H, int]] = [{}]
        self._paths: list[tuple[H, ...]] = [()]
        self._complete: list[Found] = [()]
        self._promises: list[tuple[float, Found, float]] = [(0.0, (), 0.0)]
        self._weights: list[float] = []
        self._shorter: dict[int, tuple[int, Found]] = {}
        self.num_bytes = 0
        for phrase, weight in zip(phrases, weights, strict=True):
            self.add(phrase, weight)

    def add(self, phrase: Sequence[H], weight: float) -> None:
        """Add a phrase, different from the others, before any item is read."""
        self._weights.append(weight)
        index, node = len(self._weights) - 1, self.START
        for length, item in enumerate(phrase, start=1):
            child = self._next[node].setdefault(item, len(self._next))
            if child == len(self._next):
                self._next.append({})
                self._paths.append((*self._paths[node], item))
                self._complete.append(())
                self._promises.append((0.0, (), 0.0))
                self.num_bytes += 700 + 8 * length  # as measured; the path has `length` items
            share = length / len(phrase)
            if share * weight > self._promises[child][0]:
                self._promises[child] = share * weight, (index,), share
            node = child
        self._complete[node] = (index,)

    def advance(self, node: int, item: H) -> tuple[int, Found]:
        """Return the node after one more item, and the phrases found before the new node's items."""
        found: Found = ()
        while item not in self._next[node]:
            if node == self.START:
                return node, found
            node, more = self._shorten(node)
            found += more
        return self._next[node][item], found

    def read(self, node: int, items: Sequence[H]) -> tuple[int, Found]:
        """Return the node after more items, and the phrases found before the new node's items."""
        found: Found = ()
        for item in items:
            if node == self.START and item not in self._next[node]:
                continue  # most items
            node, more = self.advance(node, item)
            found += more
        return node, found

    def finish(self, node: int) -> Found:
        """Return the phrases in a node's items if nothing follows."""
        found: Found = ()
        while node != self.START:
            node, more = self._shorten(node)
            found += more
        return found

    def credit(self, node: int) -> tuple[Found, float]:
        """Return the phrases that a node's items are worth, and the share of their values.

        These are the phrases in the items; or, if it is worth more, the phrase that begins with them, with the share
        of its items that were read. This credit has to be taken back when the node is left.
        """
        found, (worth, promised, share) = self.finish(node), self._promises[node]
        return (found, 1.0) if self.worth(found) >= worth else (promised, share)

    def taken_back(self, node: int) -> float:
        """Return the value to add at the end of a text after a node: minus the credit for what is not complete."""
        return self.worth(self.finish(node)) - self.worth(*self.credit(node))

    def worth(self, found: Found, share: float = 1.0) -> float:
        """Return a share of the weights of phrases."""
        return share * sum(self._weights[index] for index in found)

    def find(self, items: Sequence[H]) -> Found:
        """Return the phrases in a sequence."""
        node, found = self.read(self.START, items)
        return found + self.finish(node)

    def following(self, node: int) -> set[H]:
        """Return the items after which the node is not the start."""
        return {item for end in self._suffixes(node) for item in self._next[end]}

    def _suffixes(self, node: int) -> Iterator[int]:
        """Yield a node and the shorter ones that replace it, down to the start."""
        yield node
        while node != self.START:
            node, _ = self._shorten(node)
            yield node

    def _shorten(self, node: int) -> tuple[int, Found]:
        """Drop the first phrase or item of a node; return the node of the rest, and the phrases."""
        if node not in self._shorter:
            path = self._paths[node]
            dropped, found = self._first(path)
            rest, more = self.read(self.START, path[dropped:])
            self._shorter[node] = rest, found + more
        return self._shorter[node]

    def _first(self, path: Sequence[H]) -> tuple[int, Found]:
        """Return the length of the longest phrase that a path begins with, and the phrase; 1 if there is none."""
        dropped, node = 1, self.START
        found: Found = ()
        for length, item in enumerate(path, start=1):
            node = self._next[node][item]
            if self._complete[node]:
                dropped, found = length, self._complete[node]
        return dropped, found


class PhraseList:
    """Phrases of a request, checked.

    Args:
        phrases: the phrases.

    Raises:
        InvalidInputError: there are too many phrases or classes; or a phrase is too long, has no word, has a weight
            outside its limits, or has the words of another phrase.
    """

    def __init__(self, phrases: Sequence[Phrase]) -> None:
        if len(phrases) > MAX_PHRASES:
            raise InvalidInputError(
                f"phrases has {len(phrases)} entries; at most {MAX_PHRASES} are accepted", parameter="phrases"
            )
        numbers: dict[tuple[str, ...], int] = {}
        for index, phrase in enumerate(phrases):
            words = _checked_words(index, phrase)
            if (earlier := numbers.setdefault(words, index)) != index:
                raise InvalidInputError(
                    f"phrases[{index}].text is {phrase.text!r}, which has the words of phrases[{earlier}].text",
                    parameter=f"phrases[{index}].text",
                )
        self.phrases = tuple(phrases)
        self.features = tuple(dict.fromkeys(phrase.feature for phrase in phrases))
        if len(self.features) > MAX_CLASSES:
            raise InvalidInputError(
                f"phrases have {len(self.features)} classes; at most {MAX_CLASSES} are accepted",
                parameter="phrases",
            )
        self._words = tuple(numbers)
        self._first_words = frozenset(words[0] for words in numbers)

    def __len__(self) -> int:
        return len(self.phrases)

    @cached_property
    def automaton(self) -> PhraseAutomaton[str]:
        """Automaton over folded words."""
        return PhraseAutomaton(self._words, [phrase.weight for phrase in self.phrases])

    def find(self, text: str) -> Found:
        """Return the phrases in a text."""
        words = fold_words(text)
        return () if self._first_words.isdisjoint(words) else self.automaton.find(words)

    def values(self, found: Sequence[int]) -> Float64s:
        """Return the value of each found phrase in each feature [P, F]."""
        values = np.zeros((len(found), len(self.features)))
        for row, phrase in enumerate(self.phrases[index] for index in found):
            values[row, self.features.index(phrase.feature)] = phrase.weight
        return values

    def unknown(self, index: int, tokenizer: Tokenizer) -> tuple[float, int]:
        """Return Σ ln share of a phrase's words that a model does not know, and their number of `<unk>` tokens.

        The share of a word is that of its weight among all words of the phrases. With it, the probability of `<unk>`
        is distributed over the words of the phrases.
        """
        log_share, num_unknown = 0.0, 0
        for written, folded in zip(self.phrases[index].text.split(), self._words[index], strict=True):
            if count := min(tokenizer.encode(form).count(UNK) for form in (written, folded)):
                log_share += math.log(self._shares[folded])
                num_unknown += count
        return log_share, num_unknown

    @cached_property
    def _shares(self) -> dict[str, float]:
        """Share of each word's weight among all words."""
        weights: dict[str, float] = {}
        for phrase, words in zip(self.phrases, self._words, strict=True):
            for word in words:
                weights[word] = weights.get(word, 0.0) + phrase.weight
        total = math.fsum(weights.values())
        return {word: weight / total for word, weight in weights.items()}


def _checked_words(index: int, phrase: Phrase) -> tuple[str, ...]:
    """Check a phrase; return its folded words."""
    name = f"phrases[{index}].text"
    if len(phrase.text) > MAX_PHRASE_CHARACTERS:
        raise InvalidInputError(
            f"{name} has {len(phrase.text)} characters; at most {MAX_PHRASE_CHARACTERS} are accepted",
            parameter=name,
        )
    words = tuple(fold_words(phrase.text))
    if not 1 <= len(words) <= MAX_PHRASE_WORDS or not all(words):
        raise InvalidInputError(
            f"{name} is {phrase.text!r}, with {len(words)} words; a phrase has from 1 to {MAX_PHRASE_WORDS}, "
            "each with a character other than punctuation",
            parameter=name,
        )
    if not 0 < phrase.weight <= MAX_PHRASE_WEIGHT:
        raise InvalidInputError(
            f"phrases[{index}].weight is {phrase.weight}; it must be above 0 and at most {MAX_PHRASE_WEIGHT:g}",
            parameter=f"phrases[{index}].weight",
        )
    return words


NO_PHRASES = PhraseList(())
NO_TOKEN_PHRASES = PhraseAutomaton[int]()
