"""From what a request says — text or ids, with or without a context — to ids."""

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from models.reranking.tuning.steps import map_in_steps
from service.engine.hosted import LoadedModel
from service.engine.job import Work
from service.use_cases.limits import Limits

TextOrIds: TypeAlias = str | tuple[int, ...]
"""A text, or token ids not yet checked against a vocabulary."""


class EncodedText(NamedTuple):
    """Ids to score, and those before them, which are not.

    Attributes:
        context: [C], possibly none.
        text: [T].
    """

    context: TokenIds
    text: TokenIds


class ContextInterner:
    """Keeps equal contexts once: one copy for each of thousands of texts would fill the memory."""

    def __init__(self) -> None:
        self._seen: dict[bytes, TokenIds] = {}

    def intern(self, sequence: EncodedText) -> EncodedText:
        """The same sequence, with the array of an equal context that was seen before."""
        context = self._seen.setdefault(sequence.context.tobytes(), sequence.context)
        return sequence._replace(context=context)


def encode(loaded: LoadedModel, given: TextOrIds, *, parameter: str) -> TokenIds:
    """The ids [T] of a text, or given ids once they are checked.

    Raises:
        InvalidInputError: an id is outside the vocabulary.
    """
    if isinstance(given, str):
        return np.asarray(loaded.tokenizer.encode(given), dtype=np.int64)
    return loaded.check_ids(given, parameter=parameter)


def encode_within(loaded: LoadedModel, given: TextOrIds, limits: Limits, *, parameter: str) -> TokenIds:
    """The ids [T] of a text, or given ids once they are checked; no more than limits allow.

    Raises:
        InvalidInputError: an id is outside the vocabulary.
        ContextLengthError: there are too many.
    """
    limits.check_characters(given, parameter=parameter)
    ids = encode(loaded, given, parameter=parameter)
    limits.check_length(len(ids), parameter=parameter)
    return ids


def encode_each(
    loaded: LoadedModel, named: Seq[tuple[str, TextOrIds]], limits: Limits
) -> Work[Any, list[TokenIds]]:
    """The ids of texts, each with its name in the request; a use case.

    Raises:
        InvalidInputError, ContextLengthError: see `encode_within`.
    """
    return (
        yield from map_in_steps(
            named,
            lambda one: encode_within(loaded, one[1], limits, parameter=one[0]),
            size=lambda one: len(one[1]),
        )
    )


def encode_after(loaded: LoadedModel, context: TextOrIds, given: TextOrIds, *, parameter: str) -> EncodedText:
    """The ids of a context and what follows it, tokenised as one text.

    A token that begins in the context and ends in the text belongs to the text.

    Args:
        loaded: whose tokens.
        context: may be empty.
        given: what follows; text after a text, ids after ids.
        parameter: the name of what follows, for messages.

    Raises:
        InvalidInputError: an id is outside the vocabulary, or text and ids are mixed.
    """
    if isinstance(context, str) and isinstance(given, str):
        joint, num_context = loaded.tokenizer.encode_after(context, given)
        return EncodedText(
            np.array(joint[:num_context], dtype=np.int64), np.array(joint[num_context:], dtype=np.int64)
        )
    if isinstance(context, str) != isinstance(given, str) and context:
        kinds = ("text", "token ids") if isinstance(context, str) else ("token ids", "text")
        raise InvalidInputError(
            f"context is {kinds[0]} but {parameter} is {kinds[1]}; give both alike", parameter="context"
        )
    before = encode(loaded, context, parameter="context") if context else np.zeros(0, dtype=np.int64)
    return EncodedText(before, encode(loaded, given, parameter=parameter))
