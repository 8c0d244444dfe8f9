"""A model that was unloaded, for as long as requests still have it."""

import weakref
from typing import Any, NamedTuple, Self

from service.engine.hosted import LoadedModel, ModelUse
from service.engine.memory import ModelBytes


class UnloadingModel(NamedTuple):
    """What is left of a model that nothing leads to; the last request that has it frees it.

    Attributes:
        address: `name@number`.
        model: gone once its memory is free.
        use: by whom it is used.
        size: what it takes until then.
    """

    address: str
    model: "weakref.ref[Any]"
    use: ModelUse
    size: ModelBytes

    @classmethod
    def of(cls, loaded: LoadedModel, size: ModelBytes) -> Self:
        """What is left of a model from now on."""
        return cls(loaded.address, weakref.ref(loaded.model), loaded.use, size)

    @property
    def in_memory(self) -> bool:
        """Whether it is still in memory."""
        return self.model() is not None
