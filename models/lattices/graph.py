"""Several lattices as one graph by levels, the tokens of their words, and the weights of paths.

In a lattice a word is scored before its successor is known. So a word must have the same tokens in
every sentence, and the tokens of a sentence must be those of its words, concatenated: as for word
tokenizers, and for SentencePiece models whose pieces do not extend beyond a space.

A node's level is the number of arcs on the longest path to it: nodes of a level are not connected.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Self

import numpy as np

from models.arrays import TokenIds
from models.errors import InvalidInputError, UnsupportedParameterError
from models.language_model import pad_sequences
from models.lattices.lattice import ArcLevels, Indices, Lattice, Scales, Scores, group_by_level, node_depths
from models.reranking.ranking import MAX_WEIGHT
from models.tokenizers import Tokenizer
from models.vocabulary import EOS, UNK


@dataclass(frozen=True, eq=False, slots=True)
class LabelTokens:
    """The tokens of W labels: no word, some words, and last the end of the sentence.

    Attributes:
        tokens: ids [W, T].
        lengths: how many of them a label has [W]; that without a word has none.
        num_words: words of each label, 0 or 1 [W].
        num_unknown: tokens of each that are `<unk>` [W].
        canonical: the first label with the same tokens as each [W]: to the model, it is the same word.
    """

    tokens: TokenIds
    lengths: TokenIds
    num_words: Indices
    num_unknown: Indices
    canonical: Indices

    @property
    def end(self) -> int:
        """The label of the end of the sentence."""
        return len(self.lengths) - 1


class LabelTokenizer:
    """Conversion of words to a model's tokens.

    Args:
        tokenizer: the model's.

    Raises:
        UnsupportedParameterError: it has tokens that reach from one word to the next.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        across = next((token for token in tokenizer.token_bytes if token.find(b" ", 1) > 0), None)
        if across is not None:
            raise self._dependent(f"its token {across.decode(errors='replace')!r} reaches beyond a space")

    def label_tokens(self, words: Sequence[str]) -> LabelTokens:
        """The tokens of words, of which the first is empty and stands for none.

        Raises:
            UnsupportedParameterError: a word's tokens depend on what stands beside it.
        """
        spelled = [tuple(ids) for ids in self._tokenizer.encode_all(words)]
        self._check_independent(words[1:], spelled[1:])
        spelled.append((EOS,))
        tokens, lengths = pad_sequences(spelled)
        first: dict[tuple[int, ...], int] = {}
        return LabelTokens(
            tokens,
            lengths,
            np.array([0, *[1] * (len(words) - 1), 0]),
            np.array([ids.count(UNK) for ids in spelled]),
            np.array([first.setdefault(ids, label) for label, ids in enumerate(spelled)]),
        )

    def _check_independent(self, words: Sequence[str], spelled: Sequence[tuple[int, ...]]) -> None:
        """Refuse words whose tokens are others in a sentence than alone."""
        if self._tokenizer.encode(" ".join(words)) == list(chain.from_iterable(spelled)):
            return
        for word, ids in zip(words, spelled, strict=True):
            twice = self._tokenizer.encode(f"{word} {word}")
            if twice != [*ids, *ids]:
                raise self._dependent(f"the word {word!r} has {len(ids)} tokens, and said twice {len(twice)}")
        raise self._dependent("words have other tokens beside each other than alone")

    def _dependent(self, problem: str) -> UnsupportedParameterError:
        return UnsupportedParameterError(
            f"lattices are walked word by word, but tokens of this {self._tokenizer.kind} tokenizer depend on what "
            f"stands beside a word: {problem}; take a model with a word or SentencePiece tokenizer, or re-rank n-best "
            "lists",
            parameter="model",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWeights:
    """Signed weights of a path's features; their sum is to be large.

    The new model replaces the first pass's where `old_lm` is 0. Interpolating them, w · new + (1 − w) · old at a
    language model's scale of s, is `lm` = s · w and `old_lm` = s · (1 − w).

    Attributes:
        am: of the acoustic score.
        old_lm: of the score by the first pass's language model.
        lm: of the natural-log probability by the new model, end of sentence included.
        words: of the number of words; positive is a bonus, negative a penalty.
        unk: of the number of tokens that are `<unk>` to the new model; negative is a penalty.

    Raises:
        InvalidInputError: a weight is outside its limits.
    """

    am: float = 1.0
    old_lm: float = 0.0
    lm: float = 1.0
    words: float = 0.0
    unk: float = 0.0

    def __post_init__(self) -> None:
        for name, weight in asdict(self).items():
            if not abs(weight) <= MAX_WEIGHT:
                raise InvalidInputError(
                    f"weights.{name} is {weight}; it must be from {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
                    parameter=f"weights.{name}",
                )

    @classmethod
    def of(cls, given: Mapping[str, float], scales: Scales) -> Self:
        """Return the given weights, or those of the lattice's file by default.

        Raises:
            InvalidInputError: there is no such feature, or a weight is outside its limits.
        """
        names = {field.name for field in fields(cls)}
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise InvalidInputError(
                f"weights.{unknown}: a path has no such feature; it has {', '.join(sorted(names))}",
                parameter=f"weights.{unknown}",
            )
        return cls(**{"am": scales.am, "lm": scales.lm, "words": scales.words, **given})


@dataclass(frozen=True, eq=False, slots=True)
class LatticeGraph:
    """L lattices with N nodes and A arcs in all.

    Behind the end of each stands one more node, to which the arc of the end of the sentence leads. A node's level
    is the number of arcs on the longest way to it: nodes of a level are not connected.

    Attributes:
        lattice_of: the lattice of each node [N].
        levels: of each node [N].
        sources: node that each arc leaves [A].
        targets: node that it leads to [A].
        labels: its label in a spelling [A].
        own_arcs: its index in its lattice; that lattice's number of arcs for the end of the sentence [A].
        starts: the first node of each lattice [L].
        ends: the node behind the end of each [L].
        fixed: weighted sum of what is known of each arc without the model [A].
        lm_weights: weight of the model's log-probabilities in each lattice [L].
        remainders: what is still to come on the best path from each node to the end, by the lattice's own scores,
            the old model's instead of the new one's [N].
        by_source: arcs by the level of their source.
        by_target: arcs by the level of their target.
        last_use: the level of the farthest node that an arc leads to from each node; −1 from the ends [N].
    """

    lattice_of: Indices
    levels: Indices
    sources: Indices
    targets: Indices
    labels: Indices
    own_arcs: Indices
    starts: Indices
    ends: Indices
    fixed: Scores
    lm_weights: Scores
    remainders: Scores
    by_source: ArcLevels
    by_target: ArcLevels
    last_use: Indices

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.lattice_of)

    @property
    def num_levels(self) -> int:
        """Number of node levels of all lattices together."""
        return self.by_target.num_levels


def number_words(lattices: Sequence[Lattice]) -> dict[str, int]:
    """The words of lattices, numbered; the first is empty and stands for none."""
    labels = {"": 0}
    for lattice in lattices:
        for word in lattice.words:
            labels.setdefault(word, len(labels))
    return labels


def build_graph(
    lattices: Sequence[Lattice], weights: Sequence[PathWeights], words: dict[str, int], spelling: LabelTokens
) -> LatticeGraph:
    """Put lattices side by side.

    Args:
        lattices: at least one.
        weights: of the features of each.
        words: numbers of all their words.
        spelling: of these words, in this order.
    """
    num_nodes = np.array([lattice.num_nodes + 1 for lattice in lattices])
    starts = np.cumsum(num_nodes) - num_nodes
    ends = starts + num_nodes - 1
    sources, targets, labels, own_arcs, fixed, expected = (
        np.concatenate(columns)
        for columns in zip(
            *(
                _arc_columns(lattice, lattice_weights, int(start), words, spelling)
                for lattice, lattice_weights, start in zip(lattices, weights, starts, strict=True)
            ),
            strict=True,
        )
    )
    levels = node_depths(sources, targets, int(num_nodes.sum()))
    num_levels = int(levels.max()) + 1
    by_source, by_target = (
        group_by_level(levels[sources], num_levels),
        group_by_level(levels[targets], num_levels),
    )
    last_use = np.full(len(levels), -1, dtype=np.int64)
    np.maximum.at(last_use, sources, levels[targets])
    return LatticeGraph(
        lattice_of=np.repeat(np.arange(len(lattices)), num_nodes),
        levels=levels,
        sources=sources,
        targets=targets,
        labels=labels,
        own_arcs=own_arcs,
        starts=starts,
        ends=ends,
        fixed=fixed,
        lm_weights=np.array([lattice_weights.lm for lattice_weights in weights]),
        remainders=_backward_scores(sources, targets, expected, by_source, len(levels)),
        by_source=by_source,
        by_target=by_target,
        last_use=last_use,
    )


def _arc_columns(
    lattice: Lattice, weights: PathWeights, start: int, words: dict[str, int], spelling: LabelTokens
) -> tuple[Indices, Indices, Indices, Indices, Scores, Scores]:
    """Sources, targets, labels, own indices, fixed and expected scores of a lattice's arcs and of its sentence end."""
    numbers = np.array([words[word] for word in lattice.words])
    labels = np.append(numbers[lattice.labels], spelling.end)
    fixed = np.append(weights.am * lattice.am + weights.old_lm * lattice.old_lm, 0.0)
    fixed += weights.words * spelling.num_words[labels] + weights.unk * spelling.num_unknown[labels]
    return (
        start + np.append(lattice.sources, lattice.num_nodes - 1),
        start + np.append(lattice.targets, lattice.num_nodes),
        labels,
        np.arange(lattice.num_arcs + 1),
        fixed,
        fixed + weights.lm * np.append(lattice.old_lm, 0.0),
    )


def _backward_scores(
    sources: Indices, targets: Indices, scores: Scores, by_source: ArcLevels, num_nodes: int
) -> Scores:
    """The best sum of arcs' scores from each node to the end [N]."""
    best = np.full(num_nodes, -np.inf)
    best[np.setdiff1d(np.arange(num_nodes), sources)] = 0.0
    for level in reversed(range(by_source.num_levels)):
        arcs = by_source.of(level)
        np.maximum.at(best, sources[arcs], scores[arcs] + best[targets[arcs]])
    return best
