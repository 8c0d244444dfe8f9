"""Train what a recipe describes, alone or as one of several processes."""

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
    """Train what the recipe says.

    Args:
        title: what to call it.
        recipe: what to do.
        tokenizer: the one that encoded the texts.
        texts: what to learn from, decide by and report on.
        published: loaded checkpoints, the parts of a mixture that exist already.
        device: `cpu` or `cuda`; n-gram models are estimated on the CPU.
        progress: told of every stage.
        runs: where trainings of networks are saved, to be resumed.
    """
    if recipe.family != "mixture":
        return train_single(title, recipe, tokenizer, texts, device=device, progress=progress, runs=runs)
    return train_mixture(
        title, recipe, tokenizer, texts, published=published, device=device, progress=progress, runs=runs
    )


def train_as_follower(
    title: str, recipe: Recipe, tokenizer: Tokenizer, texts: EncodedTexts, *, device: str, runs: ResumableRuns
) -> None:
    """What the other ones of several processes do while the first one trains: their share of the networks."""
    for name, part in network_recipes(title, recipe).items():
        read = in_model_direction(texts, part)
        fit_network(name, part, tokenizer.vocabulary, read, device=device, progress=SILENT, runs=runs)


def network_recipes(title: str, recipe: Recipe) -> dict[str, Recipe]:
    """The networks that a recipe trains, itself or as parts, by title, in order."""
    recipes = part_recipes(recipe) if recipe.family == "mixture" else {title: recipe}
    return {name: part for name, part in recipes.items() if part.family == "neural"}
