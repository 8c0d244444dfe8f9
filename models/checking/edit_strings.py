"""The strings that one edit makes of a word: all of them, and those of the commonest errors."""

_MIN_PART_LENGTH = 2
"""Letters of a word that a space may have been lost beside."""


def one_edit_strings(word: str, letters: str) -> list[str]:
    """Deletions, swaps of neighbours, substitutions and insertions, each string once, without the word itself.

    Args:
        word: not empty.
        letters: that may be put in.

    Source: Norvig 2007, How to write a spelling corrector.
    """
    cuts = [(word[:place], word[place:]) for place in range(len(word) + 1)]
    found = dict.fromkeys(left + right[1:] for left, right in cuts if right)
    found |= dict.fromkeys(left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1)
    found |= dict.fromkeys(left + letter + right[1:] for left, right in cuts if right for letter in letters)
    found |= dict.fromkeys(left + letter + right for left, right in cuts for letter in letters)
    found.pop(word, None)
    found.pop("", None)
    return list(found)


def common_typo_corrections(word: str) -> list[str]:
    """What may have been meant if the commonest slips were made: a letter too many, two swapped, one not doubled.

    Args:
        word: as typed; not empty.
    """
    cuts = [(word[:place], word[place:]) for place in range(len(word))]
    found = dict.fromkeys(left + right[1:] for left, right in cuts)
    found |= dict.fromkeys(left + right[1] + right[0] + right[2:] for left, right in cuts if len(right) > 1)
    found |= dict.fromkeys(left + right[0] + right for left, right in cuts)
    found.pop(word, None)
    found.pop("", None)
    return list(found)


def word_splits(word: str) -> list[tuple[str, str]]:
    """A word cut in two wherever a space may have been lost: each part has at least `_MIN_PART_LENGTH` letters."""
    cuts = range(_MIN_PART_LENGTH, len(word) - _MIN_PART_LENGTH + 1)
    return [(word[:place], word[place:]) for place in cuts]
