"""Several lattices as one graph with levels, the tokens of their words, and the weights of paths.

In a lattice, a word is scored before its successor is known. So a word must have
the same tokens in every sentence, and a sentence's tokens must be those of its
words, joined, as for word tokenizers and SentencePiece models whose pieces do not
extend beyond a space.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Self, TypeAlias

import numpy as np
from numba import types

from models.arrays import Bools, TokenIds
from models.errors import InputError, UnsupportedError, check_range
from models.kernels.compilation import kernel
from models.language_model import EOS, UNK, pad_sequences
from models.lattices.lattice import Indices, Lattice, Scales, Scores, node_depths
from models.phrases import DEFAULT_WEIGHT, is_phrase_feature
from models.reranking.features import RANK
from models.reranking.proposals import PROPOSED_FEATURES
from models.reranking.ranking import MAX_WEIGHT
from models.text_model import TextModel
from models.tokenizers import Tokenizer

NO_PROPOSALS: Mapping[str, float] = MappingProxyType({})
"""Weights of the features of no proposals."""


@dataclass(frozen=True, eq=False, slots=True)
class LabelTokens:
    """Tokens of W labels: the empty word, the words, and last the end of the sentence.

    Attributes:
        tokens: ids [W, T].
        lengths: number of tokens of each label, 0 for the empty word [W].
        num_words: number of words of each label, 0 or 1 [W].
        num_unknown: number of `<unk>` tokens of each label [W].
        canonical: first label with the same tokens [W]; the model cannot
            distinguish them.
        restarts: whether a sentence ends with the label, so that the model starts
            anew [W]; None for none.
    """

    tokens: TokenIds
    lengths: TokenIds
    num_words: Indices
    num_unknown: Indices
    canonical: Indices
    restarts: Bools | None = None

    @property
    def end(self) -> int:
        """Label of the end of the sentence."""
        return len(self.lengths) - 1


class LabelTokenizer:
    """Converter from words to a model's tokens; class members of several words are not found.

    Args:
        tokenizer: the model's tokenizer.
        address: the model's address in messages.

    Raises:
        UnsupportedError: a token spans two words.
    """

    def __init__(self, tokenizer: Tokenizer, *, address: str = "this model") -> None:
        self.tokenizer, self.address = tokenizer, address
        self._plain = tokenizer if tokenizer.members is None else tokenizer.members.plain
        across = next((token for token in self._plain.token_bytes if token.find(b" ", 1) > 0), None)
        if across is not None:
            raise self._dependent(f"its token {across.decode(errors='replace')!r} extends beyond a space")

    @classmethod
    def of(cls, loaded: TextModel) -> "LabelTokenizer":
        """Return the converter for a model.

        Raises:
            UnsupportedError: the model reads backward, or a token spans two words.
        """
        if loaded.reads_backward:
            raise UnsupportedError.of(
                "model",
                f"{loaded.address} reads from right to left; lattices are searched from left to right",
            )
        return cls(loaded.tokenizer, address=loaded.address)

    def label_tokens(self, words: Sequence[str]) -> LabelTokens:
        """Tokenise words, of which the first is empty.

        Raises:
            UnsupportedError: a word's tokens depend on its neighbours.
        """
        spelled = [tuple(ids) for ids in self.tokenizer.encode_all(words)]
        alone = spelled[1:] if self._plain is self.tokenizer else self._plain.encode_all(words[1:])
        joined, apart = self._plain.encode(" ".join(words[1:])), [*chain.from_iterable(alone)]
        # other tokens of the same letters are a tie between segmentations of a word
        if joined != apart and self._letters(joined) != self._letters(apart):
            for word, ids in zip(words[1:], alone, strict=True):
                twice = self._plain.encode(f"{word} {word}")
                if self._letters(twice) != self._letters([*ids, *ids]):
                    raise self._dependent(
                        f"the word {word!r} has {len(ids)} tokens, but repeated {len(twice)}"
                    )
            raise self._dependent("words have different tokens in a sequence than alone")
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

    def _letters(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._plain.token_bytes.__getitem__, ids))

    def _dependent(self, problem: str) -> UnsupportedError:
        return UnsupportedError(
            f"lattices are scored word by word, but tokens of {self.address} depend on neighbouring words: {problem}; "
            "use a model with a word or SentencePiece tokenizer, or re-rank n-best lists",
            param="model",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathWeights:
    """Signed weights of a path's features; the search maximises their weighted sum.

    The new model replaces the first pass's model if `old_lm` is 0. Interpolation, w
    · new + (1 − w) · old with a language model scale s, is `lm` = s · w and
    `old_lm` = s · (1 − w).

    Attributes:
        am: weight of the acoustic score.
        old_lm: weight of the score by the first pass's language model.
        lm: weight of the log-probability by the new model, including the end of the
            sentence.
        words: weight of the number of words; positive is a bonus, negative a
            penalty.
        unk: weight of the number of tokens that are `<unk>` for the new model;
            negative is a penalty.
        phrases: weights of the features of phrases, by name.
        proposals: weights of the features of proposals, by name.

    Raises:
        InputError: a weight is out of range.
    """

    am: float = 1.0
    old_lm: float = 0.0
    lm: float = 1.0
    words: float = 0.0
    unk: float = 0.0
    phrases: Mapping[str, float] = field(default_factory=dict)
    proposals: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, weight in self.by_feature().items():
            check_range(f"weights.{name}", weight, -MAX_WEIGHT, MAX_WEIGHT)

    def by_feature(self) -> dict[str, float]:
        """Return the weight of each feature."""
        return {name: getattr(self, name) for name in PATH_FEATURES} | {
            **self.phrases,
            **self.proposals,
        }

    @classmethod
    def of(
        cls,
        given: Mapping[str, float],
        scales: Scales,
        phrases: Collection[str] = (),
        proposals: Mapping[str, float] = NO_PROPOSALS,
    ) -> Self:
        """Create weights; by default they are the scales of the lattice's file.

        Args:
            given: weights by feature.
            scales: scales of the file.
            phrases: features of phrases.
            proposals: default weights of the features of proposals, and of `unk`,
                relative to that of `lm`.

        Raises:
            InputError: a feature is unknown, or a weight is out of range.
        """
        names = dict.fromkeys((*PATH_FEATURES, *phrases, *proposals))
        unknown = next((name for name in given if name not in names), None)
        if unknown is not None:
            raise InputError.of(
                f"weights.{unknown}", f"is not a feature of a path; the features are {', '.join(names)}"
            )
        weights = {"am": scales.am, "lm": scales.lm, "words": scales.words, **given}
        unit = abs(weights["lm"]) or 1.0
        weights = {name: unit * relative for name, relative in proposals.items()} | weights
        return cls(
            **{name: weights[name] for name in PATH_FEATURES if name in weights},
            phrases={name: weights.get(name, DEFAULT_WEIGHT) for name in phrases},
            proposals={name: weights[name] for name in proposals if name not in PATH_FEATURES},
        )


PATH_FEATURES = tuple(one.name for one in fields(PathWeights) if one.name not in {"phrases", "proposals"})
"""Names of a path's features, except those of phrases and proposals."""


LatticeWeights: TypeAlias = Callable[[Scales], PathWeights]
"""Weights of a lattice's paths, given the scales of its file."""


def tuned_weights(
    weights: Mapping[str, float],
    length_exponent: float = 0.0,
    phrases: Collection[str] = (),
    proposals: Mapping[str, float] = NO_PROPOSALS,
) -> LatticeWeights:
    """Return tuned weights for paths: by default 0, or the first pass's if its order was kept.

    `phrases` are the features of phrases, `proposals` those of proposals with
    default weights; weights of others do not count.

    Raises:
        InputError: there is a length exponent.
    """
    if length_exponent:
        raise InputError.of("length_exponent", f"is {length_exponent:g}; for lattices it must be 0")
    if weights == {RANK: 1.0}:
        return lambda scales: PathWeights.of(
            {"old_lm": scales.lm, "lm": 0.0, **dict.fromkeys(phrases, 0.0)}, scales, phrases, proposals
        )
    zeros = dict.fromkeys((*PATH_FEATURES, *phrases), 0.0)
    unused = {name for name in weights if is_phrase_feature(name) or name in PROPOSED_FEATURES}
    unused -= {*phrases, *proposals}
    used = {name: weight for name, weight in weights.items() if name not in unused}
    return partial(PathWeights.of, zeros | used, phrases=phrases, proposals=proposals)


@dataclass(frozen=True, eq=False, slots=True)
class LatticeGraph:
    """L lattices with N nodes and A arcs in total.

    An added node follows each lattice's end; the arc to it is the end of the
    sentence. The level of a node is the number of arcs on the longest path to it;
    nodes of a level are not connected.

    Attributes:
        lattice_of: lattice of each node [N].
        levels: level of each node [N].
        sources: source node of each arc [A].
        targets: target node of each arc [A].
        labels: label of each arc in `LabelTokens` [A].
        own_arcs: index of each arc in its lattice; its number of arcs for the end
            of the sentence [A].
        starts: first node of each lattice [L].
        ends: node after the end of each lattice [L].
        fixed: weighted sum of each arc's features without the model [A].
        lm_weights: weight of the model's log-probabilities in each lattice [L].
        unk_weights: weight of the number of unknown tokens in each lattice [L].
        phrase_weights: weight of each feature of phrases in each lattice [L, F].
        expected: estimate of each arc's weighted sum, with the old model's scores
            for the new model's [A].
        last_use: highest level after an arc from each node; −1 for ends [N].
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
    unk_weights: Scores
    phrase_weights: Scores
    expected: Scores
    last_use: Indices

    def remainders(self) -> Scores:
        """Estimate the score of the best path from each node to the end of its lattice [N]."""
        return _best_remainders(self.sources, self.targets, self.expected, np.argsort(self.levels))


def build_graph(
    lattices: Sequence[Lattice], weights: Sequence[PathWeights], words: dict[str, int], spelling: LabelTokens
) -> LatticeGraph:
    """Join lattices into one graph.

    Args:
        lattices: at least one.
        weights: feature weights of each lattice.
        words: numbers of all words.
        spelling: tokens of the words, in this order.
    """
    counts = np.array([lattice.num_nodes + 1 for lattice in lattices])
    starts = np.cumsum(counts) - counts
    ends = starts + counts - 1
    parts = (
        _arc_columns(lattice, given, int(start), words, spelling)
        for lattice, given, start in zip(lattices, weights, starts, strict=True)
    )
    sources, targets, labels, own_arcs, fixed, expected = map(np.concatenate, zip(*parts, strict=True))
    levels = node_depths(sources, targets, int(counts.sum()))
    last_use = np.full(len(levels), -1, np.int64)
    np.maximum.at(last_use, sources, levels[targets])
    return LatticeGraph(
        lattice_of=np.repeat(np.arange(len(lattices)), counts),
        levels=levels,
        sources=sources,
        targets=targets,
        labels=labels,
        own_arcs=own_arcs,
        starts=starts,
        ends=ends,
        fixed=fixed,
        lm_weights=np.array([given.lm for given in weights]),
        unk_weights=np.array([given.unk for given in weights]),
        phrase_weights=np.array([[*given.phrases.values()] for given in weights]),
        expected=expected,
        last_use=last_use,
    )


@kernel(types.float64[::1](types.int64[::1], types.int64[::1], types.float64[::1], types.int64[::1]))
def _best_remainders(sources: Indices, targets: Indices, expected: Scores, order: Indices) -> Scores:
    """Return the best sum of arcs from each node to one without arcs [N].

    Args:
        sources: source node of each arc, ascending [A].
        targets: target node of each arc [A].
        expected: score of each arc [A].
        order: topological order of the nodes [N].
    """
    begins = np.searchsorted(sources, np.arange(len(order) + 1))
    remainders = np.zeros(len(order))
    for node in order[::-1]:
        for arc in range(begins[node], begins[node + 1]):
            found = expected[arc] + remainders[targets[arc]]
            if arc == begins[node] or found > remainders[node]:
                remainders[node] = found
    return remainders


def _arc_columns(
    lattice: Lattice, weights: PathWeights, start: int, words: dict[str, int], spelling: LabelTokens
) -> tuple[Indices, Indices, Indices, Indices, Scores, Scores]:
    """Return sources, targets, labels, own indices, fixed and expected scores of arcs and end."""
    numbers = np.array([words[word] for word in lattice.words])
    labels = np.append(numbers[lattice.labels], spelling.end)
    fixed = np.append(weights.am * lattice.am + weights.old_lm * lattice.old_lm, 0.0)
    for name, weight in weights.proposals.items() if lattice.proposals else ():
        fixed[:-1] += weight * lattice.proposed(name)
    fixed += weights.words * spelling.num_words[labels] + weights.unk * spelling.num_unknown[labels]
    return (
        start + np.append(lattice.sources, lattice.num_nodes - 1),
        start + np.append(lattice.targets, lattice.num_nodes),
        labels,
        np.arange(lattice.num_arcs + 1),
        fixed,
        fixed + weights.lm * np.append(lattice.old_lm, 0.0),
    )
