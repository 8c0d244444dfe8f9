"""In-process rescoring of lattice files with a published model."""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np

from models.arrays import Int64s
from models.errors import InputError, UnsupportedParameterError
from models.files import atomic_writer, split_words
from models.lattices.files import LatticeFormat
from models.lattices.graph import PATH_FEATURES, LabelTokenizer, PathWeights
from models.lattices.lattice import Lattice, Scales
from models.lattices.rescoring import (
    RescoredLattice,
    first_pass_text,
    nbest_candidates,
    oracle_errors,
    rescore,
)
from models.lattices.token_passing import LatticeSearchSettings
from models.phrases import NO_PHRASES, PhraseList, is_phrase_feature
from models.reranking.candidates import CandidateList
from models.reranking.features import RANK
from models.reranking.formats.writer import write_lists
from models.reranking.metrics import make_metric
from models.text_model import TextModel
from service.local.ask import tell_scores

_BATCH_ARCS = 1 << 15
"""Arcs at which a batch of lattices is complete; a batch shares model calls."""

LATTICE_FORMATS: dict[str, LatticeFormat] = {"slf-lattice": "slf", "kaldi-lattice": "kaldi"}
"""Output formats of lattices."""

TEXT = "text"
"""Output format of the id and best string of each lattice."""

LatticeWeights: TypeAlias = Callable[[Scales], PathWeights]
"""Function from the scales of a lattice's file to the weights of its paths."""


def tuned_weights(
    weights: Mapping[str, float], length_exponent: float = 0.0, phrases: Collection[str] = ()
) -> LatticeWeights:
    """Return tuned weights for paths: by default 0, or the first pass's if its order was kept.

    `phrases` are the features of phrases; weights of others do not count.

    Raises:
        InputError: there is a length exponent.
    """
    if length_exponent:
        raise InputError.of("length_exponent", f"is {length_exponent:g}; for lattices it must be 0")
    if weights == {RANK: 1.0}:
        return partial(PathWeights.first_pass, phrases=phrases)
    zeros = dict.fromkeys((*PATH_FEATURES, *phrases), 0.0)
    used = {
        name: weight for name, weight in weights.items() if name in phrases or not is_phrase_feature(name)
    }
    return partial(PathWeights.of, zeros | used, phrases=phrases)


def rescore_lattices(
    loaded: TextModel,
    lattices: Iterable[Lattice],
    weights: LatticeWeights,
    search: LatticeSearchSettings,
    phrases: PhraseList = NO_PHRASES,
) -> Iterator[RescoredLattice]:
    """Rescore lattices in batches, in order.

    Raises:
        UnsupportedParameterError: the model reads backward, or its tokenizer does not separate words.
    """
    if loaded.reads_backward:
        raise UnsupportedParameterError.of(
            "model", f"{loaded.address} reads from right to left; lattices are searched from left to right"
        )
    model, tokenizer = loaded.model, LabelTokenizer(loaded.tokenizer)
    batch, num_arcs = list[Lattice](), 0
    for lattice in itertools.chain(lattices, [None]):
        if lattice is not None:
            batch.append(lattice)
            num_arcs += lattice.num_arcs
        if lattice is None or num_arcs >= _BATCH_ARCS:
            of_paths = [weights(one.scales) for one in batch]
            yield from rescore(batch, model, tokenizer, weights=of_paths, search=search, phrases=phrases)
            batch, num_arcs = [], 0


def write_best(
    lattices: Iterable[RescoredLattice], count: int, target: Path | BinaryIO, output_format: str
) -> None:
    """Write each lattice's `count` best strings in an n-best format; as `text`, id and best string.

    With references, the word error rates of the first pass's and the best strings, and of the oracle paths, are
    printed to standard error.
    """
    metric = make_metric("wer")
    # per lattice: errors and words of first, best and oracle strings
    errors = list[list[Int64s]]()

    def counted() -> Iterator[CandidateList]:
        for rescored in lattices:
            one = nbest_candidates(rescored, count)
            if one.references:
                texts = [first_pass_text(rescored.lattice), one.candidates[0].text]
                of_texts = metric.statistics(texts, one.references)
                right = map(split_words, one.references)
                oracle = min((oracle_errors(rescored.lattice, words), -len(words)) for words in right)
                errors.append([*of_texts, np.abs(oracle)])
            yield one

    if output_format == TEXT:
        with atomic_writer(target) if isinstance(target, Path) else nullcontext(target.write) as write:
            for item in counted():
                write(f"{item.name or ''} {item.candidates[0].text}".strip().encode() + b"\n")
    else:
        write_lists(counted(), target, output_format)
    if errors:
        tell_scores(metric, np.sum(errors, axis=0), f"{len(errors):,} lattices", "rescored")
