"""The administration of models: requests, and what is told of every model, published or hosted."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import ConfigDict, Field

from models.checkpoint.versions import Version
from service.engine.host import ModelHost
from service.engine.hosted import HostedModel
from service.engine.leaving import UnloadingModel
from service.engine.memory import ModelBytes
from service.schemas.admin_replies import AdminModel, AdminModels, MemoryUse, ModelMemory
from service.schemas.wire import WireModel

_MAX_ADDRESS_LENGTH = 201


class LoadRequest(WireModel):
    """POST /admin/models/load."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "lstm@1", "wait": True}]})

    model: Annotated[str, Field(min_length=1, max_length=_MAX_ADDRESS_LENGTH)]
    """What to serve from now on: `name`, `name@7` or `name@champion`."""

    wait: bool = False
    """Whether the answer waits until the model is loaded."""


class UnloadRequest(WireModel):
    """POST /admin/models/unload."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "lstm@1"}]})

    model: Annotated[str, Field(min_length=1, max_length=_MAX_ADDRESS_LENGTH)]
    """What to serve no longer."""


class AliasRequest(WireModel):
    """PUT /admin/models/{name}/aliases/{alias}."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"version": 1, "wait": True}]})

    version: Annotated[int, Field(ge=1, le=999_999_999)]
    """The version that the alias is to mean."""

    wait: bool = False
    """Whether the answer waits until requests are answered by that version, or it could not be loaded."""


def admin_models(host: ModelHost, published: Sequence[Version], queued: Sequence[str]) -> AdminModels:
    """All versions of the registry, those hosted and those leaving included."""
    hosted = dict(host.models)
    rows = [admin_model(host, hosted.pop(version.address, None), version.address) for version in published]
    rows += [admin_model(host, model, address) for address, model in hosted.items()]
    rows += [_unloading_model(leaving) for leaving in host.unloading]
    return AdminModels("list", rows, list(queued), MemoryUse(host.bytes_in_use, host.budget))


def admin_model(host: ModelHost, model: HostedModel | None, address: str) -> AdminModel:
    """One version."""
    if model is None:
        return AdminModel(id=address, state="published")
    use = model.loaded.use if model.loaded is not None else None
    return AdminModel(
        id=model.address,
        state=model.state.value,
        reason=model.failure,
        is_default=model.address == host.default.address,
        aliases=list(model.aliases),
        serves=host.followed_addresses(model),
        memory=_memory(model.size),
        requests_in_flight=use.in_flight if use is not None else 0,
        last_used=use.last_s if use is not None else None,
        load_seconds=model.load_s,
        warm_up_seconds=model.warm_up_s,
        precision=model.loaded.checkpoint.precision if model.loaded is not None else None,
    )


def _unloading_model(leaving: UnloadingModel) -> AdminModel:
    return AdminModel(
        id=leaving.address,
        state="draining",
        memory=_memory(leaving.size),
        requests_in_flight=leaving.use.in_flight,
        last_used=leaving.use.last_s,
    )


def _memory(size: ModelBytes | None) -> ModelMemory | None:
    return None if size is None else ModelMemory(size.own, size.mapped, size.device)
