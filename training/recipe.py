"""Recipes: all settings of a run, read from TOML and validated before any work.

A key that has no effect is rejected. Errors name the key, its valid values and the given value.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from models.cache.config import MAX_WINDOW
from models.checkpoint.manifest import Direction
from models.errors import InputError
from models.neural.config import NetworkConfig
from training.neural.settings import TrainSettings
from training.ngram.counts import threshold_problem
from training.ngram.estimate import SMOOTHING_OF_KEY, WITH_DISCOUNTS, SmoothingName
from training.ngram.smoothing.interpolation import MAX_BUCKETS
from training.ngram.smoothing.kneser_ney import DiscountSource
from training.tokenizer import TokenizerSettings

Family = Literal["ngram", "neural", "mixture"]
_RECIPES = resources.files("training").joinpath("recipes")
_STATIC_MIXTURE_KEYS = frozenset({"prune_entropy", "quantize_bits"})

_MUST_BE = {
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be finite",
    "literal_error": "must be {expected}",
    "string_too_short": "must be set",
    "multiple_of": "must be a multiple of {multiple_of}",
    "model_type": "must be a table of keys",
}
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "tuple": "must be a list",
    "missing": "is missing",
}
_SHOWN_CHARS = 200
_LISTS = {"ngram.prune": "a list such as [0, 0, 1]", "mixture.recipes": 'a list such as ["ngram", "lstm"]'}


def _unused_keys(recipe: "Recipe") -> Iterator[str]:
    """Yield a message on each set key without effect; the key is its first word.

    The keys that a mixture sets for its parts are checked with each part.
    """
    if recipe.cache.model_fields_set and not recipe.mixture.cache:
        key = min(recipe.cache.model_fields_set)
        yield f"cache.{key} requires mixture.cache=true, given {getattr(recipe.cache, key)}"
    if recipe.tokenizer.lowercase and recipe.tokenizer.normalise == "casefold":
        yield "tokenizer.lowercase has no effect with tokenizer.normalise=casefold, which includes it"
    direction, of_ngram = recipe.direction, recipe.ngram.direction
    if direction is not None and recipe.family == "mixture":
        problem = "direction applies to the families ngram and neural; the parts of a mixture read forward"
        yield f"{problem}, given {direction}"
    elif "direction" in recipe.ngram.model_fields_set and direction not in {None, of_ngram}:
        yield f"ngram.direction is {of_ngram}, but direction is {direction}; set one of them"
    if recipe.train.base and recipe.family == "mixture":
        hint = "train the new model alone, and mix it with the old one (mixture.models)"
        yield f"train.from applies to the families ngram and neural, given mixture; {hint}"
    if recipe.family == "ngram":
        if recipe.train.teacher:
            yield f"train.teacher requires family=neural, given {recipe.family}"
        yield from _unused_smoothing_keys(recipe.ngram)
    elif recipe.family == "neural":
        yield from _unused_network_keys(recipe)
    elif not (recipe.mixture.recipes or recipe.mixture.parts):
        yield from _unused_part_keys(recipe)


def _unused_network_keys(recipe: "Recipe") -> Iterator[str]:
    neural, train = recipe.neural, recipe.train
    for table, problem in (("neural", neural.unused_key()), ("train", train.unused_key())):
        if problem is not None:
            yield f"{table}.{problem}"
    drops = neural.dropout or neural.of_inputs or neural.between_layers
    if "dropout_start" in train.model_fields_set and not drops:
        yield f"train.dropout_start requires neural.dropout above 0, given {neural.dropout}"
    if mismatch := train.problem_with(neural.output):
        yield mismatch


def _unused_smoothing_keys(ngram: "NGramSettings") -> Iterator[str]:
    for key, smoothing in SMOOTHING_OF_KEY.items():
        if key in ngram.model_fields_set and ngram.smoothing != smoothing:
            given = f"given {getattr(ngram, key)} with {ngram.smoothing}"
            yield f"ngram.{key} requires ngram.smoothing={smoothing}, {given}"


def _unused_part_keys(recipe: "Recipe") -> Iterator[str]:
    """Yield n-gram settings without effect on published parts."""
    kind = recipe.mixture.kind
    unused = recipe.ngram.model_fields_set - (_STATIC_MIXTURE_KEYS if kind == "static" else set())
    for key in type(recipe.ngram).model_fields:
        if key in unused:
            also = "; with mixture.kind=static it would" if key in _STATIC_MIXTURE_KEYS else ""
            problem = f"ngram.{key} has no effect on a {kind} mixture of published models"
            yield f"{problem}, given {getattr(recipe.ngram, key)!r}{also}"


def _recipe_error(error: ValidationError, source: str) -> InputError:
    """Convert the first validation error."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx", {})
    path = [part for part in first["loc"] if isinstance(part, str)]  # without list indices
    key = ".".join(path)
    if kind == "extra_forbidden":
        problem = f"unknown key; {_known_keys(path[:-1])}"
    elif kind == "value_error":
        problem = str(context["error"])
    elif key in _LISTS:
        problem = f"must be {_LISTS[key]}"
    elif kind in _MUST_BE:
        whole = {name: int(x) for name, x in context.items() if isinstance(x, float) and x.is_integer()}
        problem = _MUST_BE[kind].format_map({**context, **whole})  # without a decimal point
    else:
        problem = _KINDS.get(kind.split("_", maxsplit=1)[0], first["msg"])
    # validators of this package name the value
    if kind not in {"extra_forbidden", "missing", "value_error"}:
        problem += f", given {first['input']!r:.{_SHOWN_CHARS}}"
    return InputError(f"recipe {source}: {key:.{_SHOWN_CHARS}}: {problem}", param=key)


def _known_keys(table: Sequence[str]) -> str:
    model: Any = Recipe
    for name in table:
        annotation = model.model_fields[name].annotation
        model = next(iter(get_args(annotation)), annotation)  # a list of tables
    subject = f"[{'.'.join(table)}] has" if table else "a recipe has"
    return f"{subject} {', '.join(field.alias or name for name, field in model.model_fields.items())}"


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CorpusSettings(_Table):
    """The `[corpus]` table.

    Attributes:
        unit: `line`, one sentence per line; `paragraph`, paragraphs that are split into
            sentences.
    """

    unit: Literal["line", "paragraph"] = "line"


class NGramSettings(_Table):
    """The `[ngram]` table.

    Attributes:
        order: length of the longest n-grams, in tokens.
        smoothing: smoothing method.
        k: constant that `add-k` adds to every n-gram count.
        buckets: number of weights that `jelinek-mercer` fits per order, by context count:
            1, 2 to 3, 4 to 7, ….
        discounts: source of the discounts of `absolute`, `kneser-ney` and
            `modified-kneser-ney`: `counts`, the numbers of n-grams that occur once,
            twice, …; `held-out`, fitted on the validation text.
        prune: count thresholds by order, such as [0, 0, 1]; n-grams with a count up to
            the threshold are dropped. The first must be 0, no threshold may be below the
            previous one, and the last applies to all higher orders.
        prune_entropy: relative increase in perplexity below which an n-gram is dropped,
            such as 1e-8; 0 drops none.
        quantize_bits: bits per stored probability and back-off weight; unset stores
            float32.
        direction: `forward` predicts a word from the words before it; `backward`, from
            the words after it.
    """

    order: int = Field(5, ge=1, le=20)
    smoothing: SmoothingName = "modified-kneser-ney"
    k: float = Field(0.1, gt=0, allow_inf_nan=False)
    buckets: int = Field(1, ge=1, le=MAX_BUCKETS)
    discounts: DiscountSource = "counts"
    prune: tuple[int, ...] = ()
    prune_entropy: float = Field(0.0, ge=0, allow_inf_nan=False)
    quantize_bits: Literal[8] | None = None
    direction: Direction = "forward"

    @field_validator("discounts")
    @classmethod
    def _check_discounts(cls, discounts: DiscountSource, info: ValidationInfo) -> DiscountSource:
        # an invalid value is reported separately
        smoothing = info.data.get("smoothing", WITH_DISCOUNTS[0])
        if discounts == "held-out" and smoothing not in WITH_DISCOUNTS:
            raise ValueError(
                f"ngram.smoothing is {smoothing}, which has no discounts; use {', '.join(WITH_DISCOUNTS)}"
            )
        return discounts

    @field_validator("prune")
    @classmethod
    def _check_thresholds(cls, prune: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        problem = threshold_problem(prune, order=info.data.get("order", len(prune)))
        if problem is not None:
            raise ValueError(f"it {problem}")
        return prune


class PartSettings(_Table):
    """An entry of `[[mixture.parts]]`: a part to train, with tables of its own.

    Attributes:
        recipe: name or path of the part's recipe.
        mixed: False for a network that is only a teacher of others, and not a part of the
            final model.
        seed: random seed; unset means that of the mixture plus the number of earlier
            networks.
        ngram: keys of `[ngram]` for this part.
        neural: keys of `[neural]` for this part.
        train: keys of `[train]` for this part.
    """

    recipe: str
    mixed: bool = True
    seed: int | None = Field(None, ge=0, lt=2**63)
    ngram: dict[str, Any] = {}
    neural: dict[str, Any] = {}
    train: dict[str, Any] = {}


class MixtureSettings(_Table):
    """The `[mixture]` table; the weights of the parts are fitted on the validation text.

    Attributes:
        kind: `dynamic` evaluates all parts at every step; `static` merges n-gram models
            into one n-gram model with the union of their n-grams.
        recipes: recipes of the parts to train. The tables `[ngram]`, `[neural]` and
            `[train]` of the mixture override theirs, and all parts share the mixture's
            tokenizer. Networks are trained at the same time, one per processor;
            `train.max_minutes` of the mixture is the time for all of them.
        parts: further parts to train, as `[[mixture.parts]]`, each with its `recipe`, and
            optionally `mixed`, `seed` and the tables `neural`, `train` and `ngram`, which
            override those of the mixture.
        models: addresses of published parts; the mixture uses their tokenizer. The parts
            of a static mixture may have different words; the mixture has all words.
        publish_parts: also publish each trained part of the final model, under its
            recipe's name.
        weights: `global`, one weight per part; `by-order`, one weight per part and
            context length of the first n-gram model among the parts.
        context: context for fitting weights and for figures: `sentence` resets the state
            at every line; `stream` carries it across lines. Unset means `stream` with a
            cache, else `sentence`.
        cache: add a cache of the last tokens, with the settings in `[cache]`; one part is
            then enough.
        drop_unused: leave parts out of a dynamic mixture whose weights are all below
            0.01, except one whose features the cache around the mixture uses.
    """

    kind: Literal["dynamic", "static"] = "dynamic"
    recipes: tuple[str, ...] = ()
    parts: tuple[PartSettings, ...] = ()
    models: tuple[str, ...] = ()
    publish_parts: bool = False
    weights: Literal["global", "by-order"] = "global"
    context: Literal["sentence", "stream"] | None = None
    cache: bool = False
    drop_unused: bool = True

    @field_validator("weights", "context", "cache", "drop_unused")
    @classmethod
    def _check_dynamic_key(cls, value: Any, info: ValidationInfo) -> Any:
        is_set = value is not cls.model_fields[str(info.field_name)].default
        if is_set and info.data.get("kind") == "static":
            raise ValueError("a static mixture is one n-gram model; use mixture.kind=dynamic")
        if info.field_name == "cache" and value and info.data.get("context") == "sentence":
            raise ValueError("mixture.context=sentence empties the cache at every line; use stream")
        return value

    @property
    def fitted_context(self) -> Literal["sentence", "stream"]:
        """Context for fitting weights and for figures."""
        return self.context or ("stream" if self.cache else "sentence")


class CacheSettings(_Table):
    """The `[cache]` table of a mixture with a cache; θ, half-life and λ are fitted on the validation text.

    Attributes:
        window: number of tokens in the cache; neural features take four bytes per
            dimension and token.
        around: model that the cache wraps: `mixture`, with the features of its first part
            that has features; `neural`, this part alone, before it is mixed with the
            other parts.
        marginals: also adapt the mixture to the frequencies of the words so far, and let
            λ depend on the context; see `CacheConfig`.
    """

    window: int = Field(10_000, ge=1, le=MAX_WINDOW)
    around: Literal["mixture", "neural"] = "mixture"
    marginals: bool = False

    @field_validator("marginals")
    @classmethod
    def _check_marginals(cls, marginals: bool, info: ValidationInfo) -> bool:
        if marginals and info.data.get("around") == "neural":
            raise ValueError("true requires cache.around=mixture, given neural")
        return marginals


class Recipe(_Table):
    """Settings of a training run.

    Attributes:
        family: `ngram`, `neural` or `mixture`; selects the tables that apply.
        seed: random seed of the run.
        direction: `forward` predicts a word from the words before it; `backward`, from
            the words after it. For n-gram models, `ngram.direction` is equivalent.
    """

    family: Family
    seed: int = Field(1, ge=0, lt=2**63)
    direction: Direction | None = None
    corpus: CorpusSettings = CorpusSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    ngram: NGramSettings = NGramSettings()
    neural: NetworkConfig = NetworkConfig()
    train: TrainSettings = TrainSettings()
    mixture: MixtureSettings = MixtureSettings()
    cache: CacheSettings = CacheSettings()

    @property
    def reading_direction(self) -> Direction:
        """Reading direction of the model."""
        of_family = self.ngram.direction if self.family == "ngram" else "forward"
        return self.direction or of_family

    @property
    def has_cache_inside(self) -> bool:
        """True if the cache wraps a neural part instead of the mixture."""
        return self.mixture.cache and self.cache.around == "neural"


def recipe_names() -> list[str]:
    """Return the names of the packaged recipes."""
    return sorted(f.name.removesuffix(".toml") for f in _RECIPES.iterdir() if f.name.endswith(".toml"))


def load_recipe(name: str, assignments: Sequence[str] = ()) -> Recipe:
    """Read a recipe by name or path, with overridden keys.

    Args:
        name: one of `recipe_names()`, or a path that ends in `.toml`.
        assignments: overrides such as `ngram.order=3`; values that are not TOML are plain text.

    Raises:
        InputError: the recipe is missing or not TOML, or a key or value is invalid.
    """
    return parse_recipe(recipe_table(name), assignments, source=name)


def recipe_table(name: str) -> dict[str, Any]:
    """Read a recipe's TOML table without checking its keys.

    Raises:
        InputError: the recipe is missing or not TOML.
    """
    try:
        if name.endswith(".toml"):
            text = Path(name).read_text(encoding="utf-8-sig")
        elif name in recipe_names():
            text = _RECIPES.joinpath(f"{name}.toml").read_text(encoding="utf-8")
        else:
            raise InputError(
                f"unknown recipe {name!r}; use one of {', '.join(recipe_names())}, or the path of a .toml file",
                param="recipe",
            )
        return tomllib.loads(text)
    except OSError as error:
        raise InputError(f"recipe {name}: {error.strerror}", param="recipe") from None
    except RecursionError:
        raise InputError(f"recipe {name} is nested too deeply", param="recipe") from None
    except ValueError as error:  # bad TOML, bad UTF-8
        raise InputError(f"recipe {name} is not TOML: {error}", param="recipe") from None


def parse_recipe(table: Mapping[str, Any], assignments: Sequence[str] = (), *, source: str) -> Recipe:
    """Validate a recipe's table.

    Raises:
        InputError: a key or value is invalid or without effect; the message names the key.
    """
    for assignment in assignments:
        table = merge_tables(table, _parse_assignment(assignment))
    try:
        recipe = Recipe.model_validate(table)
    except ValidationError as error:
        raise _recipe_error(error, source) from None
    for problem in _unused_keys(recipe):
        key = re.split(r"[ =]", problem, maxsplit=1)[0]
        raise InputError(f"recipe {source}: {problem}", param=key)
    return recipe


def merge_tables(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into a table, recursively."""
    merged = dict(table)
    for key, value in changes.items():
        is_table = isinstance(merged.get(key), dict) and isinstance(value, Mapping)
        merged[key] = merge_tables(merged[key], value) if is_table else value
    return merged


def _parse_assignment(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"--set takes key=value, given {text!r}", param="set")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # not TOML, or number or nesting beyond limits
        parsed = value
    table: Any = parsed
    for part in reversed(key.strip().split(".")):
        table = {part: table}
    return dict(table)
