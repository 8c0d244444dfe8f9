"""Request inputs: several models, batches of lines, dictionaries."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from models.calls import Work
from models.checking.lexicon import HunspellDictionary
from models.errors import FormatError, InputError, LanguageModelError, StatesFullError
from service.operations.constants import CANDIDATES_PER_BATCH, CANDIDATES_PER_STEP, LINES_PER_BATCH
from service.schemas.wire import ModelRequest, WireModel

_MAX_MODELS = 8
L = TypeVar("L")
R = TypeVar("R")
WordLists = tuple[HunspellDictionary, ...]
Dictionaries = Mapping[str, HunspellDictionary | FormatError]
"""Dictionaries by name; of a damaged one the error."""


class ModelWeight(WireModel):
    """One of several models of a request."""

    model: str
    """Model: `name`, `name@7` or `name@champion`."""
    weight: float = Field(1.0, gt=0, le=1e9)
    """Weight before the text is seen, relative to those of the other models."""


class ModelsRequest(ModelRequest):
    """The model of a request, or several models."""

    models: list[ModelWeight] = Field(default_factory=list, max_length=_MAX_MODELS)
    """Several models instead of `model`, such as one for each language of the user; their tokens may differ. The
    weights change at each word: a model that predicts the text better has a larger one."""

    @model_validator(mode="after")
    def _model_or_models(self) -> Self:
        if self.models and self.model is not None:
            raise PydanticCustomError("one_of", "give either model or models")
        return self


def read_batch(lines: Iterator[L], size: Callable[[L], int]) -> Work[Any, list[L]]:
    """Take the next batch of lines to answer together; empty at the end.

    Args:
        lines: the lines, parsed lazily.
        size: returns the number of candidates or texts in a line.
    """
    batch: list[L] = []
    count = read = 0
    for line in lines:
        batch.append(line)
        count, read = count + size(line), read + size(line)
        if count >= CANDIDATES_PER_BATCH or len(batch) >= LINES_PER_BATCH:
            break
        if read >= CANDIDATES_PER_STEP:
            read = 0
            yield None
    return batch


def answer_each(
    answer: Callable[[list[L]], Work[Any, Sequence[R | LanguageModelError]]], batch: list[L]
) -> Work[Any, list[R | LanguageModelError]]:
    """Answer lines together; if one is invalid, each half apart: only invalid lines fail.

    If the store of states is full, known only after the work, each line is answered apart.
    """
    try:
        return [*(yield from answer(batch))]
    except (InputError, StatesFullError) as error:
        if len(batch) == 1:
            return [error]
        size = 1 if isinstance(error, StatesFullError) else -(-len(batch) // 2)
    outcomes: list[R | LanguageModelError] = []
    for begin in range(0, len(batch), size):
        outcomes += yield from answer_each(answer, batch[begin : begin + size])
    return outcomes
