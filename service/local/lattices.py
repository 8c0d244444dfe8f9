"""In-process rescoring of lattice files with a published model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from models.errors import UnsupportedParameterError
from models.files import atomic_writer
from models.lattices.files import LatticeFormat
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import Lattice
from models.lattices.rescoring import RescoredLattice, nbest_candidates, oracle_errors, rescore
from models.lattices.token_passing import LatticeSearchSettings
from models.phrases import NO_PHRASES, PhraseList
from models.reranking.candidates import CandidateList
from models.reranking.formats.format import BadLine, ReferenceLayout
from models.reranking.formats.reader import References, format_by_name
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import make_metric
from service.engine.loaded_model import LoadedModel

_BATCH_ARCS = 1 << 15
"""Number of arcs at which a batch of lattices is complete; a batch shares model calls."""

LATTICE_FORMATS: dict[str, LatticeFormat] = {"slf-lattice": "slf", "kaldi-lattice": "kaldi"}
"""Output formats of lattices."""

_TEXT = "text"


def rescore_lattices(
    loaded: LoadedModel,
    lattices: Iterable[Lattice | BadLine],
    weights: Mapping[str, float],
    search: LatticeSearchSettings,
    phrases: PhraseList = NO_PHRASES,
) -> Iterator[RescoredLattice | BadLine]:
    """Rescore lattices in batches, in order.

    Args:
        loaded: the model.
        lattices: lattices, and errors of unreadable ones, which keep their positions in the output.
        weights: weights by feature; the default of a feature is the lattice's scale.
        search: settings of the search.
        phrases: phrases that paths may contain.

    Raises:
        InvalidInputError: a weight names an unknown feature.
        UnsupportedParameterError: the model reads backward, or its tokenizer does not separate words.
    """
    if loaded.reads_backward:
        raise UnsupportedParameterError(
            f"model {loaded.address} reads from right to left; lattices are searched from left to right",
            parameter="model",
        )
    tokenizer = LabelTokenizer(loaded.tokenizer)

    def rescore_batch(items: Sequence[Lattice | BadLine]) -> Iterator[RescoredLattice | BadLine]:
        valid = [item for item in items if isinstance(item, Lattice)]
        path_weights = [PathWeights.of(weights, lattice.scales, phrases.features) for lattice in valid]
        rescored = iter(
            rescore(valid, loaded.model, tokenizer, weights=path_weights, search=search, phrases=phrases)
        )
        for item in items:
            yield next(rescored) if isinstance(item, Lattice) else item

    batch: list[Lattice | BadLine] = []
    num_arcs = 0
    for item in lattices:
        batch.append(item)
        num_arcs += item.num_arcs if isinstance(item, Lattice) else 0
        if num_arcs >= _BATCH_ARCS:
            yield from rescore_batch(batch)
            batch, num_arcs = [], 0
    yield from rescore_batch(batch)


class ReferenceComparison:
    """Word errors of lattices against optional references.

    Args:
        files: files of references.
        layout: see `References`.

    Raises:
        FormatError: a file cannot be read, or its layout differs.
    """

    def __init__(self, files: Sequence[Path], layout: ReferenceLayout | None) -> None:
        self._files = [References(path, layout=layout, usual="utterance", numbered=False) for path in files]
        self._metric = make_metric("wer")
        self._errors = np.zeros(2, np.int64)  # metric statistics of the best strings
        self._num_compared = self._num_words = self._oracle_errors = 0

    def lists(
        self, items: Iterable[RescoredLattice | BadLine], count: int
    ) -> Iterator[CandidateList | BadLine]:
        """Yield the n-best lists of lattices, with their references.

        Raises:
            FormatError: the references of a file do not match the lattices.
        """
        for item in items:
            if isinstance(item, BadLine):
                for file in self._files:
                    file.skip(item)
                yield item
                continue
            candidates = nbest_candidates(item, count)
            references = tuple(file.of(candidates) for file in self._files)
            if references:
                self._add(item.lattice, candidates.candidates[0].text, references[0])
            yield replace(candidates, references=references)

    def figures(self) -> dict[str, float]:
        """Return word error rates in per cent and the number of reference words; empty without references.

        Raises:
            FormatError: the references of a file do not match the lattices.
        """
        for file in self._files:
            file.check_all_used()
        if not self._num_compared:
            return {}
        return {
            "reference_words": self._num_words,
            "wer": float(self._metric.score(self._errors)),
            "oracle_wer": 100.0 * self._oracle_errors / max(1, self._num_words),
        }

    def _add(self, lattice: Lattice, best: str, reference: str) -> None:
        words = reference.split()
        self._num_compared += 1
        self._num_words += len(words)
        self._oracle_errors += oracle_errors(lattice, words)
        self._errors += self._metric.statistics([best], [reference])[0]


def check_output_format(name: str) -> None:
    """Check that a name is a key of `LATTICE_FORMATS`, an n-best list format, or `text`.

    Raises:
        InvalidInputError: the format does not exist.
    """
    if name not in LATTICE_FORMATS and name != _TEXT:
        format_by_name(name, to_write=True)


def write_best(lists: Iterable[CandidateList], target: Path | BinaryIO, output_format: str) -> None:
    """Write n-best lists in an n-best format, or as `text`: the id and best candidate of each list."""
    if output_format != _TEXT:
        write_lists(lists, target, output_format)
        return
    lines = (f"{item.name or ''} {item.candidates[0].text}".strip().encode() + b"\n" for item in lists)
    with atomic_writer(target) if isinstance(target, Path) else nullcontext(target.write) as write:
        for line in lines:
            write(line)
