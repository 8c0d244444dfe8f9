"""Back-off automaton: an n-gram model as flat arrays, and its file.

Every listed n-gram below the highest order is a state, as is the empty context, state 0. N-grams are
numbered by length, then in lexicographic order; the state of n-gram a is a + 1. An n-gram is thus
an arc, from the state of its prefix, and the state at its end: only the link to the longest listed
suffix must be stored. Links point to smaller numbers. The unigrams are arcs 0 to V − 1 of state 0,
by word id. Values are log10 in single precision, as in ARPA files, or eight-bit codes of such
values; results are natural logarithms.
"""

import math
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

import numpy as np

from models.arrays import AnyArray, Float32s, Int32s, Int64s, UInt32s
from models.errors import ManifestError
from models.language_model import BOS, CONTROL_TOKENS
from models.tensor_files import map_tensors, write_tensors

AUTOMATON_FILE = "ngram.bin"

LN_10 = math.log(10)
"""Factor from base-10 to natural logarithms."""

MAX_AUTOMATON_ORDER = 255
"""Limit of the one-byte lengths of matched n-grams in scores."""

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
"""Element type and number of axes of each array in files and in kernel signatures."""

QUANTISED_TYPES = EXACT_TYPES | {
    "words": ("uint8", 2),
    "log10_probs": ("uint8", 1),
    "log10_backoffs": ("uint8", 1),
}
"""`EXACT_TYPES` with codes for probabilities and back-offs, and three bytes per word."""


class Automaton(NamedTuple):
    """S states and A arcs; a state's arcs are contiguous and sorted by word. All arrays are read-only.

    Attributes:
        order_starts: first n-gram of each length, then A [order + 1], int64.
        first_arcs: first arc of each state, then A [S + 1], uint32.
        suffixes: longest proper suffix that is a state [S], int32.
        words: word id of each arc [A], int32; or its three bytes, the lowest first [A, 3].
        log10_probs: probability of each arc [A], float32, minus infinity for `<s>`; or uint8 codes.
        log10_backoffs: back-off weight of each state [S], float32; or uint8 codes.
        prob_values: values of the codes of `log10_probs` [256], float32; empty without codes.
        backoff_values: values of the codes of `log10_backoffs`, likewise.
        ranked_states: states with many arcs, of which the ranking is stored [R], int32.
        ranked_starts: start of each ranked state in `ranked_arcs`, then the end [R + 1], uint32.
        ranked_arcs: arcs of the ranked states, the most probable first, uint32.
        ranked_masses: sum of the probabilities of each ranked state's arcs [R], float32.
    """

    order_starts: Int64s
    first_arcs: UInt32s
    suffixes: Int32s
    words: AnyArray
    log10_probs: AnyArray
    log10_backoffs: AnyArray
    prob_values: Float32s
    backoff_values: Float32s
    ranked_states: Int32s
    ranked_starts: UInt32s
    ranked_arcs: UInt32s
    ranked_masses: Float32s

    @property
    def order(self) -> int:
        """Length of the longest n-gram."""
        return len(self.order_starts) - 1

    @property
    def num_states(self) -> int:
        """Number of states, S."""
        return len(self.suffixes)

    @property
    def num_arcs(self) -> int:
        """Number of n-grams of all orders, A."""
        return len(self.words)

    @property
    def vocab_size(self) -> int:
        """Number of unigrams, V."""
        return int(self.first_arcs[1])

    @property
    def quantised(self) -> bool:
        """True if probabilities and back-offs are codes."""
        return bool(self.log10_probs.dtype == np.uint8)

    @property
    def initial(self) -> int:
        """State after `<s>`; the empty context in a model of order 1."""
        return 0 if self.order == 1 else BOS + 1

    def frozen(self) -> Self:
        """Return this automaton after making its arrays read-only, as kernel signatures require."""
        for array in self:
            array.flags.writeable = False
        return self

    def save(self, path: Path) -> None:
        """Write the arrays in the layout of a safetensors file."""
        write_tensors(path, self._asdict())

    @classmethod
    def load(cls, path: Path) -> "Automaton":
        """Map the file of `save`; processes that map it share its pages.

        Only the shapes of the arrays are checked; `build.verify_automaton` checks every value.

        Raises:
            ManifestError: the file is not an automaton, or its arrays' sizes are inconsistent.
        """
        arrays = map_tensors(path)
        if arrays.keys() != EXACT_TYPES.keys():
            reject(path, f"it has the arrays {sorted(arrays)}, not {sorted(EXACT_TYPES)}")
        automaton = cls(**arrays)
        expected = QUANTISED_TYPES if automaton.quantised else EXACT_TYPES
        for name, (dtype, ndim) in expected.items():
            array = arrays[name]
            if array.dtype != dtype or array.ndim != ndim:
                reject(path, f"{name} is {array.dtype} {list(array.shape)}, not {dtype} with {ndim} axes")
        _check_shapes(path, automaton)
        return automaton


def word_ids(words: AnyArray) -> Int32s:
    """Copy word ids [n], given as numbers [n] or as three bytes each, the lowest first [n, 3]."""
    if words.ndim == 1:
        return words.astype(np.int32)
    padded = np.zeros((len(words), 4), np.uint8)
    padded[:, :3] = words
    return padded.view("<i4").reshape(-1)


def reject(path: Path, problem: str) -> NoReturn:
    """Raise the ManifestError of a file that is not an automaton."""
    raise ManifestError(f"{path} is not a back-off automaton: {problem}")


def _check_shapes(path: Path, automaton: Automaton) -> None:  # noqa: C901 - one line per array
    """Check that the arrays' lengths and first and last entries are consistent."""
    starts, states, arcs = automaton.order_starts, automaton.num_states, automaton.num_arcs
    if not 1 <= automaton.order <= MAX_AUTOMATON_ORDER:
        reject(path, f"its order is {automaton.order}, it can be 1 to {MAX_AUTOMATON_ORDER}")
    if starts[0] != 0 or starts[-1] != arcs or not (starts[1:] >= starts[:-1]).all():
        reject(path, f"order_starts is {starts[:8].tolist()}… for {arcs} arcs")
    if states != starts[-2] + 1 or len(automaton.first_arcs) != states + 1:
        reject(path, f"suffixes and first_arcs do not match the {starts[-2]} n-grams below the highest order")
    if len(automaton.log10_backoffs) != states or len(automaton.log10_probs) != arcs:
        reject(path, f"log10_backoffs and log10_probs do not match {states} states and {arcs} arcs")
    if automaton.first_arcs[0] != 0 or automaton.first_arcs[-1] != arcs:
        reject(path, f"first_arcs does not go from 0 to {arcs}")
    if automaton.vocab_size != starts[1] or automaton.vocab_size < len(CONTROL_TOKENS):
        reject(path, f"the empty context has {automaton.vocab_size} arcs, {starts[1]} unigrams are listed")
    if automaton.words.ndim == 2 and automaton.words.shape[1] != 3:
        reject(path, f"a word takes {automaton.words.shape[1]} bytes, not 3")
    num_codes = 256 if automaton.quantised else 0
    if len(automaton.prob_values) != num_codes or len(automaton.backoff_values) != num_codes:
        reject(path, f"prob_values and backoff_values do not have {num_codes} entries")
    ranked = len(automaton.ranked_states)
    if ranked < 1 or len(automaton.ranked_starts) != ranked + 1 or len(automaton.ranked_masses) != ranked:
        reject(path, f"ranked_starts and ranked_masses do not match {ranked} ranked states")
    if automaton.ranked_starts[0] != 0 or automaton.ranked_starts[-1] != len(automaton.ranked_arcs):
        reject(path, f"ranked_starts does not go from 0 to {len(automaton.ranked_arcs)}")
