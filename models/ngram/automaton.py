"""The back-off automaton: an n-gram model as seven flat arrays, and its file.

A state is a context. State 0 is the empty context; its arcs are the unigrams, one per word,
so there an arc's index is the word's id. States are numbered by length of context, then in
lexicographic order, so a state's length follows from its number and a link to a shorter
context always points to a smaller number. What is stored is log10 in single precision, as in
ARPA files; natural logarithms are made at the edge.
"""

import itertools
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from models.errors import ManifestError
from models.ngram.tensor_file import map_tensors
from models.vocabulary import BOS, CONTROL_TOKENS

AUTOMATON_FILE = "ngram.bin"
ARRAY_TYPES = {
    "length_starts": "int64",
    "first_arcs": "uint32",
    "log10_backoffs": "float32",
    "suffixes": "int32",
    "words": "int32",
    "log10_probs": "float32",
    "targets": "int32",
}
"""The arrays of an automaton, in order: what the file must hold and the kernels are compiled for."""


class Automaton(NamedTuple):
    """S states and A arcs; the arcs of a state lie together, sorted by word. No array is writable.

    Attributes:
        length_starts: the first state of each context length, and S at the end [order + 1], int64.
        first_arcs: where each state's arcs start, and A at the end [S + 1], uint32.
        log10_backoffs: what a state charges for going on to its suffix [S], float32.
        suffixes: the state of the longest proper suffix that is a state [S], int32.
        words: the id of the word that an arc reads [A], int32.
        log10_probs: of that word in that state [A], float32; minus infinity for `<s>`.
        targets: the state of the longest suffix of context and word that is a state [A], int32.
    """

    length_starts: npt.NDArray[np.int64]
    first_arcs: npt.NDArray[np.uint32]
    log10_backoffs: npt.NDArray[np.float32]
    suffixes: npt.NDArray[np.int32]
    words: npt.NDArray[np.int32]
    log10_probs: npt.NDArray[np.float32]
    targets: npt.NDArray[np.int32]

    @property
    def order(self) -> int:
        """The length of the longest n-gram."""
        return len(self.length_starts) - 1

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
    def initial(self) -> int:
        """The state after `<s>`; the empty context in a model of order 1."""
        return int(self.targets[BOS])

    def save(self, path: Path) -> None:
        """Write the arrays in the layout of a safetensors file."""
        save_file(self._asdict(), path)

    @classmethod
    def load(cls, path: Path) -> "Automaton":
        """Map the file that `save` wrote; processes that map it share its pages.

        Raises:
            ManifestError: it is no such file, or an index in it points outside the arrays.
        """
        arrays = map_tensors(path)
        if arrays.keys() != ARRAY_TYPES.keys():
            _reject(path, f"it holds the arrays {sorted(arrays)}, not {sorted(ARRAY_TYPES)}")
        for name, dtype in ARRAY_TYPES.items():
            if arrays[name].dtype != dtype or arrays[name].ndim != 1:
                _reject(path, f"{name} is {arrays[name].dtype} {list(arrays[name].shape)}, not {dtype} [n]")
        automaton = cls(**arrays)
        _check_shapes(path, automaton)
        _check_indices(path, automaton)
        _check_values(path, automaton)
        return automaton


def _reject(path: Path, problem: str) -> NoReturn:
    raise ManifestError(f"{path} is no back-off automaton: {problem}")


def _check_shapes(path: Path, automaton: Automaton) -> None:
    """Array lengths agree with each other, and state 0 has one arc per word."""
    states, arcs, starts = automaton.num_states, automaton.num_arcs, automaton.length_starts
    if automaton.order < 1 or starts[0] != 0 or starts[1] != 1 or starts[-1] != states:
        _reject(path, f"length_starts is {starts[:8].tolist()}… for {states} states")
    if not (starts[1:] >= starts[:-1]).all():
        _reject(path, "length_starts decreases")
    if len(automaton.first_arcs) != states + 1 or len(automaton.log10_backoffs) != states:
        _reject(path, f"first_arcs and log10_backoffs do not fit {states} states")
    if len(automaton.log10_probs) != arcs or len(automaton.targets) != arcs:
        _reject(path, f"log10_probs and targets do not fit {arcs} arcs")
    first = automaton.first_arcs
    if first[0] != 0 or first[-1] != arcs or not (first[1:] >= first[:-1]).all():
        _reject(path, f"first_arcs does not rise from 0 to {arcs}")
    if automaton.vocab_size < len(CONTROL_TOKENS):
        _reject(path, f"the empty context has {automaton.vocab_size} arcs")


def _check_indices(path: Path, automaton: Automaton) -> None:
    """No arc or link leads outside the arrays, and links end at the empty context."""
    size = automaton.vocab_size
    if not np.array_equal(automaton.words[:size], np.arange(size)):
        _reject(path, "the words of the empty context are not the vocabulary in order")
    for name, values, limit in (
        ("words", automaton.words, size),
        ("targets", automaton.targets, automaton.num_states),
    ):
        if values.min() < 0 or values.max() >= limit:
            _reject(path, f"{name} lie in [{values.min()}, {values.max()}], outside [0, {limit})")
    if automaton.suffixes[0] != 0 or automaton.suffixes.min() < 0:
        _reject(path, "a suffix is negative, or that of the empty context is not itself")
    starts = automaton.length_starts.tolist()
    for begin, end in itertools.pairwise(starts[1:]):
        if automaton.suffixes[begin:end].max(initial=0) >= begin:
            _reject(path, f"a suffix of the states {begin} to {end - 1} is not shorter than its state")


def _check_values(path: Path, automaton: Automaton) -> None:
    """Probabilities are at most 1, give or take rounding; the comparisons are false for NaN."""
    if not automaton.log10_probs.max() <= 1e-6:
        _reject(path, f"the largest log10_probs is {automaton.log10_probs.max()}")
    if not automaton.log10_backoffs.max() < np.inf:
        _reject(path, f"the largest log10_backoffs is {automaton.log10_backoffs.max()}")
