"""Rescore files of lattices with a published model in this process."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from models.errors import UnsupportedParameterError
from models.files import atomic_writer
from models.language_model import LanguageModel
from models.lattices.files import LatticeFormat
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import Lattice
from models.lattices.rescoring import RescoredLattice, nbest_candidates, oracle_path, rescore
from models.lattices.token_passing import LatticeSearchSettings
from models.reranking.candidates import CandidateList
from models.reranking.formats.format import BadLine, ReferenceLayout
from models.reranking.formats.reader import References, format_by_name
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import make_metric
from service.engine.loaded_model import LoadedModel

_BATCH_ARCS = 1 << 15
"""Number of arcs up to which lattices are searched together, so that they share calls of the model."""

LATTICE_FORMATS: dict[str, LatticeFormat] = {"slf-lattice": "slf", "kaldi-lattice": "kaldi"}
"""Output formats that are lattices."""

_TEXT = "text"


def rescore_lattices(
    loaded: LoadedModel,
    lattices: Iterable[Lattice | BadLine],
    weights: Mapping[str, float],
    search: LatticeSearchSettings,
) -> Iterator[RescoredLattice | BadLine]:
    """Rescore lattices in batches, in order.

    Args:
        loaded: the model.
        lattices: errors of unreadable ones keep their positions in the output.
        weights: by feature; without a value, the lattice's own.
        search: settings of the search.

    Raises:
        InvalidInputError: a weight names an unknown feature.
        UnsupportedParameterError: the model reads backward, or its tokenizer does not separate words.
    """
    if loaded.reads_backward:
        raise UnsupportedParameterError(
            f"model {loaded.address} reads from right to left; lattices are walked from left to right",
            parameter="model",
        )
    tokenizer = LabelTokenizer(loaded.tokenizer)
    batch: list[Lattice | BadLine] = []
    num_arcs = 0
    for item in lattices:
        batch.append(item)
        num_arcs += item.num_arcs if isinstance(item, Lattice) else 0
        if num_arcs >= _BATCH_ARCS:
            yield from _rescore_batch(loaded.model, tokenizer, batch, weights, search)
            batch, num_arcs = [], 0
    yield from _rescore_batch(loaded.model, tokenizer, batch, weights, search)


def _rescore_batch(
    model: LanguageModel[Any],
    tokenizer: LabelTokenizer,
    items: Sequence[Lattice | BadLine],
    weights: Mapping[str, float],
    search: LatticeSearchSettings,
) -> Iterator[RescoredLattice | BadLine]:
    lattices = [item for item in items if isinstance(item, Lattice)]
    path_weights = [PathWeights.of(weights, lattice.scales) for lattice in lattices]
    rescored = iter(rescore(lattices, model, tokenizer, weights=path_weights, search=search))
    for item in items:
        yield next(rescored) if isinstance(item, Lattice) else item


class ReferenceComparison:
    """Word errors of lattices against references, if there are any.

    Args:
        files: of references.
        layout: see `References`.

    Raises:
        FormatError: a file cannot be read, or its layout differs.
    """

    def __init__(self, files: Sequence[Path], layout: ReferenceLayout | None) -> None:
        self._files = [References(path, layout=layout, usual="utterance", numbered=False) for path in files]
        self._num_lattices = self._num_bad = self._num_words = self._oracle_errors = 0
        self._best: list[tuple[str, str]] = []

    def lists(
        self, items: Iterable[RescoredLattice | BadLine], count: int
    ) -> Iterator[CandidateList | BadLine]:
        """Yield the n-best lists of lattices, with their references.

        Raises:
            FormatError: a file's references are not those of the lattices.
        """
        for item in items:
            if isinstance(item, BadLine):
                self._num_lattices += item.loses_list
                self._num_bad += 1
                yield item
                continue
            candidates = nbest_candidates(item, count)
            references = tuple(file.of(candidates, self._num_lattices) for file in self._files)
            self._num_lattices += 1
            if references:
                self._add(item.lattice, candidates, references[0])
            yield replace(candidates, references=references)

    def figures(self) -> dict[str, float]:
        """Return word error rates in per cent and the number of reference words; empty without references.

        Raises:
            FormatError: a file of references does not belong to the lattices.
        """
        for file in self._files:
            file.check_all_used(self._num_lattices, self._num_bad)
        if not self._best:
            return {}
        metric = make_metric("wer")
        statistics = sum(metric.statistics([text], [reference])[0] for text, reference in self._best)
        return {
            "reference_words": self._num_words,
            "wer": float(metric.score(statistics)),
            "oracle_wer": 100.0 * self._oracle_errors / max(1, self._num_words),
        }

    def _add(self, lattice: Lattice, candidates: CandidateList, reference: str) -> None:
        oracle = oracle_path(lattice, reference)
        self._num_words += oracle.reference_words
        self._oracle_errors += oracle.errors
        self._best.append((candidates.candidates[0].text, reference))


def check_output_format(name: str) -> None:
    """Refuse a name that is no key of `LATTICE_FORMATS`, no format of n-best lists, and not `text`.

    Raises:
        InvalidInputError: there is no such format.
    """
    if name not in LATTICE_FORMATS and name != _TEXT:
        format_by_name(name)


def write_best(lists: Iterable[CandidateList], target: Path | BinaryIO, output_format: str) -> None:
    """Write n-best lists in a format for them, or as `text`: the id and the best candidate of each."""
    if output_format != _TEXT:
        write_lists(lists, target, output_format)
        return
    lines = (f"{item.name or ''} {item.candidates[0].text}".strip().encode() + b"\n" for item in lists)
    if isinstance(target, Path):
        with atomic_writer(target) as write:
            for line in lines:
                write(line)
    else:
        target.writelines(lines)
