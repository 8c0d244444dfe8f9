"""A user's phrases, such as names new to a model, found in texts and along paths.

Words are compared without case and surrounding punctuation. From left to right, the longest phrase at a
place counts, and its words belong to no other phrase.

Sources: Aho and Corasick (1975), "Efficient string matching"; Aleksic et al. (2015), "Bringing contextual
information to Google speech recognition".
"""

import math
from array import array
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from models.arrays import Float64s
from models.errors import InputError
from models.language_model import UNK
from models.tokenizers import Tokenizer
from models.words import fold_words

PHRASES = "phrases"
"""Feature of phrases without a class; `phrases:street` is that of the class `street`."""

MAX_PHRASES = 10_000
MAX_TOKEN_PHRASES = 1000
"""Maximum phrases of a request that finds them in tokens, in all their spellings."""

MAX_CLASSES = 16
MAX_PHRASE_WORDS = 16
MAX_PHRASE_CHARS = 200
MAX_PHRASE_WEIGHT = 1000.0
DEFAULT_WEIGHT = 10.0
"""Weight of features if none is given; above a word's share among others, ln 1000 = 7."""

H = TypeVar("H", bound=Hashable)

Found: TypeAlias = tuple[int, ...]
"""Indices of phrases, in the order of their occurrences."""

_Parts: TypeAlias = tuple[Any, ...]
"""Found phrases: none, the index of one, or two such parts, which nodes share."""

_STEP_ITEMS = 1 << 11
"""Approximate number of items or nodes per step of building, a few milliseconds."""

_FIXED_BYTES, _NODE_BYTES, _ITEM_BYTES = 800, 90, 120
"""Maximum memory of an automaton, a node and a distinct item."""


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

    text: Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_PHRASE_CHARS})]
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


class PhraseAutomaton(Generic[H]):
    """Automaton that finds phrases while items (words or tokens) are read one by one.

    A node is the end of the read items that may still become a phrase. A phrase is found when no longer one at its
    place is possible. On average, an item takes at most two steps for any number of phrases. Nodes are ordered by
    length, then parent, then last item: those of one parent follow each other.

    Args:
        phrases: different sequences of items, at least one each.
        weights: weight of each phrase, above 0.

    Attributes:
        num_bytes: estimated memory; 0 without phrases.
    """

    START = 0
    _overlap: ClassVar[bool] = False
    """True if phrases may overlap; then only nodes matter, not phrases found."""

    def __init__(self, phrases: Collection[Sequence[H]] = (), weights: Iterable[float] = ()) -> None:
        for _ in self.build(phrases, weights):
            pass

    def build(self, phrases: Collection[Sequence[H]], weights: Iterable[float]) -> Iterator[None]:
        """Replace the phrases; yield after each bounded number of items and nodes."""
        numbers: dict[H, int] = {}
        items, count = array("i"), 0
        lengths = np.fromiter(map(len, phrases), np.int64, len(phrases))
        for phrase in phrases:
            items.extend([numbers.setdefault(item, len(numbers) + 1) for item in phrase])
            if (count := count + len(phrase)) > _STEP_ITEMS:
                count = 0
                yield
        self._numbers, self._items, self._lengths = numbers, list(numbers), lengths.tolist()
        self._weights = list(weights)
        # of each node: its last item's number, after its parent; its length; its phrase, or -1; the phrase whose
        # beginning is worth most
        self._keys, self._depths = array("q", [-1]), array("i", [0])
        self._complete, self._promised = array("i", [-1]), array("i", [-1])
        self._firsts = [self.START] * (len(numbers) + 1)
        ids, starts, values = np.array(items), np.cumsum(lengths) - lengths, np.array(self._weights)
        nodes, longer = np.zeros_like(lengths), np.arange(len(lengths))
        for depth in range(1, max(self._lengths, default=0) + 1):
            longer = longer[lengths[longer] >= depth]
            given = nodes[longer] * len(self._firsts) + ids[starts[longer] + depth - 1]
            keys, which = np.unique(given, return_inverse=True)
            nodes[longer] = len(self._keys) + which
            ends, ranks = lengths[longer] == depth, depth / lengths[longer] * values[longer]
            complete, order = np.full(len(keys), -1), np.lexsort((-ranks, which))
            complete[which[ends]] = longer[ends]
            self._keys.extend(keys.tolist())
            self._depths.extend([depth] * len(keys))
            self._complete.extend(complete.tolist())
            self._promised.extend(longer[order[np.diff(which[order], prepend=-1) > 0]].tolist())
            if (count := count + len(longer)) > _STEP_ITEMS:
                count = 0
                yield
        yield from self._link()

    def _link(self) -> Iterator[None]:
        """Find the rest of each node after its first phrase or item, and the phrases before."""
        self._rests: array[int] = array("i", [self.START])
        self._parts: list[_Parts] = [()]
        for node in range(1, len(self._keys)):
            parent, number = divmod(self._keys[node], len(self._firsts))
            rest, phrase = self.START, self._complete[node]
            parts: _Parts = ()
            if parent == self.START:
                self._firsts[number] = node
            else:
                rest, parts = self._advance(self._rests[parent], number, self._parts[parent])
            if phrase >= 0 and not self._overlap:
                rest, parts = self.START, (phrase,)
            self._rests.append(rest)
            self._parts.append(parts)
            if not node % _STEP_ITEMS:
                yield
        sizes = _NODE_BYTES * len(self._keys) + _ITEM_BYTES * len(self._items)
        self.num_bytes = _FIXED_BYTES + sizes if self._items else 0

    def advance(self, node: int, item: H) -> tuple[int, Found]:
        """Return the node after one more item, and the phrases found before the new node's items."""
        after, parts = self._advance(node, self._numbers.get(item, 0))
        return after, _flatten(parts)

    def _advance(self, node: int, number: int, parts: _Parts = ()) -> tuple[int, _Parts]:
        """Return the node after an item by number, 0 if in no phrase, and the parts found."""
        while node != self.START:
            key = node * len(self._firsts) + number
            child = bisect_left(self._keys, key, node + 1)
            if child < len(self._keys) and self._keys[child] == key:
                return child, parts
            node, parts = self._rests[node], _join(parts, self._parts[node])
        return self._firsts[number], parts

    def read(self, node: int, items: Iterable[H]) -> tuple[int, Found]:
        """Return the node after more items, and the phrases found before the new node's items."""
        found: Found = ()
        for item in items:
            if node == self.START and item not in self._numbers:
                continue  # most items
            node, more = self.advance(node, item)
            found += more
        return node, found

    def finish(self, node: int) -> Found:
        """Return the phrases in a node's items if nothing follows."""
        return _flatten(self._advance(node, 0)[1])

    def credit(self, node: int) -> tuple[Found, float]:
        """Return the phrases that a node's items are worth, and the share of their values.

        These are the phrases in the items; or, if worth more, the phrase that begins with them, with the share
        of its items that were read. This credit has to be taken back when the node is left.
        """
        found, promised = self.finish(node), (self._promised[node],)
        share = self._depths[node] / self._lengths[promised[0]] if node != self.START else 0.0
        return (
            (promised, share) if share and self.worth(found) < self.worth(promised, share) else (found, 1.0)
        )

    def taken_back(self, node: int) -> float:
        """Return the value to add when a text ends at a node: minus the credit for the incomplete."""
        return self.worth(self.finish(node)) - self.worth(*self.credit(node))

    def worth(self, found: Found, share: float = 1.0) -> float:
        """Return a share of the weights of phrases."""
        return share * sum(self._weights[index] for index in found)

    def find(self, items: Iterable[H]) -> Found:
        """Return the phrases in a sequence."""
        node, found = self.read(self.START, items)
        return found + self.finish(node)

    def following(self, node: int) -> dict[H, tuple[int, Found]]:
        """Return the items that do not lead to the start, with what `advance` returns for each."""
        after: dict[H, tuple[int, Found]] = {}
        for end, parts in self._suffixes(node):
            found = _flatten(parts)
            for child, item in self._children(end):
                after.setdefault(item, (child, found))
        return after

    def _children(self, node: int) -> Iterator[tuple[int, H]]:
        """Yield the nodes of one more item than a node, and this item."""
        width = len(self._firsts)
        first, past = (bisect_left(self._keys, key * width, node + 1) for key in (node, node + 1))
        for child in range(first, past):
            yield child, self._items[self._keys[child] % width - 1]

    def _suffixes(self, node: int) -> Iterator[tuple[int, _Parts]]:
        """Yield a node, the shorter ones that replace it, and the phrases found before each."""
        parts: _Parts = ()
        yield node, parts
        while node != self.START:
            node, parts = self._rests[node], _join(parts, self._parts[node])
            yield node, parts


def _join(first: _Parts, second: _Parts) -> _Parts:
    return (first, second) if first and second else first or second


def _flatten(parts: _Parts) -> Found:
    found: list[int] = []
    left = [parts]
    while left:
        one = left.pop()
        if len(one) == 2:
            left += reversed(one)
        else:
            found += one
    return tuple(found)


class PhraseList:
    """Phrases of a request, checked.

    Args:
        phrases: the phrases.
        places: index of each in the request, if not all of it are phrases.

    Raises:
        InputError: there are too many phrases or classes; or a phrase is too long, has no word, has a weight
            outside its limits, or has the words of another phrase.
    """

    def __init__(self, phrases: Sequence[Phrase], places: Sequence[int] = ()) -> None:
        if len(phrases) > MAX_PHRASES:
            raise InputError.of("phrases", f"has {len(phrases)} entries; at most {MAX_PHRASES} are accepted")
        numbers: dict[tuple[str, ...], int] = {}
        for place, phrase in zip(places or range(len(phrases)), phrases, strict=True):
            words = _checked_words(place, phrase)
            if (earlier := numbers.setdefault(words, place)) != place:
                raise InputError.of(
                    f"phrases[{place}].text",
                    f"is {phrase.text!r}, which has the words of phrases[{earlier}].text",
                )
        self.phrases = tuple(phrases)
        self.features = tuple(dict.fromkeys(phrase.feature for phrase in phrases))
        if len(self.features) > MAX_CLASSES:
            raise InputError.of(
                "phrases", f"have {len(self.features)} classes; at most {MAX_CLASSES} are accepted"
            )
        self._words = tuple(numbers)
        self._first_words = frozenset(words[0] for words in numbers)

    def __len__(self) -> int:
        return len(self.phrases)

    def joined(self, others: Iterable["PhraseList"]) -> "PhraseList":
        """Return these phrases and others; of those of equal words, the first."""
        distinct = dict(zip(self._words, self.phrases, strict=True))
        for one in others:
            for words, phrase in zip(one._words, one.phrases, strict=True):  # noqa: SLF001 - of the same class
                distinct.setdefault(words, phrase)
        return PhraseList([*distinct.values()])

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
        """Return Σ ln share of a phrase's words unknown to a model, and their number of `<unk>` tokens.

        A word's share is that of its weight among all words of the phrases. With it, the probability of `<unk>`
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
    if len(phrase.text) > MAX_PHRASE_CHARS:
        raise InputError.of(
            name, f"has {len(phrase.text)} characters; at most {MAX_PHRASE_CHARS} are accepted"
        )
    words = tuple(fold_words(phrase.text))
    if not 1 <= len(words) <= MAX_PHRASE_WORDS or not all(words):
        raise InputError.of(
            name,
            f"is {phrase.text!r}, with {len(words)} words; a phrase has from 1 to {MAX_PHRASE_WORDS}, "
            "each with a character other than punctuation",
        )
    if not 0 < phrase.weight <= MAX_PHRASE_WEIGHT:
        raise InputError.of(
            f"phrases[{index}].weight",
            f"is {phrase.weight}; it must be above 0 and at most {MAX_PHRASE_WEIGHT:g}",
        )
    return words


NO_PHRASES = PhraseList(())
NO_TOKEN_PHRASES = PhraseAutomaton[int]()
