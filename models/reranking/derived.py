"""Features made of a list's texts, order and given features, by name, so that whoever has the list can make them again.

rank                  −r: how many other texts came before this one in the list
rank:log              −ln(r + 1)
NAME*words            a given feature times the text's words: the sum, where a recogniser gave the mean over words
NAME*characters       … times its characters
NAME*tokens           … times the language model's tokens of it
consensus:UTILITY     how well the text agrees with its list: its mean utility (`chrf`, `bleu`, `wer`) against all
                      candidates, of which each counts alike; equal texts count as often as they are there
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError
from models.reranking.mbr import UTILITIES, expected_utilities_in_steps
from models.reranking.tuning.steps import Steps, run_steps
from models.scoring import count_words

Floats: TypeAlias = npt.NDArray[np.float64]

RANK, RANK_LOG = "rank", "rank:log"
CONSENSUS = "consensus"
LENGTHS = ("words", "characters", "tokens")

_LENGTH_MARK = "*"


def is_derived(name: str) -> bool:
    """Whether a feature of this name is made here and not given; told by the name's shape alone."""
    return name.partition(":")[0] in {RANK, CONSENSUS} or base_feature(name) is not None


def base_feature(name: str) -> str | None:
    """The given feature that a derived one needs: `am` for `am*words`; None if it needs none."""
    base, _, length = name.rpartition(_LENGTH_MARK)
    return base if base and length in LENGTHS else None


def needs_tokens(name: str) -> bool:
    """Whether a derived feature needs the language model's token counts."""
    return base_feature(name) is not None and name.endswith(_LENGTH_MARK + "tokens")


def length_scaled_name(name: str, length: str) -> str:
    """The name of a given feature times a length of the text."""
    return name + _LENGTH_MARK + length


def check_derived(name: str) -> None:
    """Refuse what has the shape of a derived feature and is none.

    Raises:
        InvalidInputError: the message names the choices.
    """
    kind, colon, which = name.partition(":")
    if base_feature(name) is not None:
        return
    choices = {RANK: ("", "log"), CONSENSUS: UTILITIES}[kind]
    if which not in choices or (colon and not which):
        known = ", ".join(f"{kind}:{choice}" if choice else kind for choice in choices)
        raise InvalidInputError(f"there is no feature {name!r}; there are: {known}", parameter="weights")


def derive(
    name: str, texts: Sequence[str], given: Callable[[str], Floats], tokens: Floats | None = None
) -> Floats:
    """A derived feature of one list's candidates [C].

    Args:
        name: of the feature.
        texts: of all candidates of the list, in first-pass order.
        given: finds the values [C] of a given feature by name.
        tokens: the language model's token counts [C]; where there is no model, None.

    Raises:
        InvalidInputError: there is no such feature, or it needs a model and there is none.
    """
    return run_steps(derive_in_steps(name, texts, given, tokens))


def derive_in_steps(
    name: str, texts: Sequence[str], given: Callable[[str], Floats], tokens: Floats | None = None
) -> Steps[Floats]:
    """What `derive` does, with a stop after every bounded piece: comparing each text with each takes its time."""
    check_derived(name)
    base = base_feature(name)
    if base is not None:
        return given(base) * _lengths(name, texts, tokens)
    if name == RANK:
        return 0.0 - text_ranks(texts)  # not −0 for the first
    if name == RANK_LOG:
        return 0.0 - np.log1p(text_ranks(texts))
    alike = np.full(len(texts), 1 / len(texts))
    return (yield from expected_utilities_in_steps(texts, alike, name.partition(":")[2]))


def text_ranks(texts: Sequence[str]) -> Floats:
    """How many other texts of its list came before each [C]; equal texts have the rank of the first."""
    seen: dict[str, int] = {}
    return np.array([seen.setdefault(text, len(seen)) for text in texts], dtype=np.float64)


def _lengths(name: str, texts: Sequence[str], tokens: Floats | None) -> Floats:
    if not needs_tokens(name):
        count = count_words if name.endswith("words") else len
        return np.array([count(text) for text in texts], dtype=np.float64)
    if tokens is None:
        raise InvalidInputError(f"{name} needs a language model, and none is asked", parameter="weights")
    return tokens
