"""Models that read a text from its end to its start: what they can be asked, and in which order.

Such a model scores the reversed text after `<s>`; its `</s>` is where the text begins. To a
client all is in reading order, `</s>` last.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from models.errors import UnsupportedParameterError
from service.engine.hosted import LoadedModel
from service.use_cases.tokens import EncodedText

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
