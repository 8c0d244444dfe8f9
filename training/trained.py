"""Trained models with their metrics, and whether the rows of an n-gram model sum to 1."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Direction, version_address
from models.checkpoint.write import StorableModel
from models.language_model import LanguageModel
from models.ngram.model import NGramModel, NGramState
from models.vocabulary import EOS
from training.evaluation.evaluate import Context, evaluate, evaluation_facts
from training.progress import HistoryRecord, Progress
from training.recipe import Recipe
from training.texts import EncodedTexts

SUM_TOLERANCE = 1e-5
"""Deviations from 1 up to this are rounding."""

_CONTEXTS_BY_LENGTH = 100
_BATCH = 8


class RowSums(NamedTuple):
    """Sums of the next-token probabilities after sampled contexts.

    Attributes:
        contexts: number of contexts.
        largest_deviation: the largest |Σp − 1|.
    """

    contexts: int
    largest_deviation: float

    @property
    def normalised(self) -> bool:
        """Whether all sums are 1 up to rounding."""
        return self.largest_deviation <= SUM_TOLERANCE

    def as_facts(self) -> dict[str, Any]:
        """Return the figures for metrics.json."""
        return {**self._asdict(), "normalised": self.normalised}


def measure_row_sums(model: NGramModel) -> RowSums:
    """Sum next-token probabilities after the empty context, `<s>`, and a hundred contexts of each length."""
    states = np.concatenate([[0, model.automaton.initial], *_sample_states(model)]).astype(np.int32)
    worst = 0.0
    for begin in range(0, len(states), _BATCH):
        rows = np.exp(model.next_log_probs(NGramState(states[begin : begin + _BATCH])), dtype=np.float64)
        worst = max(worst, float(np.abs(rows.sum(axis=1) - 1).max()))
    return RowSums(len(states), worst)


def _sample_states(model: NGramModel) -> Iterator[npt.NDArray[np.int64]]:
    """Yield evenly spread states of each length, except those after `</s>`, which nothing follows."""
    automaton = model.automaton
    for begin, end in pairwise(automaton.order_starts[:-1].tolist()):
        arcs = np.flatnonzero(~_is_end(automaton.words[begin:end])) + begin
        chosen = np.linspace(0, len(arcs) - 1, min(len(arcs), _CONTEXTS_BY_LENGTH)).astype(np.int64)
        yield arcs[chosen] + 1  # arc i leads to state i + 1


def _is_end(words: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.bool_]:
    """Return whether each word is `</s>` [n]; a quantised model's words are little-endian bytes [n, 3]."""
    ends: npt.NDArray[np.bool_]
    ends = words == EOS if words.ndim == 1 else np.all(words == np.array([EOS, 0, 0], np.uint8), axis=1)
    return ends


Figures: TypeAlias = dict[str, dict[str, Any]]


class Trained(NamedTuple):
    """A newly trained model.

    Attributes:
        title: of the recipe or model.
        recipe: the recipe, resolved.
        model: the model.
        history: the neural trainer's records; empty for other families.
        facts: by family: discounts, n-grams by order, weights.
        figures: held-out figures by split, as `evaluation_facts` returns them.
        seconds: wall time of training, without texts, tokenizer and figures.
        parts: of a mixture: models trained for it, or published models.
        part_figures: of a mixture: each part's figures on the same texts.
    """

    title: str
    recipe: Recipe
    model: StorableModel[Any]
    history: Sequence[HistoryRecord]
    facts: dict[str, Any]
    figures: Figures
    seconds: float
    parts: "Sequence[Trained | Checkpoint]" = ()
    part_figures: Sequence[Figures] = ()

    @property
    def direction(self) -> Direction:
        """The model's reading direction."""
        return self.recipe.reading_direction

    @property
    def context(self) -> Context:
        """The context of the figures."""
        return self.recipe.mixture.fitted_context if self.recipe.family == "mixture" else "sentence"


def part_title(part: Trained | Checkpoint) -> str:
    """Return a part's title, or the address of a published part."""
    return part.title if isinstance(part, Trained) else version_address(part.path)


def normalisation_facts(model: StorableModel[Any]) -> dict[str, Any]:
    """Measure the row sums of an unnormalised n-gram model; empty for other models."""
    if not isinstance(model, NGramModel) or model.normalised:
        return {}
    return {"normalisation": measure_row_sums(model).as_facts()}


def held_out_figures(model: LanguageModel[Any], texts: EncodedTexts, *, progress: Progress) -> Figures:
    """Compute sentence-context figures on the validation text and, if given, the test text."""
    return {
        split: evaluation_facts(evaluate(model, corpus, progress=progress))
        for split, corpus in {"valid": texts.valid, "test": texts.test}.items()
        if corpus is not None
    }
