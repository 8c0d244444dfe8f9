"""Proposals in lattices: other words than those of the best texts, as further arcs.

A lattice is rescored; its best texts are read by the proposers of re-ranking; each
proposal becomes a path of arcs from the node before the words that it replaces to
the node after them, with their scores; and the lattice is rescored with these arcs.
So the search decides about proposals as it does about the alternatives of the first
pass, and proposals that do not overlap combine.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from models.calls import Work
from models.files import split_words
from models.lattices.graph import LabelTokenizer, LatticeWeights
from models.lattices.lattice import NO_VARIANT, NO_WORD, ArcColumns, Indices, Lattice, build_lattice
from models.lattices.rescoring import LatticePath, RescoredLattice, find_nbest, rescore_in_steps
from models.lattices.token_passing import LatticeSearch
from models.phrases import NO_PHRASES, PhraseList
from models.reranking.candidates import Candidate, CandidateList
from models.reranking.proposals import DOUBT, MAX_SOURCES, Proposal, Proposer
from models.scoring.proposed_candidates import proposals_for
from models.text_model import TextModel

_NUM_TEXTS = 20
"""Best texts of a lattice; how many have a word tells the doubt in it."""


def rescore_with_proposals(
    lattices: Sequence[Lattice],
    loaded: TextModel,
    *,
    weights: LatticeWeights,
    search: LatticeSearch,
    phrases: PhraseList = NO_PHRASES,
    proposers: Sequence[Proposer] = (),
) -> Work[Any, list[RescoredLattice]]:
    """Rescore several lattices together, with arcs for proposals, giving way to other computations.

    Args:
        lattices: any number; results are independent.
        loaded: a model that reads forward.
        weights: feature weights, by the scales of a lattice.
        search: settings of the search.
        phrases: phrases in paths; their features have weights.
        proposers: sources of proposals.

    Raises:
        UnsupportedError: the model reads backward, or tokens of words depend on
            adjacent words.
    """
    speller = loaded.derived(LabelTokenizer.of)

    def rescored(some: Sequence[Lattice]) -> Work[Any, list[RescoredLattice]]:
        of_paths = [weights(one.scales) for one in some]
        return rescore_in_steps(some, loaded.model, speller, weights=of_paths, search=search, phrases=phrases)

    found = yield from rescored(lattices)
    if not proposers:
        return found
    extended = list[tuple[int, Lattice]]()
    for number, one in enumerate(found):
        arcs = yield from _proposed_arcs(one, proposers)
        if arcs:
            extended.append((number, _with_arcs(one.lattice, arcs)))
            yield None
    numbers = [number for number, _ in extended]
    again = yield from rescored([lattice for _, lattice in extended])
    for number, one in zip(numbers, again, strict=True):
        found[number] = one
    return found


class _ProposedArcs(NamedTuple):
    """A proposal, and the arcs of the first pass for the words that it replaces."""

    proposal: Proposal
    replaced: Indices


def _proposed_arcs(
    rescored: RescoredLattice, proposers: Sequence[Proposer]
) -> Work[Any, list[_ProposedArcs]]:
    """Find the proposals for the best texts of a lattice, but for words that it has there."""
    doubts = DOUBT in rescored.weights.proposals
    paths = yield from find_nbest(rescored, _NUM_TEXTS if doubts else MAX_SOURCES)
    texts = CandidateList(None, "", tuple(Candidate(path.text) for path in paths))
    sources = yield from proposals_for(texts, proposers, doubts=doubts)
    lattice, found = rescored.lattice, dict[tuple[int, int, str], _ProposedArcs]()
    for path, source in zip(paths, sources, strict=False):
        for one in _arcs_of_path(rescored, path, source.proposals):
            begin, end = int(lattice.sources[one.replaced[0]]), int(lattice.targets[one.replaced[-1]])
            own = np.flatnonzero((lattice.sources == begin) & (lattice.targets == end))
            if one.proposal.written not in {lattice.words[label] for label in lattice.labels[own]}:
                found.setdefault((begin, end, one.proposal.written), one)
    return [*found.values()]


def _arcs_of_path(
    rescored: RescoredLattice, path: LatticePath, proposals: Sequence[Proposal]
) -> Iterator[_ProposedArcs]:
    arcs = rescored.tokens.edges.arcs[path.edges]
    arcs = arcs[arcs < rescored.lattice.num_arcs]  # without the end of the sentence
    words = np.flatnonzero(rescored.lattice.labels[arcs] != NO_WORD)
    for one in proposals:
        replaced = arcs[words[one.begin] : words[one.end - 1] + 1]
        heard = " ".join(
            rescored.lattice.words[label] for label in rescored.lattice.labels[replaced] if label
        )
        yield _ProposedArcs(one._replace(heard=heard), replaced)


def _with_arcs(lattice: Lattice, proposed: Sequence[_ProposedArcs]) -> Lattice:
    """Return a lattice with arcs of proposals; the first of each has the scores of those replaced."""
    sources, targets = lattice.sources.tolist(), lattice.targets.tolist()
    words = [lattice.words[label] for label in lattice.labels.tolist()]
    am, old_lm, times = lattice.am.tolist(), lattice.old_lm.tolist(), lattice.times.tolist()
    alignments = list(lattice.alignments) or [""] * lattice.num_arcs
    proposals = dict[int, Proposal]()
    for proposal, replaced in proposed:
        written = split_words(proposal.written) or [""]
        begin, end = int(lattice.sources[replaced[0]]), int(lattice.targets[replaced[-1]])
        between = range(len(times), len(times) + len(written) - 1)
        times += np.linspace(times[begin], times[end], len(written) + 1)[1:-1].tolist()
        proposals[len(sources)] = proposal
        sources += [begin, *between]
        targets += [*between, end]
        words += written
        rest = [0.0] * len(between)
        am += [float(lattice.am[replaced].sum()), *rest]
        old_lm += [float(lattice.old_lm[replaced].sum()), *rest]
        alignments += ["_".join(filter(None, (alignments[arc] for arc in replaced))), *[""] * len(between)]
    variants = np.append(lattice.variants, np.full(len(sources) - lattice.num_arcs, NO_VARIANT))
    columns = ArcColumns(
        np.array(sources), np.array(targets), words, np.array(am), np.array(old_lm), variants, alignments
    )
    return build_lattice(
        columns,
        name=lattice.name,
        start=0,
        end=lattice.num_nodes - 1,
        times=np.array(times),
        scales=lattice.scales,
        references=lattice.references,
        proposals=proposals,
    )
