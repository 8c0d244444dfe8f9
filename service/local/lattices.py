"""Rescore files of lattices with a published model in this process."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from models.errors import UnsupportedParameterError
from models.files import atomic_writer
from models.language_model import LanguageModel
from models.lattices.files import LatticeFormat, read_lattices, write_lattices
from models.lattices.graph import LabelTokenizer, PathWeights
from models.lattices.lattice import NON_WORD_LABELS, Lattice, SymbolTable
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

Source = tuple[Path | BinaryIO, str]
"""A file or stream, and its name in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeFiles:
    """Format of files of lattices.

    Attributes:
        form: of the files.
        symbols: Kaldi's words by number; None if the files have the words themselves.
        no_words: labels that are not words, besides the usual ones.
    """

    form: LatticeFormat
    symbols: SymbolTable | None = None
    no_words: Collection[str] = ()

    def read(self, sources: Iterable[Source]) -> Iterator[Lattice | BadLine]:
        """Read the lattices of files, one file after the other.

        Raises:
            FormatError: a file is missing or damaged.
        """
        silent = NON_WORD_LABELS.union(self.no_words)
        for source, name in sources:
            yield from read_lattices(source, self.form, name=name, symbols=self.symbols, no_words=silent)


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


class LatticeOutput:
    """Writer of rescored lattices or n-best lists.

    Args:
        target: a file, a folder for formats of several files, or a stream.
        output_format: of n-best lists; `text` for id and best words; or a key of `LATTICE_FORMATS`.
        symbols: Kaldi's words by number.

    Attributes:
        lattice_format: of lattices to be written; None for lists.

    Raises:
        InvalidInputError: there is no such format.
    """

    def __init__(self, target: Path | BinaryIO, output_format: str, symbols: SymbolTable | None) -> None:
        self.lattice_format = LATTICE_FORMATS.get(output_format)
        self._target, self._format, self._symbols = target, output_format, symbols
        if self.lattice_format is None and output_format != _TEXT:
            format_by_name(output_format)

    def write_lattices(self, rescored: Iterable[RescoredLattice]) -> None:
        """Write lattices with their new scores."""
        lattices = (result.as_lattice() for result in rescored)
        write_lattices(lattices, self._target, self.lattice_format or "slf", symbols=self._symbols)

    def write_lists(self, lists: Iterable[CandidateList]) -> None:
        """Write n-best lists, or the best candidate of each as text."""
        if self._format != _TEXT:
            write_lists(lists, self._target, self._format)
            return
        lines = (f"{item.name or ''} {item.candidates[0].text}".strip().encode() + b"\n" for item in lists)
        if isinstance(self._target, Path):
            with atomic_writer(self._target) as write:
                for line in lines:
                    write(line)
        else:
            self._target.writelines(lines)
