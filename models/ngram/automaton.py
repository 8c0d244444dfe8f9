"""The back-off automaton: an n-gram model as flat arrays, and its file.

Every listed n-gram below the highest order is a state, and so is the empty context, state 0.
N-grams are numbered by length, then in lexicographic order, and the state of n-gram a is a + 1. So
an n-gram is both an arc, from the state of its prefix, and the state at the end of that arc: only
the link to the longest shorter context has to be stored. Links always point to smaller numbers. The
unigrams are arcs 0 to V − 1 of state 0: there an arc's number is the word's id. Values are log10 in
single precision, as in ARPA files, or codes of eight bits for such values; results are natural
logarithms.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
import numpy.typing as npt

from models.errors import ManifestError
from models.tensor_files import map_tensors, write_tensors
from models.vocabulary import BOS, CONTROL_TOKENS

AUTOMATON_FILE = "ngram.bin"

LN_10 = math.log(10)
"""What makes a natural logarithm of one to base 10."""

MAX_AUTOMATON_ORDER = 255
"""The length of an n-gram that is found is told in one byte."""

EXACT_TYPES = {
    "order_starts": ("int64", 1),
    "first_arcs": ("uint32", 1),
    "suffixes": ("int32", 1),
    "words": ("int32", 1),
    "log10_probs": ("float32", 1),
    "log10_backoffs": ("float32", 1),
    "prob_values": ("float32", 1),
    "backoff_values": ("float32", 1),
    "ranked_states": ("int32", 1),
    "ranked_starts": ("uint32", 1),
    "ranked_arcs": ("uint32", 1),
    "ranked_masses": ("float32", 1),
}
"""Element type and number of axes of each array: what a file must hold and kernels are compiled for."""

QUANTISED_TYPES = EXACT_TYPES | {
    "words": ("uint8", 2),
    "log10_probs": ("uint8", 1),
    "log10_backoffs": ("uint8", 1),
}
"""The same where probabilities and back-offs are codes and words take three bytes."""


class Automaton(NamedTuple):
    """S states and A arcs; the arcs of a state lie together, sorted by word. No array is writable.

    Attributes:
        order_starts: the first n-gram of each length, and A at the end [order + 1], int64.
        first_arcs: where each state's arcs start, and A at the end [S + 1], uint32.
        suffixes: the state of the longest proper suffix that is a state [S], int32.
        words: the id of the word that an arc reads [A], int32; or its three bytes, the lowest first [A, 3].
        log10_probs: of that word in that state [A], float32, minus infinity for `<s>`; or uint8 codes.
        log10_backoffs: what a state charges for going on to its suffix [S], float32; or uint8 codes.
        prob_values: what the codes of `log10_probs` stand for [256], float32; empty if there are none.
        backoff_values: likewise of `log10_backoffs`.
        ranked_states: states with so many arcs that their order by probability is kept [R], int32.
        ranked_starts: where each of them starts in `ranked_arcs`, and the end [R + 1], uint32.
        ranked_arcs: their arcs, the most probable first, uint32.
        ranked_masses: the sum of the probabilities of their arcs [R], float32.
    """

    order_starts: npt.NDArray[np.int64]
    first_arcs: npt.NDArray[np.uint32]
    suffixes: npt.NDArray[np.int32]
    words: npt.NDArray[Any]
    log10_probs: npt.NDArray[Any]
    log10_backoffs: npt.NDArray[Any]
    prob_values: npt.NDArray[np.float32]
    backoff_values: npt.NDArray[np.float32]
    ranked_states: npt.NDArray[np.int32]
    ranked_starts: npt.NDArray[np.uint32]
    ranked_arcs: npt.NDArray[np.uint32]
    ranked_masses: npt.NDArray[np.float32]

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.order_starts) - 1

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.suffixes)

    @property
    def num_arcs(self) -> int:
        """A, the number of n-grams of all orders."""
        return len(self.words)

    @property
    def vocab_size(self) -> int:
        """V."""
        return int(self.first_arcs[1])

    @property
    def quantised(self) -> bool:
        """Whether probabilities and back-offs are codes."""
        return bool(self.log10_probs.dtype == np.uint8)

    @property
    def initial(self) -> int:
        """The state after `<s>`; the empty context in a model of order 1."""
        return 0 if self.order == 1 else BOS + 1

    def frozen(self) -> Self:
        """The same, its arrays made read-only, as kernels take them."""
        for array in self:
            array.flags.writeable = False
        return self

    def save(self, path: Path) -> None:
        """Write the arrays in the layout of a safetensors file."""
        write_tensors(path, self._asdict())

    @classmethod
    def load(cls, path: Path) -> "Automaton":
        """Map the file that `save` wrote; processes that map it share its pages.

        Only the arrays' shapes are looked at; `verification.verify` reads all of it.

        Raises:
            ManifestError: it is no such file, or its arrays do not fit each other.
        """
        arrays = map_tensors(path)
        if arrays.keys() != EXACT_TYPES.keys():
            reject(path, f"it holds the arrays {sorted(arrays)}, not {sorted(EXACT_TYPES)}")
        automaton = cls(**arrays)
        expected = QUANTISED_TYPES if automaton.quantised else EXACT_TYPES
        for name, (dtype, ndim) in expected.items():
            array = arrays[name]
            if array.dtype != dtype or array.ndim != ndim:
                reject(path, f"{name} is {array.dtype} {list(array.shape)}, not {dtype} of {ndim} axes")
        _check_shapes(path, automaton)
        return automaton


def reject(path: Path, problem: str) -> NoReturn:
    """Raise the error of a file that is no automaton.

    Raises:
        ManifestError: always.
    """
    raise ManifestError(f"{path} is no back-off automaton: {problem}")


def _check_shapes(path: Path, automaton: Automaton) -> None:  # noqa: C901 - one line an array
    """Array lengths agree with each other; what stands at their ends does too."""
    starts, states, arcs = automaton.order_starts, automaton.num_states, automaton.num_arcs
    if not 1 <= automaton.order <= MAX_AUTOMATON_ORDER:
        reject(path, f"its order is {automaton.order}, it can be 1 to {MAX_AUTOMATON_ORDER}")
    if starts[0] != 0 or starts[-1] != arcs or not (starts[1:] >= starts[:-1]).all():
        reject(path, f"order_starts is {starts[:8].tolist()}… for {arcs} arcs")
    if states != starts[-2] + 1 or len(automaton.first_arcs) != states + 1:
        reject(path, f"suffixes and first_arcs do not fit the {starts[-2]} n-grams below the highest order")
    if len(automaton.log10_backoffs) != states or len(automaton.log10_probs) != arcs:
        reject(path, f"log10_backoffs and log10_probs do not fit {states} states and {arcs} arcs")
    if automaton.first_arcs[0] != 0 or automaton.first_arcs[-1] != arcs:
        reject(path, f"first_arcs does not go from 0 to {arcs}")
    if automaton.vocab_size != starts[1] or automaton.vocab_size < len(CONTROL_TOKENS):
        reject(path, f"the empty context has {automaton.vocab_size} arcs, {starts[1]} unigrams are listed")
    if automaton.words.ndim == 2 and automaton.words.shape[1] != 3:
        reject(path, f"a word takes {automaton.words.shape[1]} bytes, not 3")
    num_codes = 256 if automaton.quantised else 0
    if len(automaton.prob_values) != num_codes or len(automaton.backoff_values) != num_codes:
        reject(path, f"prob_values and backoff_values have not {num_codes} entries")
    ranked = len(automaton.ranked_states)
    if ranked < 1 or len(automaton.ranked_starts) != ranked + 1 or len(automaton.ranked_masses) != ranked:
        reject(path, f"ranked_starts and ranked_masses do not fit {ranked} ranked states")
    if automaton.ranked_starts[0] != 0 or automaton.ranked_starts[-1] != len(automaton.ranked_arcs):
        reject(path, f"ranked_starts does not go from 0 to {len(automaton.ranked_arcs)}")
