"""A word lattice in flat arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.errors import InvalidInputError

Indices = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

NO_WORD = 0
"""The label of arcs without a word; silence, say, or what only holds the graph together."""

NO_VARIANT = -1
MAX_NODES = 1 << 20
MAX_ARCS = 1 << 22
MAX_SCORE = 1e100
"""Beyond it, in either direction, weighted sums along paths might not be finite."""


@dataclass(frozen=True, slots=True)
class Scales:
    """How the file that a lattice comes from weighs its scores.

    Attributes:
        am: factor of acoustic scores.
        lm: factor of the language model's scores.
        words: what is added for each word, a natural logarithm.
    """

    am: float = 1.0
    lm: float = 1.0
    words: float = 0.0


@dataclass(frozen=True, eq=False)
class Lattice:
    """N nodes in topological order and A arcs between them, ordered by source.

    Node 0 is the start and node N − 1 the end; every node lies on a path between them. Scores are natural
    logarithms, larger is better.

    Attributes:
        name: the utterance's id.
        words: distinct; the first is empty and stands for none.
        sources: node that each arc leaves [A].
        targets: node that it leads to [A].
        labels: place of its word in `words` [A].
        am: its acoustic score [A].
        old_lm: its score by the first pass's language model [A].
        times: of each node, seconds from the beginning [N]; NaN where that is not known.
        scales: how its file weighs these scores.
        variants: which of its pronunciations each arc's word has [A]; −1 where that is not known.
        alignments: each arc's transition-ids as Kaldi writes them; empty where the format has none.

    Raises:
        InvalidInputError: the arrays are no such lattice.
    """

    name: str | None
    words: tuple[str, ...]
    sources: Indices
    targets: Indices
    labels: Indices
    am: Scores
    old_lm: Scores
    times: Scores
    scales: Scales = Scales()
    variants: Indices | None = None
    alignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = [self.sources, self.targets, self.labels, self.am, self.old_lm]
        columns += [self.sources if self.variants is None else self.variants]
        if len({column.shape for column in columns}) > 1 or len(self.alignments) not in {0, self.num_arcs}:
            raise _wrong(f"columns have {[len(column) for column in columns]} entries; they must be as many")
        check_size(self.num_nodes, self.num_arcs)
        if not self.words or self.words[0] or len(set(self.words)) < len(self.words):
            raise _wrong("words must be distinct, and the first must be empty")
        if self.labels.min() < 0 or self.labels.max() >= len(self.words):
            raise _wrong(f"labels must be from 0 to {len(self.words) - 1}")
        for scores in (self.am, self.old_lm):
            wrong = scores[~(np.abs(scores) <= MAX_SCORE)]
            if wrong.size:
                raise _wrong(f"a score is {wrong[0]:g}; it must be from {-MAX_SCORE:g} to {MAX_SCORE:g}")
        self._check_graph()

    @property
    def num_nodes(self) -> int:
        """N, at least 2."""
        return len(self.times)

    @property
    def num_arcs(self) -> int:
        """A, at least 1."""
        return len(self.sources)

    def _check_graph(self) -> None:
        if self.sources.min() < 0 or self.targets.max() >= self.num_nodes:
            raise _wrong(f"nodes must be from 0 to {self.num_nodes - 1}")
        if not (self.sources < self.targets).all():
            raise _wrong("an arc leads back: nodes must be in topological order, without cycles")
        if (np.diff(self.sources) < 0).any():
            raise _wrong("arcs must be ordered by source")
        # without cycles, this is enough to have every node on a path from the start to the end
        if not np.isin(np.arange(1, self.num_nodes), self.targets).all():
            raise _wrong("a node besides the first cannot be reached")
        if not np.isin(np.arange(self.num_nodes - 1), self.sources).all():
            raise _wrong("a node besides the last leads nowhere")


def check_size(num_nodes: int, num_arcs: int) -> None:
    """Refuse lattices without arcs, and those beyond the limits.

    Raises:
        InvalidInputError: the message says which limit.
    """
    if num_arcs == 0:
        raise _wrong("the lattice has no arcs")
    for what, count, limit in (("nodes", num_nodes, MAX_NODES), ("arcs", num_arcs, MAX_ARCS)):
        if count > limit:
            raise _wrong(f"the lattice has {count} {what}; at most {limit} are allowed")


def _wrong(problem: str) -> InvalidInputError:
    return InvalidInputError(problem, parameter="lattice")
