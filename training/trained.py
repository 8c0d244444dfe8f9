"""What comes of training, whatever the family, and what is measured of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import Direction
from models.checkpoint.write import StorableModel
from models.ngram.model import NGramModel
from models.protocol import LanguageModel
from training.data import EncodedTexts
from training.evaluating.scoring import Context
from training.evaluation import evaluate, evaluation_facts
from training.mixing import version_address
from training.neural.history import HistoryRecord
from training.normalisation import measure_row_sums
from training.progress import Progress
from training.recipe import Recipe

Figures: TypeAlias = dict[str, dict[str, Any]]


class Trained(NamedTuple):
    """A model fresh from training.

    Attributes:
        title: the recipe or model it came from.
        recipe: the recipe, resolved.
        model: the model.
        history: the neural trainer's records; empty for others.
        facts: what the family wants remembered: discounts, n-grams by order, weights.
        figures: held-out figures by split, as `evaluation.summary` has them.
        seconds: wall time of training, texts, tokenizer and figures aside.
        parts: of a mixture: models trained for it, or published ones.
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
        """In which order the model reads a text."""
        return self.recipe.reading_direction

    @property
    def context(self) -> Context:
        """In which context the figures are."""
        return self.recipe.mixture.fitted_context if self.recipe.family == "mixture" else "sentence"


def part_title(part: Trained | Checkpoint) -> str:
    """What to call a part: its recipe, or its address."""
    return part.title if isinstance(part, Trained) else version_address(part.path)


def normalisation_facts(model: StorableModel[Any]) -> dict[str, Any]:
    """How far the probabilities of an n-gram model that does not sum to 1 are off; nothing of others."""
    if not isinstance(model, NGramModel) or model.normalised:
        return {}
    return {"normalisation": measure_row_sums(model).as_facts()}


def held_out_figures(model: LanguageModel[Any], texts: EncodedTexts, *, progress: Progress) -> Figures:
    """Sentence-context figures on the validation text and, if there is one, the test text."""
    return {
        split: evaluation_facts(evaluate(model, corpus, progress=progress))
        for split, corpus in {"valid": texts.valid, "test": texts.test}.items()
        if corpus is not None
    }
