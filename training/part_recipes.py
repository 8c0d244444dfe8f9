"""The recipes of a mixture's parts that are to be trained."""

from pathlib import Path

from models.checkpoint.versions import check_name
from models.errors import InvalidInputError
from training.recipe import Recipe, merge_tables, parse_recipe, recipe_table


def part_recipes(mixture: Recipe) -> dict[str, Recipe]:
    """The recipes of a mixture's parts that are to be trained, by title: a recipe's name, a file's without its folder.

    Raises:
        InvalidInputError: two have the same title, or one cannot be a model's name and is to be published.
    """
    parts: dict[str, Recipe] = {}
    for name in mixture.mixture.recipes:
        title = Path(name).stem
        if title in parts:
            raise InvalidInputError(
                f"mixture.recipes names two parts {title!r}; give one of them another file name",
                parameter="mixture.recipes",
            )
        if mixture.mixture.publish_parts:
            check_name(title, parameter="mixture.recipes")
        parts[title] = part_recipe(mixture, name)
    return parts


def part_recipe(mixture: Recipe, name: str) -> Recipe:
    """A part's recipe, with what the mixture's recipe sets itself laid over it; text and tokenizer are the mixture's.

    A static mixture is pruned by entropy and quantised as the one model it becomes; its parts are not.

    Raises:
        InvalidInputError: the part is itself a mixture, or no n-gram model in a static one.
    """
    changes = {
        table: getattr(mixture, table).model_dump(exclude_unset=True)
        for table in ("ngram", "neural", "train")
    }
    recipe = parse_recipe(merge_tables(recipe_table(name), {**changes, "seed": mixture.seed}), source=name)
    recipe = recipe.model_copy(update={"corpus": mixture.corpus, "tokenizer": mixture.tokenizer})
    if recipe.family == "mixture":
        raise InvalidInputError(
            f"mixture.recipes names {name!r}, which is itself a mixture", parameter="mixture.recipes"
        )
    if recipe.reading_direction == "backward":
        raise InvalidInputError(
            f"mixture.recipes names {name!r}, which reads backward; a mixture's parts read forward",
            parameter="mixture.recipes",
        )
    if mixture.mixture.kind == "static" and recipe.family != "ngram":
        raise InvalidInputError(
            f"mixture.kind is 'static', which mixes n-gram models only; {name!r} in mixture.recipes is of the "
            f"family {recipe.family}",
            parameter="mixture.recipes",
        )
    if mixture.mixture.kind == "static":
        whole = {"prune_entropy": 0.0, "quantize_bits": None}
        recipe = recipe.model_copy(update={"ngram": recipe.ngram.model_copy(update=whole)})
    return recipe
