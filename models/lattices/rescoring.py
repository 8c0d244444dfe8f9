"""Rescoring lattices with a language model: from word lattices to graphs of tokens, which hold the new scores."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.lattices.connecting import ArcColumns, build_lattice, index_ranges
from models.lattices.joined import LatticeGraph, build_graph, number_words
from models.lattices.lattice import NO_VARIANT, Indices, Lattice, Scales, Scores
from models.lattices.spelling import LabelTokenizer, LabelTokens
from models.lattices.token_passing import LatticeSearchSettings, pass_tokens
from models.lattices.tokens import TokenEdges, TokenGraph
from models.lattices.weights import PathWeights
from models.ngram.model import NGramModel
from models.protocol import LanguageModel


@dataclass(frozen=True, eq=False, slots=True)
class RescoredLattice:
    """The graph of T tokens in which the paths of a lattice have their new scores.

    Token 0 is at the start. The last one is behind the end; the ways to it have the lattice's number of arcs in the
    place of an arc, and the log-probability of the end of the sentence.

    Attributes:
        lattice: what was rescored.
        weights: of its features.
        tokens: of the graph; nodes, arcs and tokens are numbered as in this lattice alone.
        unknown: tokens that are `<unk>` to the model in each of the lattice's words, and 0 for the sentence's end.
    """

    lattice: Lattice
    weights: PathWeights
    tokens: TokenGraph
    unknown: Indices

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.tokens.nodes)

    def labels(self) -> Indices:
        """The label of each way in the lattice's words [E]; the end of the sentence has none."""
        return np.append(self.lattice.labels, 0)[self.tokens.edges.arcs]

    def features(self) -> dict[str, Scores]:
        """Each way's features by name [E], those that `Weights` weighs."""
        arcs, labels = self.tokens.edges.arcs, self.labels()
        return {
            "am": np.append(self.lattice.am, 0.0)[arcs],
            "old_lm": np.append(self.lattice.old_lm, 0.0)[arcs],
            "lm": self.tokens.edges.log_probs,
            "words": (labels > 0).astype(np.float64),
            "unk": self.unknown[labels].astype(np.float64),
        }

    def as_lattice(self) -> Lattice:
        """The tokens as a lattice, whose scores and scales weigh its paths as they were weighed here.

        The language model's score of an arc is what the new and the old one give together, penalties of unknown
        words included.
        """
        tokens, lattice, weights = self.tokens, self.lattice, self.weights
        arcs, labels, features = tokens.edges.arcs, self.labels(), self.features()
        scale = weights.lm + weights.old_lm
        lm = features["lm"] * weights.lm + features["old_lm"] * weights.old_lm + features["unk"] * weights.unk
        words = lattice.words
        alignments = (*lattice.alignments, "") if lattice.alignments else ()
        variants = None if lattice.variants is None else np.append(lattice.variants, NO_VARIANT)[arcs]
        columns = ArcColumns(
            tokens.edges.parents,
            np.repeat(np.arange(self.num_tokens), np.diff(tokens.offsets)),
            [words[label] for label in labels.tolist()],
            features["am"],
            lm / scale if scale else lm,
            () if variants is None else variants,
            [alignments[arc] for arc in arcs.tolist()] if alignments else (),
        )
        return build_lattice(
            columns,
            name=lattice.name,
            start=0,
            end=self.num_tokens - 1,
            times=np.append(lattice.times, lattice.times[-1])[tokens.nodes],
            scales=Scales(weights.am, scale or 1.0, weights.words),
        )


def rescore(
    lattices: Sequence[Lattice],
    model: LanguageModel[Any],
    speller: LabelTokenizer,
    *,
    weights: Sequence[PathWeights],
    search: LatticeSearchSettings,
) -> list[RescoredLattice]:
    """Rescore lattices with a model, all of them together.

    Args:
        lattices: any number; what one of them gets does not depend on the others.
        model: of any family; it reads from left to right.
        speller: of the model's tokenizer.
        weights: of the features of each lattice.
        search: how thoroughly; without a beam and with no more tokens to a node than allowed, nothing is lost where
            the model's states tell which ways have the same future.

    Raises:
        UnsupportedParameterError: the tokens of words depend on what stands beside them.
    """
    if not lattices:
        return []
    words = number_words(lattices)
    spelling = speller.label_tokens(list(words))
    joined = build_graph(lattices, weights, words, spelling)
    graphs = split_graph(_pass_lattice_tokens(model, joined, spelling, search), joined)
    return [
        RescoredLattice(lattice, weighing, graph, _unknown_counts(lattice, words, spelling))
        for lattice, weighing, graph in zip(lattices, weights, graphs, strict=True)
    ]


def _pass_lattice_tokens(
    model: LanguageModel[Any], joined: LatticeGraph, spelling: LabelTokens, search: LatticeSearchSettings
) -> TokenGraph:
    if isinstance(model, NGramModel):
        from models.lattices.ngram_walk import (
            pass_ngram_tokens,  # compiled, so loaded only where it is needed
        )

        return pass_ngram_tokens(model, joined, spelling, search)
    return pass_tokens(model, joined, spelling, search)


def _unknown_counts(lattice: Lattice, words: dict[str, int], spelling: LabelTokens) -> Indices:
    return spelling.num_unknown[[words[word] for word in lattice.words]]


def split_graph(graph: TokenGraph, joined: LatticeGraph) -> list[TokenGraph]:
    """The tokens of each lattice, numbered as if it had been walked alone."""
    owners = joined.lattice_of[graph.nodes]
    order = np.argsort(owners, kind="stable")
    numbers = np.empty(len(order), dtype=np.int64)
    firsts = np.searchsorted(owners[order], np.arange(len(joined.starts) + 1))
    numbers[order] = np.arange(len(order)) - firsts[owners[order]]
    answers = []
    for lattice, (begin, end) in enumerate(itertools.pairwise(firsts.tolist())):
        tokens = order[begin:end]
        counts = graph.offsets[tokens + 1] - graph.offsets[tokens]
        ways = graph.edges.select(index_ranges(graph.offsets[tokens], graph.offsets[tokens + 1]))
        own = TokenEdges(numbers[ways.parents], joined.own_arcs[ways.arcs], ways.log_probs, ways.scores)
        offsets = np.concatenate([[0], np.cumsum(counts)])
        nodes = graph.nodes[tokens] - joined.starts[lattice]
        answers.append(TokenGraph(nodes, graph.forward[tokens], offsets, own))
    return answers
