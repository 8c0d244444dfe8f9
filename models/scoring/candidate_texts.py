"""Distinct texts of candidate lists, tokenised into one ragged array.

Equal candidates in equal surroundings are scored once.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from models.arrays import Int64s, TokenIds, runs_by_cost
from models.calls import Work, map_in_steps
from models.completion.token_trie import NO_TOKENS
from models.language_model import EOS
from models.normaliser import Writing, written
from models.reranking.candidates import CandidateList
from models.reranking.features import offsets_of
from models.scoring.constants import CHARS_PER_STEP, TOKENISED_PER_STEP
from models.text_model import (
    ContextEncoder,
    EncodedText,
    Limits,
    TextModel,
    TextState,
    encode,
    ids_after,
    no_context_error,
)
from models.tokenizers import SUBWORDS, WordTokenizer


class Surroundings(NamedTuple):
    """Surroundings of the candidates of a list.

    Attributes:
        context: text before the candidates.
        continuation: text scored after each candidate, in its place; None scores the candidate.
        start: index of the stored state before them; None for a context.
    """

    context: str
    continuation: str | None
    start: int | None


class DistinctTexts(NamedTuple):
    """Distinct candidate texts; equal texts in equal surroundings count once.

    Attributes:
        texts: U texts.
        settings: distinct surroundings.
        setting_of: index of each text's surroundings [U].
        list_of: first list of each text, ascending [U].
        text_of: index of each candidate's text [N].
        names: returns the name of a text for messages.
    """

    texts: list[str]
    settings: list[Surroundings]
    setting_of: Int64s
    list_of: Int64s
    text_of: Int64s
    names: Callable[[int], str]

    def written(self, form: Writing) -> "DistinctTexts":
        """Return the texts, contexts and continuations in a form."""
        settings = [
            setting._replace(
                context=written(setting.context, form),
                continuation=setting.continuation and written(setting.continuation, form),
            )
            for setting in self.settings
        ]
        return self._replace(texts=[written(text, form) for text in self.texts], settings=settings)


def reads_forms(loaded: TextModel) -> bool:
    """True if `form` applies to a model: it is pretrained, or shares its tokenizer."""
    return loaded.tokenizer.kind == SUBWORDS


class RaggedTexts(NamedTuple):
    """U texts as joined ids, in the reading order of the model.

    Attributes:
        contexts: ids of K contexts.
        context_of: index of each text's context; K + s for stored state s [U].
        ids: ids to score, including a scored `</s>` [T].
        offsets: start of each text's ids, and T at the end [U + 1].
        words: number of each candidate's words [U] if tokens are words; else None.
    """

    contexts: list[TokenIds]
    context_of: Int64s
    ids: TokenIds
    offsets: Int64s
    words: Int64s | None = None

    @classmethod
    def of(cls, sequences: Sequence[EncodedText]) -> "RaggedTexts":
        """Join texts with their contexts; equal contexts are one array (see `ContextEncoder`)."""
        numbers: dict[int, int] = {}
        context_of = [numbers.setdefault(id(context), len(numbers)) for context, _ in sequences]
        contexts = list({id(context): context for context, _ in sequences}.values())
        offsets = np.cumsum([0, *(len(text) for _, text in sequences)])
        ids = np.concatenate([text for _, text in sequences])
        return cls(contexts, np.array(context_of, np.int64), ids, offsets)


def find_distinct_texts(
    lists: Sequence[CandidateList], starts: Sequence[int | None], prefix: Callable[[int], str]
) -> Work[Any, DistinctTexts]:
    """Find equal candidates.

    Args:
        lists: candidate lists.
        starts: index of the stored state before each list; empty without states.
        prefix: of `candidates` in a message about list i.
    """
    settings: dict[Surroundings, int] = {}
    seen: dict[tuple[int, str], int] = {}
    indices: list[int] = []
    list_of: list[int] = []
    read = 0
    for number, item in enumerate(lists):
        key = Surroundings(item.context, item.continuation, starts[number] if starts else None)
        setting = settings.setdefault(key, len(settings))
        indices += [seen.setdefault((setting, c.text), len(seen)) for c in item.candidates]
        list_of += [number] * (len(seen) - len(list_of))
        read += len(item.candidates)
        if read > TOKENISED_PER_STEP:
            read = 0
            yield None
    text_of = np.array(indices, np.int64)
    offsets = offsets_of(lists)

    def name(text: int) -> str:
        row = int(np.flatnonzero(text_of == text)[0])
        number = int(np.searchsorted(offsets, row, side="right")) - 1
        return f"{prefix(number)}candidates[{row - offsets[number]}].text"

    return DistinctTexts(
        [text for _, text in seen],
        list(settings),
        np.array([setting for setting, _ in seen], np.int64),
        np.array(list_of, np.int64),
        text_of,
        name,
    )


def tokenise_texts(
    loaded: TextModel,
    distinct: DistinctTexts,
    limits: Limits,
    *,
    eos: bool,
    starts: Sequence[TextState] = (),
) -> Work[Any, RaggedTexts]:
    """Tokenise texts.

    Args:
        loaded: model.
        distinct: texts; a space separates context and candidate, and precedes a continuation.
        limits: of one text with its context.
        eos: true to also score `</s>`.
        starts: the model's stored states.

    Raises:
        ContextLengthError: a text with its context is too long.
        UnsupportedError: there is a context or a continuation, and the model reads backward.
    """
    _check_characters(distinct, limits)
    for number, setting in enumerate(distinct.settings) if loaded.reads_backward else ():
        if setting.context or setting.continuation is not None or setting.start is not None:
            text = int(np.flatnonzero(distinct.setting_of == number)[0])
            raise no_context_error(loaded, param=distinct.names(text))
    if _is_separable(loaded, distinct):
        texts = yield from _encode_together(loaded, distinct)
    else:
        texts = yield from _encode_each(loaded, distinct, starts)
    if loaded.reads_backward:
        # reverse each text, from `first` to `last`
        first, last = texts.offsets[:-1], texts.offsets[1:] - 1
        mirrored = np.repeat(first + last, np.diff(texts.offsets)) - np.arange(len(texts.ids))
        texts = texts._replace(ids=texts.ids[mirrored])
    if eos:
        ids = np.insert(texts.ids, texts.offsets[1:], EOS)
        texts = texts._replace(ids=ids, offsets=texts.offsets + np.arange(len(texts.offsets)))
    before = [*map(len, texts.contexts), *(state.num_tokens for state in starts)]
    lengths = np.diff(texts.offsets) + np.array(before, np.int64)[texts.context_of]
    longest = int(np.argmax(lengths))
    if lengths[longest] > limits.max_tokens_per_sequence:
        limits.check_length(int(lengths[longest]), param=distinct.names(longest))
    return texts


def _is_separable(loaded: TextModel, distinct: DistinctTexts) -> bool:
    """True if contexts and candidates can be tokenised apart: no token crosses a space."""
    if any(s.continuation is not None for s in distinct.settings):
        return False
    tokenizer = loaded.tokenizer
    is_plain = tokenizer.members is None
    splits = isinstance(tokenizer, WordTokenizer) and tokenizer.pattern is None and is_plain
    return splits or not any(s.context or s.start is not None for s in distinct.settings)


def _encode_together(loaded: TextModel, distinct: DistinctTexts) -> Work[Any, RaggedTexts]:
    tokenizer, settings = loaded.tokenizer, distinct.settings
    context_texts = [s.context for s in settings if s.start is None]
    contexts = yield from map_in_steps(context_texts, partial(encode, loaded, param="context"), size=len)
    parts = []
    most = CHARS_PER_STEP[isinstance(tokenizer, WordTokenizer)]
    for run in runs_by_cost([len(text) for text in distinct.texts], most):
        parts.append(tokenizer.encode_ragged(distinct.texts[run]))
        yield None
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    ids = np.concatenate([part.ids for part in parts]).astype(np.int64)
    numbers = itertools.count()
    before = [next(numbers) if s.start is None else len(contexts) + s.start for s in settings]
    context_of = np.array(before, np.int64)[distinct.setting_of]
    words = lengths if isinstance(tokenizer, WordTokenizer) and tokenizer.tokens_are_words else None
    return RaggedTexts(contexts, context_of, ids, np.concatenate([[0], np.cumsum(lengths)]), words)


def _encode_each(
    loaded: TextModel, distinct: DistinctTexts, starts: Sequence[TextState]
) -> Work[Any, RaggedTexts]:
    encoder = ContextEncoder(loaded)

    def encoded(text: int) -> EncodedText:
        one, setting = distinct.texts[text], distinct.settings[distinct.setting_of[text]]
        if setting.start is not None:
            return EncodedText(NO_TOKENS, ids_after(loaded.tokenizer, starts[setting.start], one))
        before, after = setting.context, one
        if setting.continuation is not None:
            before, after = _with_space(before, one) + one, setting.continuation
        before, after = split_at_space(loaded, before, after)
        # texts are never rejected here, so an inexact parameter name will do
        return encoder.encode(before, after, param="candidates")

    def size(text: int) -> int:
        context, continuation, _ = distinct.settings[distinct.setting_of[text]]
        return len(distinct.texts[text]) + len(context) + len(continuation or "")

    sequences = yield from map_in_steps(range(len(distinct.texts)), encoded, size=size)
    texts = RaggedTexts.of(sequences)
    follows = np.array([-1 if s.start is None else s.start for s in distinct.settings])[distinct.setting_of]
    context_of = np.where(follows < 0, texts.context_of, len(texts.contexts) + follows)
    return texts._replace(context_of=context_of)


def _with_space(before: str, after: str) -> str:
    """Append a space to `before` if neither text has one there."""
    apart = not before or not after or before[-1].isspace() or after[0].isspace()
    return before if apart else before + " "


def split_at_space(loaded: TextModel, before: str, after: str) -> tuple[str, str]:
    """Insert a space between two texts if neither side has one, and assign it to one text.

    If tokens begin with spaces, it belongs to the second text: the first piece of a rare word may be
    a bare space, which must be scored too.
    """
    before = _with_space(before, after)
    if loaded.tokenizer.joins_spaces and before.endswith(" ") and not after[:1].isspace():
        return before.removesuffix(" "), " " + after
    return before, after


def _check_characters(distinct: DistinctTexts, limits: Limits) -> None:
    added = np.array([len(s.context) + len(s.continuation or "") for s in distinct.settings], np.int64)
    sizes = np.fromiter(map(len, distinct.texts), np.int64, len(distinct.texts)) + added[distinct.setting_of]
    longest = int(np.argmax(sizes))
    setting = distinct.settings[distinct.setting_of[longest]]
    limits.check_characters(
        setting.context,
        distinct.texts[longest],
        setting.continuation or "",
        param=distinct.names(longest),
    )
