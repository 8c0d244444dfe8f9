"""What workers would each import for themselves, imported once before they are forked: its pages are shared."""

import contextlib
import gc
import importlib
from collections.abc import Iterable

from models.errors import LanguageModelError
from service.engine.host import ModelHost

_ALWAYS = ("models.ngram.model",)
_NEURAL = ("torch", "models.neural.model", "models.neural.quantized", "models.cache", "models.mixture")
_WEIGHTS = ".safetensors"


def modules_for(host: ModelHost) -> list[str]:
    """Names of the modules that the models of a host are made by; torch only where there is a network."""
    for model in host.models.values():
        if model.version is not None:
            with contextlib.suppress(LanguageModelError, OSError):  # whoever loads it will tell
                if any(name.endswith(_WEIGHTS) for name in host.registry.manifest(model.version).files):
                    return [*_ALWAYS, *_NEURAL]
    return [*_ALWAYS]


def preload(modules: Iterable[str]) -> None:
    """Import modules, and keep the collector's notes out of the pages that are to be shared."""
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
