"""Words in the case in which somebody has begun to type them."""


def match_case(typed: str, word: str, *, corrected: bool = False) -> str:
    """A word as it is told to somebody who has typed its beginning, whatever the case of that.

    A word that has capitals of its own keeps them. One without takes over those that were typed, and is all capitals
    where all of several letters are.

    Args:
        typed: its beginning.
        word: as the model or the user's words have it.
        corrected: whether the beginning holds mistakes; a capital is taken over as the word's first letter only.
    """
    if word.startswith(typed) or word != word.lower():
        return word
    shouted = typed == typed.upper() and sum(map(str.isalpha, typed)) > 1
    if shouted and (corrected or len(word) == len(word.upper())):
        return word.upper()
    if corrected:
        return word[:1].upper() + word[1:] if typed[:1].isupper() else word
    told = typed + word[len(typed) :]  # "ß" and its like have other lengths in capitals, so look again
    return told if told.casefold() == word.casefold() else word
