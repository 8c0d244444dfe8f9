"""The default models: each is published as soon as it is trained.

A stopped run continues with the missing ones.
"""

from typing import Any

from models.checkpoint.manifest import PREFERRED_DEFAULT
from models.checkpoint.registry import Address, open_registry
from models.files import replace_file
from models.training_status import quickstart_mark
from training.commands import run_train
from training.recipe import load_recipe

_RECIPE, _NGRAM = "quickstart", "ngram"


def run_quickstart(registry: Address) -> dict[str, Any]:
    """Train the default models on Python's documentation: an n-gram model, then an LSTM and the mixture of both.

    If an earlier call was stopped, its n-gram model is used and its training of the LSTM continued.

    Returns:
        The mixture's result, as of `run_train`.

    Raises:
        DomainError: an unwritable registry, or the training failed.
    """
    store = open_registry(registry, create=True)
    mark = quickstart_mark(store)
    recipe = load_recipe(_RECIPE)
    begun = mark.read_text() if mark.exists() else ""
    if begun not in {version.address for version in store.published()}:  # it may have been deleted
        replace_file(mark)
        shared = recipe.tokenizer.model_dump(exclude_unset=True)
        settings = [f"tokenizer.{key}={value}" for key, value in shared.items()]
        begun = run_train(_NGRAM, name=_NGRAM, registry=registry, assignments=settings)["model"]
        replace_file(mark, begun.encode())
    others = [part for part in recipe.mixture.recipes if part != _NGRAM]
    parts = [f'mixture.models=["{begun}"]', f"mixture.recipes={others}"]
    result = run_train(_RECIPE, name=PREFERRED_DEFAULT, registry=registry, assignments=parts, resume=True)
    if store.default() == _NGRAM:  # the first name
        store.set_default(PREFERRED_DEFAULT)
    mark.unlink(missing_ok=True)
    return result
