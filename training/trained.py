"""Trained models with their metrics, and a check that the rows of an n-gram model sum to 1."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.checkpoint.write import StorableModel
from models.language_model import LanguageModel
from models.ngram.model import NGramModel, NGramState
from models.vocabulary import EOS
from training.evaluation.evaluate import Context, evaluate
from training.progress import HistoryRecord, Progress
from training.recipe import Recipe
from training.texts import EncodedTexts

SUM_TOLERANCE = 1e-5
"""Maximum deviation from 1 that is attributed to rounding."""

_CONTEXTS_BY_LENGTH = 100
_BATCH = 8


def row_sum_facts(model: NGramModel) -> dict[str, Any]:
    """Sum next-token probabilities after the empty context, `<s>`, and a hundred contexts of each length.

    Returns:
        For metrics.json: the number of `contexts`, the `largest_deviation` |Σp − 1|, and `normalised`, True if
        all sums are 1 up to rounding.
    """
    automaton, worst = model.automaton, 0.0
    sampled = [np.array([0, automaton.initial])]
    for begin, end in pairwise(automaton.order_starts[:-1].tolist()):
        # [n, 1]; quantised: bytes, the lowest first [n, 3]; n may be 0
        words = automaton.words[begin:end].reshape(end - begin, *automaton.words.shape[1:] or (1,))
        is_end = (words == np.array([EOS, 0, 0])[: words.shape[1]]).all(axis=1)  # no token follows
        arcs = np.flatnonzero(~is_end) + begin
        chosen = np.linspace(0, len(arcs) - 1, min(len(arcs), _CONTEXTS_BY_LENGTH)).astype(np.int64)
        sampled.append(arcs[chosen] + 1)  # arc i leads to state i + 1
    states = np.concatenate(sampled).astype(np.int32)
    for begin in range(0, len(states), _BATCH):
        rows = np.exp(model.next_log_probs(NGramState(states[begin : begin + _BATCH])), dtype=np.float64)
        worst = max(worst, float(np.abs(rows.sum(axis=1) - 1).max()))
    return {"contexts": len(states), "largest_deviation": worst, "normalised": worst <= SUM_TOLERANCE}


Figures: TypeAlias = dict[str, dict[str, Any]]


class Trained(NamedTuple):
    """A newly trained model.

    Attributes:
        title: title of the recipe or model.
        recipe: the resolved recipe.
        model: the model.
        history: records of the neural trainer; empty for other families.
        facts: results by family, such as discounts, n-grams by order, weights.
        figures: held-out figures by split, from `Evaluation.facts`.
        seconds: wall time of training in seconds, without texts, tokenizer and figures.
        parts: parts of a mixture: newly trained or published models.
        part_figures: figures of each part of a mixture on the same texts.
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
    def context(self) -> Context:
        """Context of the figures."""
        return self.recipe.mixture.fitted_context if self.recipe.family == "mixture" else "sentence"


def part_title(part: Trained | Checkpoint) -> str:
    """Return a part's title, or the address of a published part."""
    return part.title if isinstance(part, Trained) else version_address(part.path)


def normalisation_facts(model: StorableModel[Any]) -> dict[str, Any]:
    """Measure the row sums of an unnormalised n-gram model; empty for other models."""
    if not isinstance(model, NGramModel) or model.normalised:
        return {}
    return {"normalisation": row_sum_facts(model)}


def held_out_figures(model: LanguageModel[Any], texts: EncodedTexts, *, progress: Progress) -> Figures:
    """Compute sentence-context figures on the validation text and, if given, the test text."""
    return {
        split: evaluate(model, corpus, progress=progress).facts()
        for split, corpus in {"valid": texts.valid, "test": texts.test}.items()
        if corpus is not None
    }
