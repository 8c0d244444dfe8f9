"""From what a request says — text or ids, with or without a context — to ids."""

import re
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError
from models.tokenizers import CharacterTokenizer, Tokenizer, WordTokenizer
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
        joint = context + given
        ids = encode(loaded, joint, parameter=parameter)
        return Sequence(ids, _num_context(loaded.tokenizer, context, joint, ids) if context else 0)
    if isinstance(context, str) != isinstance(given, str) and context:
        kinds = ("text", "token ids") if isinstance(context, str) else ("token ids", "text")
        raise InvalidInputError(
            f"context is {kinds[0]} but {parameter} is {kinds[1]}; give both alike", parameter="context"
        )
    before = encode(loaded, context, parameter="context") if context else np.zeros(0, dtype=np.int64)
    after = encode(loaded, given, parameter=parameter)
    return Sequence(np.concatenate([before, after]), len(before))


def _num_context(tokenizer: Tokenizer, context: str, joint: str, ids: TokenIds) -> int:
    """How many of the joint text's tokens end within its context."""
    if isinstance(tokenizer, CharacterTokenizer):
        return len(context)
    if isinstance(tokenizer, WordTokenizer):  # its words may be unknown, so bytes would not tell
        if tokenizer.lowercase:
            context, joint = context.lower(), joint.lower()
        words = re.finditer(tokenizer.pattern or r"\S+", joint)
        return sum(1 for word in words if word.group() and word.end() <= len(context))
    return _num_ending_by(_border(tokenizer, context, joint, ids), tokenizer, ids)


def _num_ending_by(border: int, tokenizer: Tokenizer, ids: TokenIds) -> int:
    spelled = tokenizer.token_bytes
    return sum(1 for end in accumulate(len(spelled[i]) for i in ids) if end <= border)


def _border(tokenizer: Tokenizer, context: str, joint: str, ids: TokenIds) -> int:
    """Where the context ends among the bytes that the joint text's pieces spell."""
    spelled = tokenizer.token_bytes
    if tokenizer.decode(ids) == joint:
        own_space = sum(len(spelled[i]) for i in ids) - len(joint.encode())
        return len(context.encode()) + own_space
    # the tokenizer normalises what it reads: it does so with the context alone, too, save that
    # it may drop the space at its end
    alone = b"".join(spelled[i] for i in tokenizer.encode(context))
    return len(alone) + (context[-1].isspace() and not alone.endswith(b" "))
