"""Kaldi's lattices as text: `utterance`, then one arc or final state per line, then an empty line.

Both types are read. CompactLattice: `source target word graph,acoustic,ids`, final states `state
graph,acoustic,ids`. Lattice: `source target transition-id word graph,acoustic`, final states `state
graph,acoustic`. Omitted costs are 0. Costs are negative natural logarithms; acoustic costs are
unscaled. Graph costs become `old_lm`; besides the language model they include transitions and
pronunciations.

Source: Kaldi's lat/kaldi-lattice.cc and "Lattices in Kaldi".
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TextIO

import numpy as np

from models.errors import InvalidInputError
from models.lattices.lattice import (
    NO_WORD,
    NON_WORD_LABELS,
    Arc,
    Lattice,
    Scores,
    SymbolTable,
    build_lattice,
    decode_line,
    group_by_level,
    is_whole_number,
    node_depths,
    word_of_label,
)
from models.reranking.formats.format import BadLine

_FRAME_S = 0.01
"""Default frame interval in Kaldi; each frame has a transition-id."""

_EPSILON = "<eps>"
_NEEDS_SYMBOLS = "the words are numbers; give Kaldi's words.txt"
_FINAL = -1
"""Target of final states."""


def read_kaldi(
    lines: Iterable[bytes],
    source: str,
    *,
    symbols: SymbolTable | None = None,
    no_words: Collection[str] = NON_WORD_LABELS,
) -> Iterator[Lattice | BadLine]:
    """Yield the lattices of a file; an invalid one becomes a `BadLine`, and reading continues.

    Args:
        lines: lines of the file.
        source: file name, for messages.
        symbols: words by number; None: the file contains words.
        no_words: labels that are not words.
    """
    for first, block in _blocks(lines):
        number = first
        try:
            name = _utterance(decode_line(block[0]))
            arcs: list[Arc] = []
            for number, line in enumerate(block[1:], start=first + 1):  # noqa: B007 - used in the BadLine
                arcs.append(_arc(decode_line(line).split(), symbols, no_words))
            number = first
            lattice = _lattice(name, arcs)
        except InvalidInputError as error:
            yield BadLine(source, number, str(error), loses_list=True)
        else:
            yield lattice


def write_kaldi(lattice: Lattice, target: TextIO, *, symbols: SymbolTable | None = None) -> None:
    """Write a CompactLattice, with enough digits to read the same numbers back.

    Args:
        lattice: arcs without a word into its end become final states.
        target: output stream.
        symbols: numbers by word; None: words are written unchanged.

    Raises:
        InvalidInputError: a word has no number, or the lattice's name contains white space.
    """
    name = _utterance(lattice.name or "utterance")
    labels = [_word_label(word or _EPSILON, symbols) for word in lattice.words]
    end = lattice.num_nodes - 1
    final = (lattice.targets == end) & (lattice.labels == NO_WORD)
    one_each = len(np.unique(lattice.sources[final])) == np.count_nonzero(final)
    ends_in_states = bool(one_each and (final == (lattice.targets == end)).all())
    alignments = lattice.alignments or ("",) * lattice.num_arcs
    columns = (lattice.sources, lattice.targets, lattice.labels, 0.0 - lattice.old_lm, 0.0 - lattice.am)
    target.write(f"{name}\n")
    for begin, node, label, graph, acoustic, alignment in zip(
        *(column.tolist() for column in columns), alignments, strict=True
    ):
        arc = str(begin) if ends_in_states and node == end else f"{begin} {node} {labels[label]}"
        target.write(f"{arc} {graph!r},{acoustic!r},{alignment}\n")
    target.write("\n" if ends_in_states else f"{end}\n\n")


def _blocks(lines: Iterable[bytes]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Yield runs of lines that are not blank, each with its first line number."""
    for is_blank, run in groupby(enumerate(lines, start=1), key=lambda line: not line[1].strip()):
        if not is_blank:
            numbers, block = zip(*run, strict=True)
            yield numbers[0], block


def _utterance(line: str) -> str:
    name = line.strip()
    if len(name.split()) > 1:
        raise InvalidInputError(f"the utterance id {name[:40]!r} contains white space")
    return name


def _arc(fields: Sequence[str], symbols: SymbolTable | None, no_words: Collection[str]) -> Arc:
    """Parse a line into an arc or final state; an input label besides the word marks a Lattice."""
    costs = fields[-1] if len(fields) in {2, 4, 5} and "," in fields[-1] else ""
    states = fields[: len(fields) - 1] if costs else fields
    if len(states) not in {1, 3, 4}:
        raise InvalidInputError(f"the line has {len(fields)} fields; it is not an arc or a final state")
    graph, acoustic, alignment = _costs(costs)
    source = _state(states[0])
    if len(states) == 1:
        return Arc(source, _FINAL, "", 0.0 - acoustic, 0.0 - graph, alignment=alignment)  # not −0
    if not (math.isfinite(graph) and math.isfinite(acoustic)):
        raise InvalidInputError(f"the cost of an arc is {costs[:40]}; it must be finite")
    if len(states) == 4:
        alignment = "" if states[2] == "0" else states[2]
    word = _word(states[-1], symbols, no_words)
    return Arc(source, _state(states[1]), word, 0.0 - acoustic, 0.0 - graph, alignment=alignment)


def _costs(text: str) -> tuple[float, float, str]:
    """Parse graph cost, acoustic cost and transition-ids."""
    if not text:
        return 0.0, 0.0, ""
    parts = text.split(",")
    try:
        graph, acoustic = float(parts[0] or 0), float(parts[1] or 0)
    except ValueError:
        raise InvalidInputError(f"the cost {text[:40]} is not of the form graph,acoustic,ids") from None
    if len(parts) > 3 or math.isnan(graph + acoustic):
        raise InvalidInputError(f"the cost {text[:40]} is not of the form graph,acoustic,ids")
    return graph, acoustic, parts[2] if len(parts) == 3 else ""


def _state(text: str) -> int:
    if not is_whole_number(text):
        raise InvalidInputError(f"the state {text[:40]!r} is not a number")
    return int(text)


def _word(label: str, symbols: SymbolTable | None, no_words: Collection[str]) -> str:
    if symbols is None:
        if label.isdecimal() and label != "0":
            raise InvalidInputError(_NEEDS_SYMBOLS)
        return "" if label == "0" else word_of_label(label, no_words)
    if not is_whole_number(label) or int(label) not in symbols.words:
        raise InvalidInputError(f"the word {label[:40]!r} is not a number in words.txt")
    return word_of_label(symbols.words[int(label)], no_words)


def _word_label(word: str, symbols: SymbolTable | None) -> str:
    if symbols is None:
        return word
    if word not in symbols.ids:
        raise InvalidInputError(f"words.txt has no {word!r}", parameter="words")
    return str(symbols.ids[word])


def _lattice(name: str, arcs: Sequence[Arc]) -> Lattice:
    """Build the lattice of an utterance; its final states lead to an additional end node."""
    if not arcs:
        raise InvalidInputError("the lattice has no arcs")
    if all(arc.target != _FINAL for arc in arcs):
        raise InvalidInputError("no state is final")
    states = {node for arc in arcs for node in arc[:2]} - {_FINAL}
    number_of = {state: number for number, state in enumerate(sorted(states))}
    start = number_of[arcs[0].source]
    end = number_of[_FINAL] = len(states)
    # a state with an infinite cost is not final
    arcs = [
        arc._replace(source=number_of[arc.source], target=number_of[arc.target])
        for arc in arcs
        if math.isfinite(arc.am) and math.isfinite(arc.old_lm)
    ]
    lattice = build_lattice(arcs, name=name, start=start, end=end, times=np.full(end + 1, math.nan))
    return replace(lattice, times=_times(lattice)) if lattice.alignments else lattice


def _times(lattice: Lattice) -> Scores:
    """Compute node times; in these lattices all paths to a node have the same number of transitions."""
    counts = np.array([text.count("_") + 1 if text else 0 for text in lattice.alignments])
    depth = node_depths(lattice.sources, lattice.targets, lattice.num_nodes)
    levels = group_by_level(depth[lattice.sources], int(depth.max()))
    frames = np.zeros(lattice.num_nodes, dtype=np.int64)
    for level in range(levels.num_levels):
        arcs = levels.of(level)
        np.maximum.at(frames, lattice.targets[arcs], frames[lattice.sources[arcs]] + counts[arcs])
    return frames.astype(np.float64) * _FRAME_S
