"""Completions by the words of a user and of dictionaries, beside those of models."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from models.calls import Steps, Work
from models.completion.blocking import lists_in
from models.completion.corrections import (
    EDIT_PENALTY,
    FIRST_LETTER_PENALTY,
    KeyLetters,
    letters_meant,
    share_of,
)
from models.completion.prefix import PrefixSplit
from models.completion.ranked import (
    COMPLETIONS_PER_STEP,
    LOOK_UPS_PER_STEP,
    RankedCompletion,
    RankingSettings,
    starts_with,
)
from models.completion.user_model import (
    NextWordModel,
    NextWordModels,
    ScoredPhrase,
    UserModel,
    corrected_words,
    extend_phrases,
    next_word_models,
    phrase_probability,
    previous_word,
)
from models.errors import InputError
from models.word_list import WordList
from models.words import JOINERS, plain_form

MAX_RUN_CHARS = 200
"""Characters of a run in which words may begin."""

MAX_DICTIONARY_WORDS = 40_000
"""Maximum words of all dictionary entries together; entries may be phrases."""

_WORDS_PER_STEP = 2048
"""Words read in a step."""


def add_user_completions(
    completions: dict[str, RankedCompletion],
    mass_of: Callable[[str], float],
    given: str,
    settings: RankingSettings,
    typed: PrefixSplit,
    keys: Sequence[KeyLetters],
    models: Sequence[UserModel | WordList],
    limit: int,
    previous: str,
) -> Work[Any, float]:
    """Add the user's words that match the prefix, and set the mass of all completions by `models`.

    At most `limit` are added for each number of words; `given` is the whole text,
    `previous` the word before them. Returns the mass of the typed text by the
    models.
    """
    words = next_word_models(models)
    after = words(previous)
    if not after:
        return 0.0
    yield None
    mass, likeliest, edits, penalty_of = yield from _likely_user_words(
        after, models, completions.values(), settings, typed, keys, limit
    )
    longer = yield from extend_phrases(words, likeliest, settings.max_words, limit)

    for number, (text, _) in enumerate((*likeliest, *longer), start=1):
        if not number % LOOK_UPS_PER_STEP:
            yield None
        found = completions.get(text)
        if found is None or not found.is_complete:
            corrected = edits.get(text.partition(" ")[0], 0)
            completions[text] = RankedCompletion(text, text.count(" ") + 1, corrected, of_model=mass_of(text))
    for number, (text, one) in enumerate(completions.items(), start=1):
        if not number % COMPLETIONS_PER_STEP:
            yield None
        parts = text.split()
        if one.is_complete and parts and (penalty := penalty_of(parts[0])):
            one.of_user = penalty * phrase_probability(words, previous, parts)
    begun = yield from _begun_words(given, settings, typed, words, limit)
    completions.update((one.text, one) for one in begun)
    return mass + math.fsum(one.of_user for one in begun)


def _likely_user_words(
    after: NextWordModel,
    models: Sequence[UserModel | WordList],
    found: Collection[RankedCompletion],
    settings: RankingSettings,
    typed: PrefixSplit,
    keys: Sequence[KeyLetters],
    limit: int,
) -> Work[Any, tuple[float, list[ScoredPhrase], dict[str, int], Callable[[str], float]]]:
    """Return the mass of the user's words that the typed prefix may begin, and the likeliest of them.

    Also returns the edits of those that are corrected, and the assumed probability
    of the typed letters by word.
    """
    any_case = settings.ignore_case
    if keys:
        meant = letters_meant(typed.prefix, keys, ignore_case=any_case)
        words = yield from after.words_meant(meant, ignore_case=any_case)

        def share(word: str) -> float:
            return share_of(word.casefold() if any_case else word, meant)

        return (*(yield from after.rate(words, limit, share)), {}, share)
    forms = typed.prefix, plain_form(typed.prefix)
    begins_word = not all(one.edits for one in found)
    edits, learnt = yield from corrected_words(models, forms, ignore_case=any_case, begins_word=begins_word)
    if not settings.fuzzy:
        begun = yield from after.words_with_prefix(*forms, ignore_case=any_case, limit=limit, also=learnt)
        return (*begun, edits, lambda word: learnt.get(word, 1.0))
    matches, others = yield from after.fuzzy_matches(
        typed.prefix, settings.fuzzy, ignore_case=any_case, limit=limit
    )
    edits |= matches

    def penalty(word: str) -> float:
        return learnt.get(word) or (_penalty(word, edits[word], typed) if word in edits else 0.0)

    mass, likeliest = yield from after.rate(edits, limit, penalty)
    return mass + others, likeliest, edits, penalty


def _begun_words(
    text: str, settings: RankingSettings, typed: PrefixSplit, words: NextWordModels, limit: int
) -> Work[Any, list[RankedCompletion]]:
    """Find words begun elsewhere than the last word of the text, such as "node.js" after "node.j".

    Their masses are relative to the probability of the text before its last word.
    """
    run = re.split(r"\s", text[-MAX_RUN_CHARS:])[-1]
    size = len(text) - typed.start
    starts = {0, *(sign.end() for sign in re.finditer(rf"[^\w{JOINERS}]", run))}
    ends = [run[start:] for start in sorted(starts - {len(run), len(run) - size})]
    if not ends:
        return []
    next_words = words(previous_word(text[: len(text) - len(run)]))
    find = partial(next_words.words_with_prefix, ignore_case=settings.ignore_case, limit=limit)
    mass, _ = yield from find(*(end[: max(0, len(end) - size)] for end in ends))
    _, found = yield from find(*ends)
    return [
        RankedCompletion(word, 1, 0, of_user=probability / mass, begun=end)
        for word, probability in found
        for end in [next((end for end in ends if starts_with(word, end, settings)), ends[0])]
    ]


def _penalty(word: str, edits: int, typed: PrefixSplit) -> float:
    """Return the assumed probability of a beginning's edits, as for the model's words."""
    if not edits:
        return 1.0
    same_letter = word[:1].casefold() == typed.prefix[:1].casefold()
    return EDIT_PENALTY**edits * (1.0 if same_letter else FIRST_LETTER_PENALTY)


def dictionary_models(
    dictionary: Sequence[tuple[str, float] | WordList], compose: Callable[[str], str]
) -> Steps[list[UserModel | WordList]]:
    """Return a model of a dictionary's words, composed, with its phrases' bigrams, and its lists."""
    words = defaultdict[str, float](float)
    followers = defaultdict[str, defaultdict[str, float]](lambda: defaultdict(float))
    count = num_read = 0
    lists, entries = lists_in(dictionary), (one for one in dictionary if not isinstance(one, WordList))
    for number, (text, weight) in enumerate(entries, start=1):
        parts = compose(text).split()
        count += len(parts)
        for word in parts:
            words[word] += weight
        for previous, word in pairwise(parts):
            followers[previous][word] += weight
        if count > MAX_DICTIONARY_WORDS:
            raise InputError.of(
                "dictionary",
                f"has {count} words in its first {number} entries; at most "
                f"{MAX_DICTIONARY_WORDS} are accepted in all entries",
            )
        if count - num_read > _WORDS_PER_STEP:
            num_read = count
            yield
    return [UserModel(words, followers), *lists] if words else [*lists]
