"""Keys that were set and would do nothing: better refused than believed."""

from typing import TYPE_CHECKING

from models.errors import InvalidInputError
from training.ngram.smoothing.choice import SMOOTHING_OF_KEY

if TYPE_CHECKING:
    from training.recipe import Recipe

_STATIC_MIXTURE_KEYS = frozenset({"prune_entropy", "quantize_bits"})


def refuse_unused_keys(recipe: "Recipe", *, source: str) -> None:
    """Check that every key that is set in the tables that count has something to act on.

    What a mixture sets for its parts is checked with each part.

    Raises:
        InvalidInputError: one has not; the message names it and what it acts on.
    """
    if recipe.cache.model_fields_set and not recipe.mixture.cache:
        key = min(recipe.cache.model_fields_set)
        raise InvalidInputError(
            f"recipe {source}: cache.{key} acts with mixture.cache=true only, given {getattr(recipe.cache, key)}",
            parameter=f"cache.{key}",
        )
    if recipe.direction is not None:
        _check_direction_key(recipe, source)
    if recipe.family == "ngram":
        _check_smoothing_keys(recipe, source)
    elif recipe.family == "neural":
        _check_network_keys(recipe, source)
    elif recipe.family == "mixture" and not recipe.mixture.recipes:
        _check_published_part_keys(recipe, source)


def _check_direction_key(recipe: "Recipe", source: str) -> None:
    if recipe.family == "mixture":
        raise InvalidInputError(
            f"recipe {source}: direction acts on the families ngram and neural, a mixture's parts read forward, "
            f"given {recipe.direction}",
            parameter="direction",
        )
    if "direction" in recipe.ngram.model_fields_set and recipe.ngram.direction != recipe.direction:
        raise InvalidInputError(
            f"recipe {source}: ngram.direction is {recipe.ngram.direction}, but direction is {recipe.direction}; "
            "set one of them",
            parameter="direction",
        )


def _check_network_keys(recipe: "Recipe", source: str) -> None:
    for table, problem in (("neural", recipe.neural.unused_key()), ("train", recipe.train.unused_key())):
        if problem is not None:
            raise InvalidInputError(
                f"recipe {source}: {table}.{problem}", parameter=f"{table}.{problem.split()[0]}"
            )
    neural = recipe.neural
    if "dropout_start" in recipe.train.model_fields_set and not (
        neural.dropout or neural.of_inputs or neural.between_layers
    ):
        raise InvalidInputError(
            f"recipe {source}: train.dropout_start acts with neural.dropout above 0 only, given {neural.dropout}",
            parameter="train.dropout_start",
        )
    mismatch = recipe.train.problem_with(recipe.neural.output)
    if mismatch is not None:
        raise InvalidInputError(f"recipe {source}: {mismatch}", parameter="train.loss")


def _check_smoothing_keys(recipe: "Recipe", source: str) -> None:
    for key, smoothing in SMOOTHING_OF_KEY.items():
        if key in recipe.ngram.model_fields_set and recipe.ngram.smoothing != smoothing:
            raise InvalidInputError(
                f"recipe {source}: ngram.{key} acts with ngram.smoothing={smoothing} only, "
                f"given {getattr(recipe.ngram, key)} with {recipe.ngram.smoothing}",
                parameter=f"ngram.{key}",
            )


def _check_published_part_keys(recipe: "Recipe", source: str) -> None:
    kind = recipe.mixture.kind
    acting = _STATIC_MIXTURE_KEYS if kind == "static" else frozenset()
    for key in type(recipe.ngram).model_fields:
        if key in recipe.ngram.model_fields_set - acting:
            also = "; with mixture.kind=static it would" if key in _STATIC_MIXTURE_KEYS else ""
            raise InvalidInputError(
                f"recipe {source}: ngram.{key} cannot act on a {kind} mixture of published models, "
                f"given {getattr(recipe.ngram, key)!r}{also}",
                parameter=f"ngram.{key}",
            )
