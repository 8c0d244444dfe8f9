"""What one request may ask for at most."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import ContextLengthError, InvalidInputError

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
