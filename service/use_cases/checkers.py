"""What checking builds once for each loaded model, and keeps as long as that is there."""

import threading
from typing import Any
from weakref import WeakKeyDictionary

from models.checking.checker import Checker
from models.protocol import LanguageModel
from service.engine.hosted import LoadedModel

_lock = threading.Lock()
_checkers: WeakKeyDictionary[LanguageModel[Any], Checker] = WeakKeyDictionary()


def checker_of(loaded: LoadedModel) -> Checker:
    """The checker for a model's tokenizer; the first call of a model takes up to a few tenths of a second."""
    found = _checkers.get(loaded.model)  # without waiting for one of another model that is being built
    if found is not None:
        return found
    with _lock:
        found = _checkers.get(loaded.model)
        if found is None:
            found = _checkers[loaded.model] = Checker(loaded.tokenizer)
        return found


def has_checker(loaded: LoadedModel) -> bool:
    """Whether the checker for a model is there already."""
    return loaded.model in _checkers
