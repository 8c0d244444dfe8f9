"""Request inputs: limits, texts or ids to token ids, and reading order of backward models.

A backward model scores the reversed text after `<s>`; its `</s>` is the start of the text. Clients
see everything in text order, `</s>` last.
"""

from collections.abc import Sequence
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from models.arrays import TokenIds
from models.errors import ContextLengthError, InvalidInputError, UnsupportedParameterError
from models.reranking.candidates import map_in_steps
from service.engine.job import Work
from service.engine.loaded_model import LoadedModel

MAX_CHARACTERS_PER_TOKEN = 16
"""What a text may have of them for each token that is accepted: more need not be tokenised to be refused."""

MAX_CHARACTERS_AT_LEAST = 65_536
"""Accepted however few tokens are: one word may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one request; the settings say what they are.

    Attributes:
        max_texts: texts, contexts or candidates, all lists of a request together.
        max_tokens_per_sequence: tokens of one text together with its context.
        max_new_tokens: tokens to generate.
        max_top_k: candidates to rank; None leaves the vocabulary's size as the only limit.
        max_reply_entries: candidates of all contexts, or tokens reported one by one, in one
            reply: each is an object of it, and writing them holds all others up.
    """

    max_texts: int
    max_tokens_per_sequence: int
    max_new_tokens: int
    max_top_k: int | None = None
    max_reply_entries: int = 131_072

    def check_count(self, count: int, *, parameter: str) -> None:
        """Refuse more texts than the limit.

        Raises:
            InvalidInputError: there are too many.
        """
        if count > self.max_texts:
            raise InvalidInputError(
                f"{parameter} has {count} entries; at most {self.max_texts} are accepted in one request",
                parameter=parameter,
            )

    def check_entries(self, count: int, *, parameter: str, description: str, instead: str) -> None:
        """Refuse a reply of more entries than the limit.

        Args:
            count: entries that the reply would have.
            parameter: what asks for them.
            description: how it does, such as `top_k is 4000 for 100 contexts`.
            instead: the way to have so many.

        Raises:
            InvalidInputError: there are too many.
        """
        if count > self.max_reply_entries:
            raise InvalidInputError(
                f"{description}: {count} entries; a reply has at most {self.max_reply_entries} ({instead})",
                parameter=parameter,
            )

    def check_characters(self, *given: str | Sequence[int], parameter: str) -> None:
        """Refuse a text, in one or more pieces, that is too long to be worth tokenising; ids are not counted.

        Raises:
            ContextLengthError: it is too long.
        """
        size = sum(len(piece) for piece in given if isinstance(piece, str))
        limit = max(MAX_CHARACTERS_PER_TOKEN * self.max_tokens_per_sequence, MAX_CHARACTERS_AT_LEAST)
        if size > limit:
            raise ContextLengthError(
                f"{parameter} has {size} characters with its context; at most {limit}, of "
                f"{self.max_tokens_per_sequence} tokens, are accepted in one sequence",
                parameter=parameter,
            )

    def check_length(self, num_tokens: int, *, parameter: str) -> None:
        """Refuse a sequence of more tokens than the limit.

        Raises:
            ContextLengthError: it is too long.
        """
        if num_tokens > self.max_tokens_per_sequence:
            raise ContextLengthError(
                f"{parameter} has {num_tokens} tokens; at most {self.max_tokens_per_sequence} are accepted "
                "in one sequence",
                parameter=parameter,
            )


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


V = TypeVar("V", bound=np.number[Any])


def check_reads_forward(loaded: LoadedModel) -> None:
    """Refuse what only makes sense from left to right.

    Raises:
        UnsupportedParameterError: the model reads backward.
    """
    if loaded.reads_backward:
        raise UnsupportedParameterError(
            f"model {loaded.address} reads from right to left; it scores and re-ranks, but cannot tell what comes next",
            parameter="model",
        )


def to_model_order(loaded: LoadedModel, sequence: EncodedText, *, parameter: str) -> EncodedText:
    """A sequence in the order in which the model reads it.

    Raises:
        UnsupportedParameterError: the model reads backward, and there is a context.
    """
    if not loaded.reads_backward:
        return sequence
    if len(sequence.context):
        raise no_context_error(loaded, parameter=parameter)
    return sequence._replace(text=np.ascontiguousarray(sequence.text[::-1]))


def no_context_error(loaded: LoadedModel, *, parameter: str) -> UnsupportedParameterError:
    """The error where a text after a context is given to a model that reads backward."""
    return UnsupportedParameterError(
        f"model {loaded.address} reads from right to left; it cannot take the context of {parameter}, "
        "which stands before the text",
        parameter="context",
    )


def to_text_order(loaded: LoadedModel, values: npt.NDArray[V], *, ends: bool) -> npt.NDArray[V]:
    """Values of a scored text [T], turned back; where the text `ends` in `</s>`, its value stays last."""
    if not loaded.reads_backward:
        return values
    if not ends:
        return np.ascontiguousarray(values[::-1])
    return np.concatenate([values[-2::-1], values[-1:]])
