"""The text after the caret: completions are weighed by it, and not offered if it repeats them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from models.arrays import Float64s
from models.calls import Read, Work, view
from models.completion.prefix import PrefixSplit, needs_space
from models.completion.ranked import RankedCompletion, Ranking
from models.language_model import SCORES, pad_sequences
from models.prefix_cache import NextTokenEntry
from models.text_model import TextModel
from models.words import is_word_character

NUM_WEIGHED = 32
"""Completions that are weighed by the text after the caret, the most probable ones."""

_NUM_WORDS, _MAX_CHARS, _MAX_TOKENS = 3, 200, 12
"""Words, characters and tokens of the text after the caret that are read: those next to it."""


def following_words(after: str) -> str:
    """Return the first words after the caret on its line; empty if the caret is in a word."""
    line = after[:_MAX_CHARS].partition("\n")[0]
    words = line.split()
    if not words or is_word_character(line[0]):
        return ""
    return " " * line[0].isspace() + " ".join(words[:_NUM_WORDS])


def is_repeated(completion: str, typed_length: int, after: str) -> bool:
    """True if the text after the caret begins with what a completion would insert.

    Args:
        completion: the completion, from the start of the word.
        typed_length: characters of it that are typed.
        after: text after the caret.
    """
    inserted = completion[typed_length:]
    there = after if typed_length else after.lstrip(" \t")
    rest = there[len(inserted) :]
    return bool(inserted) and there.startswith(inserted) and not (rest and is_word_character(rest[0]))


def log_probs_of_following(
    loaded: TextModel, split: PrefixSplit, entry: NextTokenEntry, completions: Sequence[str], following: str
) -> Work[Any, Float64s]:
    """Compute ln P(following words | context, completion) of each completion [N].

    Args:
        loaded: model that reads forward.
        split: text before the caret as split for the model.
        entry: state after the context.
        completions: N ≥ 1 texts from the start of the word.
        following: words after the caret, see `following_words`.
    """
    tokenizer, rows, counts = loaded.tokenizer, list[list[int]](), list[int]()
    lead = " " if split.spelled.startswith(b" ") else ""
    for text in completions:
        glue = " " * (following[:1] != " " and needs_space(text, following))
        whole, begin = tokenizer.encode_after(split.context, lead + text + glue + following)
        alone, own = tokenizer.encode_after(split.context, lead + text)
        added = max(len(whole) - begin - (len(alone) - own), 0)
        rows.append(whole[begin : len(whole) - max(added - _MAX_TOKENS, 0)])
        counts.append(min(added, _MAX_TOKENS))
        yield None
    tokens, lengths = pad_sequences(rows)
    state = view(entry.state).select(np.zeros(len(rows), np.int64))
    scores = yield from Read(loaded.model, state, tokens, lengths, SCORES)
    ends = zip(lengths.tolist(), counts, strict=True)
    return np.array(
        [
            float(row[end - count : end].sum())
            for row, (end, count) in zip(scores.log_probs, ends, strict=True)
        ]
    )


def rescored_by_following(
    loaded: TextModel, split: PrefixSplit, entry: NextTokenEntry, ranking: Ranking, text: str, after: str
) -> Work[Any, list[RankedCompletion]]:
    """Weigh the best completions by the text after the caret, without those that it repeats.

    The others keep their probabilities: together, the weighed ones are as probable
    as before (Bayes' rule).
    """
    typed, after = ranking.typed.prefix, after[:_MAX_CHARS]  # it may be megabytes
    kept = [
        one
        for one in ranking.completions
        if not is_repeated(one.text, len(typed) if one.text.startswith(typed) else 0, after)
    ]
    following = following_words(after)
    weighed = [one for one in kept if one.is_complete and not one.begun][:NUM_WEIGHED]
    lead = text[ranking.typed.start : split.start]
    weighed = [one for one in weighed if one.text.startswith(lead)] if following else []
    if not weighed:
        return kept
    own = [one.text[len(lead) :] for one in weighed]
    scores = yield from log_probs_of_following(loaded, split, entry, own, following)
    if np.isneginf(scores.max()):
        return kept
    masses = np.array([one.probability for one in weighed])
    posterior = np.exp(scores - scores.max()) * masses
    for one, factor in zip(weighed, posterior / posterior.sum() * masses.sum() / masses, strict=True):
        one.of_model *= float(factor)
        one.of_user *= float(factor)
    return kept
