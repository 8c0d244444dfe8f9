"""Train a model by a recipe, alone or as one of several processes."""

from collections.abc import Sequence

from models.checkpoint.load import Checkpoint
from models.tokenizers import Tokenizer
from training.mixture import part_recipes, train_mixture
from training.progress import SILENT, Progress
from training.recipe import Recipe
from training.single_model import ResumableRuns, fit_network, in_model_direction, train_single
from training.texts import EncodedTexts
from training.trained import Trained


def train(
    title: str,
    recipe: Recipe,
    tokenizer: Tokenizer,
    texts: EncodedTexts,
    *,
    published: Sequence[Checkpoint] = (),
    device: str,
    progress: Progress,
    runs: ResumableRuns | None = None,
) -> Trained:
    """Train a model by a recipe.

    Args:
        title: of the model.
        recipe: of the model.
        tokenizer: of the texts.
        texts: for training, validation and test.
        published: loaded checkpoints of a mixture's published parts.
        device: `cpu` or `cuda`; n-gram models are estimated on the CPU.
        progress: reports every stage.
        runs: saved states of networks, for resuming.
    """
    if recipe.family != "mixture":
        return train_single(title, recipe, tokenizer, texts, device=device, progress=progress, runs=runs)
    return train_mixture(
        title, recipe, tokenizer, texts, published=published, device=device, progress=progress, runs=runs
    )


def train_as_follower(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, device: str, runs: ResumableRuns
) -> None:
    """Train the networks of a recipe as a process other than rank 0, which calls `train`."""
    for name, part in network_recipes(title, recipe).items():
        ordered = in_model_direction(texts, part)
        fit_network(name, part, tokenizer.vocabulary, ordered, device=device, progress=SILENT, runs=runs)


def network_recipes(title: str, recipe: Recipe) -> dict[str, Recipe]:
    """Return the recipes of the networks that a recipe trains, itself or as parts, by title, in order."""
    recipes = part_recipes(recipe) if recipe.family == "mixture" else {title: recipe}
    return {name: part for name, part in recipes.items() if part.family == "neural"}
