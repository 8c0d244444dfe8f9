"""What one request may ask for at most."""

from collections.abc import Sized
from dataclasses import dataclass

from models.errors import ContextLengthError, InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one request; the settings say what they are.

    Attributes:
        max_texts: texts, contexts or candidates, all lists of a request together.
        max_tokens_per_sequence: tokens of one text together with its context.
        max_new_tokens: tokens to generate.
        max_top_k: candidates to rank; None leaves the vocabulary's size as the only limit.
    """

    max_texts: int
    max_tokens_per_sequence: int
    max_new_tokens: int
    max_top_k: int | None = None

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

    def check_length(self, ids: Sized, *, parameter: str) -> None:
        """Refuse a sequence of more tokens than the limit.

        Raises:
            ContextLengthError: it is too long.
        """
        if len(ids) > self.max_tokens_per_sequence:
            raise ContextLengthError(
                f"{parameter} has {len(ids)} tokens; at most {self.max_tokens_per_sequence} are accepted "
                "in one sequence",
                parameter=parameter,
            )
