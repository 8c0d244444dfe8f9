"""What every call of a model has, and how those of a kind find each other."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from models.protocol import LanguageModel
from service.engine.pools import CallBatch


@dataclass(frozen=True, slots=True, eq=False)
class ModelCall(ABC):
    """A computation on R rows.

    Attributes:
        model: any.
        state: R rows.
    """

    model: LanguageModel[Any]
    state: Any

    @property
    def kind(self) -> Hashable:
        """Calls of the same kind can be done together."""
        return type(self), id(self.model)

    @property
    @abstractmethod
    def size(self) -> int:
        """How many tokens are read, or distributions computed."""

    @property
    def merges(self) -> bool:
        """Whether doing several together costs less: not for tables, where it only costs copies."""
        return self.model.family != "ngram"

    @property
    @abstractmethod
    def urgent(self) -> bool:
        """Whether it goes ahead of calls that are not, since somebody waits who has little to ask."""

    @staticmethod
    @abstractmethod
    def batch() -> CallBatch[Any, Any]:
        """A pool for calls of one kind."""
