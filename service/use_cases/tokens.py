"""From what a request says — text or ids, with or without a context — to ids."""

from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from service.engine.host import LoadedModel

TextOrIds: TypeAlias = str | tuple[int, ...]
"""A text, or token ids not yet checked against a vocabulary."""


class Sequence(NamedTuple):
    """Ids whose first `num_context` are context and are not scored.

    Attributes:
        ids: context and text together [T].
        num_context: how many of them are context.
    """

    ids: TokenIds
    num_context: int


def encode(loaded: LoadedModel, given: TextOrIds, *, parameter: str) -> TokenIds:
    """The ids [T] of a text, or given ids once they are checked.

    Raises:
        InvalidInputError: an id is outside the vocabulary.
    """
    if isinstance(given, str):
        return np.asarray(loaded.tokenizer.encode(given), dtype=np.int64)
    return loaded.check_ids(given, parameter=parameter)


def encode_after(loaded: LoadedModel, context: TextOrIds, given: TextOrIds, *, parameter: str) -> Sequence:
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
        return Sequence(np.asarray(joint, dtype=np.int64), num_context)
    if isinstance(context, str) != isinstance(given, str) and context:
        kinds = ("text", "token ids") if isinstance(context, str) else ("token ids", "text")
        raise InvalidInputError(
            f"context is {kinds[0]} but {parameter} is {kinds[1]}; give both alike", parameter="context"
        )
    before = encode(loaded, context, parameter="context") if context else np.zeros(0, dtype=np.int64)
    after = encode(loaded, given, parameter=parameter)
    return Sequence(np.concatenate([before, after]), len(before))
