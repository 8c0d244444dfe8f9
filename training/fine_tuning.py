"""Fine-tuning: a network continues from a published one, its base, on new text (`train.from`).

The network has the shape, direction and tokenizer of its base. New words of the text can be added to the vocabulary,
after those of the base, so the ids of the base's tokens stay as they are.
"""

from collections.abc import Callable
from typing import Any

from models.checkpoint.load import Checkpoint
from models.checkpoint.manifest import version_address
from models.checkpoint.precision import NEURAL_FAMILIES
from models.errors import InvalidInputError
from models.tokenizers import SentencePieceTokenizer, Tokenizer
from models.vocabulary import Vocabulary
from training.corpus import Sentences
from training.progress import Progress
from training.recipe import Recipe, merge_tables, parse_recipe
from training.tokenizer import TokenizerSettings, learn_tokenizer

_NOT_SHAPE = frozenset(
    {"dropout", "input_dropout", "hidden_dropout", "embedding_dropout", "weight_drop", "variational"}
)
"""Keys of `neural` that may differ from the base."""


def continue_from(recipe: Recipe, base: Checkpoint, *, source: str) -> Recipe:
    """Complete a network's recipe with the shape and direction of its base, where it does not set them.

    Args:
        recipe: recipe with `train.from`.
        base: the published network.
        source: name of the recipe, for messages.

    Raises:
        InvalidInputError: the base is not a network, or the recipe sets another shape, direction or tokenizer; the
            message names the keys and both values.
    """
    address, model = version_address(base.path), base.model
    if model.family not in NEURAL_FAMILIES:
        raise InvalidInputError(
            f"train.from: {address} is of the family {model.family}; a network continues from a network, "
            f"{', '.join(NEURAL_FAMILIES)}",
            parameter="train.from",
        )
    config: Any = model.config  # type: ignore[attr-defined]  # of a network
    direction, neural = base.manifest.direction, recipe.neural
    expected = {
        "direction": direction,
        **{f"neural.{key}": value for key, value in config.model_dump(exclude=_NOT_SHAPE).items()},
        **_tokenizer_keys(base.tokenizer, recipe.tokenizer),
    }
    given = {
        "direction": recipe.direction or direction,
        **{f"neural.{key}": getattr(neural, key) for key in sorted(neural.model_fields_set - _NOT_SHAPE)},
        **{f"tokenizer.{key}": getattr(recipe.tokenizer, key) for key in recipe.tokenizer.model_fields_set},
    }
    differences = [
        f"{key} is {value}, but {expected[key]} in {address}"
        for key, value in given.items()
        if key in expected and value != expected[key]
    ]
    if recipe.train.teacher and _adds_words(recipe.tokenizer, base.tokenizer):
        differences.append(
            "tokenizer.min_count adds words, which the models of train.teacher lack; omit one of the keys"
        )
    if differences:
        raise InvalidInputError(
            f"train.from: {'; '.join(differences)}. Keys that are not set, as in the recipe finetune, are those of "
            f"{address}",
            parameter="train.from",
        )
    shape = config.model_dump(exclude_defaults=True, exclude={"self_normalised"})
    own = recipe.model_dump(exclude_unset=True)
    table = merge_tables({"direction": direction, "neural": shape}, own)
    return parse_recipe(merge_tables(table, {"train": {"from": address}}), source=source)


def _tokenizer_keys(tokenizer: Tokenizer, settings: TokenizerSettings) -> dict[str, Any]:
    """Return the keys with which a recipe may describe this tokenizer; for words, `vocab_size` may be larger."""
    kind, size = tokenizer.kind, len(tokenizer.vocabulary)
    if not isinstance(tokenizer, SentencePieceTokenizer):
        size = max(size, settings.vocab_size or 0)
    elif settings.kind in {"bpe", "unigram"}:
        kind = settings.kind
    defaults = {"pattern": None, "lowercase": False, "marked_unknown": "word"}
    keys = {**defaults, **tokenizer.settings(), "kind": kind, "vocab_size": size}
    return {f"tokenizer.{key}": value for key, value in keys.items()}


def _adds_words(settings: TokenizerSettings, base: Tokenizer) -> bool:
    """Return True if the recipe adds new words, or characters, to the vocabulary of its base."""
    return "min_count" in settings.model_fields_set and not isinstance(base, SentencePieceTokenizer)


def continued_tokenizer(
    settings: TokenizerSettings, base: Tokenizer, sentences: Sentences, *, progress: Progress
) -> Tokenizer:
    """Return the base's tokenizer; if `min_count` is set, with the words that occur that often in the new text.

    Args:
        settings: settings of the recipe; `vocab_size` limits the vocabulary, including the base's words.
        base: tokenizer of the base.
        sentences: the new text.
        progress: reports the counting.
    """
    if not _adds_words(settings, base):
        return base
    rules = {key: value for key, value in base.settings().items() if key != "tokens"}
    own = TokenizerSettings.model_validate({**rules, "kind": base.kind, "min_count": settings.min_count})
    learned = learn_tokenizer(own, sentences, progress=progress).vocabulary
    new = [token for token in learned.ids if token not in base.vocabulary]
    if settings.vocab_size is not None:
        new = new[: settings.vocab_size - len(base.vocabulary)]
    tokenizer_class: Callable[..., Tokenizer] = type(base)
    return tokenizer_class(Vocabulary([*base.vocabulary.ids, *new]), **rules)


def base_facts(base: Checkpoint, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the address, the training text's hash and the number of added tokens, for metrics.json."""
    text = base.metrics.get("data", {}).get("train", {})
    return {
        "model": version_address(base.path),
        "training_text_sha256": text.get("sha256"),
        "added_tokens": len(tokenizer.vocabulary) - len(base.tokenizer.vocabulary),
    }
