"""Completing the word that is being typed, by a model and by what its user writes."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from models.completion.near import CorrectedPrefix, corrected_prefixes
from models.completion.personal import UserModel, user_model_from_counts
from models.completion.personal_text import previous_word
from models.completion.search import CompletionSearch, CompletionSettings
from models.completion.typed import PrefixSplit, split_prefix
from models.errors import InvalidInputError
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.engine.looks import NextTokenEntry
from service.engine.rows import view
from service.use_cases.autocomplete_masses import PrefixCorrection, TypedInput, score_completions
from service.use_cases.autocomplete_offers import CompletionOptions, RankedCompletion, rank_completions
from service.use_cases.limits import Limits
from service.use_cases.looking import predict_next, run_completion_searches
from service.use_cases.reading_order import check_reads_forward

MAX_DICTIONARY_WORDS = 40_000
"""In all entries of a dictionary together, as entries may be phrases."""

_ENTRIES_PER_STEP = 2048
"""Of a dictionary, read before other requests have their turn."""

_MAX_CORRECTIONS = 8
"""Prefixes that may have been meant where one was mistyped, at most."""

_LETTERS_PER_EDIT = 2
"""In a prefix: a mistake is looked past for every two letters, by `corrected_prefixes` and here."""

_MAX_SPARE_COMPLETIONS = 256
"""Completions that are searched for beyond those that are to be told, at most, as some may not be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutocompleteCommand:
    """A valid request for completions.

    Attributes:
        text: before the caret.
        max_words: of a phrase.
        ignore_case: whether the prefix stands for any case.
        edits: mistakes in the prefix that are looked past.
        dictionary: words, or phrases, and how much each counts.
        max_steps: rows that the model may be asked for.
        options: what is told of what is found.
    """

    text: str
    max_words: int
    ignore_case: bool
    edits: int
    dictionary: tuple[tuple[str, float], ...]
    max_steps: int
    options: CompletionOptions


class AutocompleteResult(NamedTuple):
    """What a text may go on as.

    Attributes:
        prefix: the beginning of the current word, as typed.
        start: where that begins, in code points of the text.
        completions: the best first.
        unexplored_mass: the part of the probability that was not followed to the end of a word.
    """

    prefix: str
    start: int
    completions: tuple[RankedCompletion, ...]
    unexplored_mass: float


def max_search_steps(loaded: LoadedModel, command: AutocompleteCommand) -> int:
    """Rows that the model may be asked for beside the one after the context: none where tokens are words."""
    one_look = loaded.token_trie.whole_words and command.max_words == 1
    return 0 if one_look else command.max_steps


def cached_next_tokens(loaded: LoadedModel, command: AutocompleteCommand) -> NextTokenEntry | None:
    """What may come after the context, if that was asked before: then the model is asked for steps alone."""
    return (
        None
        if loaded.next_token_cache is None
        else loaded.next_token_cache.find(split_prefix(loaded.tokenizer, command.text).context)
    )


def autocomplete(
    loaded: LoadedModel,
    command: AutocompleteCommand,
    limits: Limits,
    *,
    user: UserModel | None = None,
    cached: NextTokenEntry | None = None,
) -> Work[Any, AutocompleteResult]:
    """Complete a text; a use case.

    Args:
        loaded: by what model.
        command: how.
        limits: of one request.
        user: what the user has accepted, if one was named.
        cached: what may come after the context, if that is known.

    Raises:
        ContextLengthError: the text is too long.
        InvalidInputError: the dictionary has too many words.
        UnsupportedParameterError: the model reads from right to left.
    """
    check_reads_forward(loaded)
    limits.check_characters(command.text, parameter="text")
    typed = split_prefix(loaded.tokenizer, command.text)
    if cached is None:
        cached = yield from predict_next(loaded, typed.context, limits, parameter="text")
    limits.check_length(cached.num_tokens, parameter="text")
    typing = TypedInput(
        typed.prefix,
        previous_word(command.text[: typed.start]),
        typed.space,
        command.ignore_case or getattr(loaded.tokenizer, "lowercase", False),
        min(command.edits, len(typed.prefix) // _LETTERS_PER_EDIT),
        command.max_words,
    )
    personal = yield from _personal_models(command, user)
    meanings = _corrections(loaded, command, typed, typing, cached)
    yield from run_completion_searches(loaded, [meaning.search for meaning in meanings])
    found = score_completions(meanings, typing, personal, _search_limit(command, typed))
    offers, unexplored_mass = rank_completions(found, typing, command.options)
    return AutocompleteResult(typed.prefix, typed.start, offers, unexplored_mass)


def _corrections(
    loaded: LoadedModel,
    command: AutocompleteCommand,
    typed: PrefixSplit,
    typing: TypedInput,
    look: NextTokenEntry,
) -> list[PrefixCorrection]:
    """Searches for what the prefix goes on as, and for those that may have been meant, the least penalty first."""
    near = _near_prefixes(loaded, typed, typing, look)
    # half of the steps are for what was typed, the others for what may have been meant, by how likely it is
    spare, weights = command.max_steps // 2, sum(one.weight for one in near) or 1.0
    shares = [command.max_steps - spare if near else command.max_steps]
    shares += [max(1, round(spare * one.weight / weights)) for one in near]
    meanings = []
    for one, max_steps in zip((CorrectedPrefix(typed.spelled, 0, 1.0, 0.0), *near), shares, strict=True):
        settings = CompletionSettings(
            limit=_search_limit(command, typed),
            max_words=command.max_words,
            max_steps=max_steps,
            ignore_case=typing.ignore_case,
        )
        search = CompletionSearch(loaded.token_trie, one.spelled, settings)
        search.update(view(look.state), look.log_probs)
        prefix = one.spelled.decode(errors="replace").removeprefix(" ")
        meanings.append(PrefixCorrection(prefix, one.edits, one.penalty, search))
    return meanings


def _near_prefixes(
    loaded: LoadedModel, typed: PrefixSplit, typing: TypedInput, look: NextTokenEntry
) -> list[CorrectedPrefix]:
    """Prefixes that may have been meant, the least penalty first; none begins with one before it, or as was typed."""
    if not typing.edits:
        return []
    found = corrected_prefixes(
        loaded.token_trie,
        typed.spelled,
        look.log_probs[0],
        typing.edits,
        limit=_MAX_CORRECTIONS - 1,
        ignore_case=typing.ignore_case,
    )
    near: list[CorrectedPrefix] = []
    for one in sorted(found, key=lambda one: (-one.penalty, len(one.spelled))):
        if not one.spelled.startswith((typed.spelled, *(before.spelled for before in near))):
            near.append(one)
    return near


def _search_limit(command: AutocompleteCommand, typed: PrefixSplit) -> int:
    """Completions to search for: some may not be told, and some may be told alike."""
    prefix = typed.prefix.casefold()
    blocked = sum(entry.startswith(prefix) for entry in command.options.blocklist)
    return (
        command.options.limit * (2 if command.ignore_case else 1) + 1 + min(blocked, _MAX_SPARE_COMPLETIONS)
    )


def _personal_models(command: AutocompleteCommand, user: UserModel | None) -> Work[Any, list[UserModel]]:
    """The user's words and the dictionary, in which the words of a phrase are neighbours."""
    models = [] if user is None else [user]
    if command.dictionary:
        words: dict[str, float] = {}
        pairs: dict[tuple[str, str], float] = {}
        num_words = 0
        for place, (entry, weight) in enumerate(command.dictionary, start=1):
            several = entry.split()
            num_words += len(several)
            for word in several:
                words[word] = words.get(word, 0.0) + weight
            for pair in pairwise(several):
                pairs[pair] = pairs.get(pair, 0.0) + weight
            if num_words > MAX_DICTIONARY_WORDS:
                raise InvalidInputError(
                    f"dictionary has {num_words} words in its first {place} entries; all may have "
                    f"{MAX_DICTIONARY_WORDS} together",
                    parameter="dictionary",
                )
            if not place % _ENTRIES_PER_STEP:
                yield None
        models.append(
            user_model_from_counts(words.items(), ((*pair, weight) for pair, weight in pairs.items()))
        )
    return models
