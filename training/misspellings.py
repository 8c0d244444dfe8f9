"""Misspellings of a training text, found by counts and letters.

A form is one if it has one typing error of a far more frequent word, and letters
around the error that stand together in no other word, unless it is an exchange of
two letters. So wrods of words, but not horse of house. The beginning of a longer
word that occurs several times is none. Where there is a dictionary, its words are
none, and a rare form that it lacks stands for a far more frequent word that it has.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from models.misspellings import Misspellings, is_exchange, is_mistyped

_MIN_LETTERS, _MIN_DOUBTFUL_LETTERS, _MAX_LETTERS = 3, 4, 32
_MIN_RATIOS, _MIN_RATIO = {3: 1000, 4: 500, 5: 100}, 50
"""Minimum count of the word as a multiple of the form's: for forms of few letters, and for others."""

_RATIO_PER_COUNT, _EXCHANGE_RATIO_PER_COUNT, _MAX_COUNT = 100, 10, 50
"""Minimum multiple for each occurrence of the form, up to so many: few errors are made twice, most are exchanges."""

_SEQUENCE = 4
"""Letters that stand together, with a space before and after the word."""

_MIN_COUNT = 5
"""Minimum count of the words whose letters are compared."""


def find_misspellings(
    counts: Mapping[str, int],
    known: Sequence[Misspellings] = (),
    is_right: Callable[[str], bool] | None = None,
) -> Misspellings:
    """Return the misspellings of a text, the most frequent first.

    Only words of letters in a script with capitals are compared: in others, an edit
    often makes another word.

    Args:
        counts: count of each word in each case.
        known: misspellings of other texts, which remain unless they are frequent
            here.
        is_right: returns whether a dictionary has a word; None without a dictionary.
    """
    folded = _fold(counts)
    near = defaultdict[str, list[str]](list)
    for word, count in folded.items():
        for key in _shortened(word) if count >= _MIN_RATIO else ():
            near[key].append(word)
    sequences = Counter(chain.from_iterable(set(_sequences(w)) for w, n in folded.items() if n >= _MIN_COUNT))
    stems = sorted(word for word, count in folded.items() if count >= _MIN_COUNT)
    words, doubtful = dict[str, str](), dict[str, Sequence[str]]()
    for one in known:
        rest = one.without([form for form, count in folded.items() if count >= _MIN_COUNT])
        words |= rest.words
        doubtful |= rest.doubtful
    for form, count in sorted(folded.items(), key=lambda one: (-one[1], one[0])):
        others = {word for key in _shortened(form) for word in near.get(key, ())}
        meant = [word for word in others if folded[word] >= _MIN_RATIO * count and is_mistyped(form, word)]
        meant.sort(key=lambda word: (-folded[word], word))
        if meant and is_right is not None:
            if _has(is_right, form):
                continue
            right = next((word for word in meant if _has(is_right, word)), "")
            if right and count < _MIN_COUNT:  # what is repeated may be dialect
                words[form] = right
                continue
        after = bisect_right(stems, form)
        begins = after < len(stems) and stems[after].startswith(form)  # as shoe begins shoes
        own = count >= _MIN_COUNT  # its letters are among those that are compared
        sure = (w for w in meant if folded[w] >= count * _min_ratio(form, count, w))
        found = () if begins else (w for w in sure if _num_sharing(form, w, sequences) <= own)
        if word := next(iter(found), ""):
            words[form] = word
        elif len(form) >= _MIN_DOUBTFUL_LETTERS and meant:
            doubtful[form] = meant
    return Misspellings(words, {form: meant for form, meant in doubtful.items() if form not in words})


def _has(is_right: Callable[[str], bool], word: str) -> bool:
    """Return whether a dictionary has a word in lower case, also as a name or abbreviation."""
    return any(map(is_right, (word, word.capitalize(), word.upper())))


def _fold(counts: Mapping[str, int]) -> Counter[str]:
    """Count the words that are compared, whatever their case."""
    folded: Counter[str] = Counter()
    for word, count in counts.items():
        is_compared = _MIN_LETTERS <= len(word) <= _MAX_LETTERS and word.isalpha()
        if is_compared and (lower := word.lower()) != word.upper():
            folded[lower] += count
    return folded


def _shortened(word: str) -> Iterator[str]:
    """Yield a word and it without each letter; words one edit apart have one of these in common."""
    yield word
    for at in range(len(word)):
        yield word[:at] + word[at + 1 :]


def _sequences(word: str) -> list[str]:
    whole = f" {word} "
    return [whole[at : at + _SEQUENCE] for at in range(len(whole) - _SEQUENCE + 1)]


def _min_ratio(form: str, count: int, word: str) -> int:
    """Return how many times as frequent as a form of some count a word is at least that the form stands for."""
    per_count = _EXCHANGE_RATIO_PER_COUNT if is_exchange(form, word) else _RATIO_PER_COUNT
    repeated = per_count * min(count, _MAX_COUNT) if count > 1 else 0
    return max(_MIN_RATIOS.get(len(form), _MIN_RATIO), repeated)


def _num_sharing(form: str, word: str, sequences: Mapping[str, int]) -> int:
    """Return how many words have the same letters as a form around its error; 0 for an exchange."""
    if is_exchange(form, word):
        return 0
    if len(form) < _SEQUENCE:
        return len(sequences)  # so few letters tell nothing
    pairs = enumerate(zip(form, word, strict=False))
    edit = next((at for at, (a, b) in pairs if a != b), min(len(form), len(word)))
    # the space before the form is the first letter of its sequences
    around = _sequences(form)[max(edit + 2 - _SEQUENCE, 0) : edit + 2]
    return min(sequences.get(one, 0) for one in around)
