"""GET /v1/models and administration: load and unload models, aliases, profiles of re-ranking."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.checkpoint.registry_interface import Registry
from models.errors import ModelNotFoundError, NotReadyError
from models.reranking.ranking import Profile
from service.engine.loaded_model import LoadState
from service.engine.model_host import ModelHost
from service.routes.openapi import body_of, replies_of
from service.routes.request import json_response, services_of, to_json
from service.schemas.models import (
    AdminModel,
    AdminModels,
    AliasReply,
    AliasRequest,
    LoadRequest,
    NamedProfile,
    ProfileBody,
    ProfileList,
    UnloadRequest,
    admin_model,
    admin_models,
    model_card,
    model_list,
)
from service.schemas.replies import ModelCard, ModelList
from service.schemas.wire import parse_json

router = APIRouter()
R = TypeVar("R")
_ACCEPTED = 202


@router.get("/v1/models", responses=replies_of(ModelList))
async def list_models(request: Request) -> Response:
    """All models of this service, those that could not be loaded included."""
    return json_response(to_json(model_list(services_of(request).host)))


@router.get("/v1/models/{address:path}", responses=replies_of(ModelCard))
async def get_model(request: Request, address: str) -> Response:
    """One model: `name`, `name@7` or `name@champion`."""
    host = services_of(request).host
    return json_response(to_json(model_card(host, host.find(address))))


@router.get("/admin/profiles", responses=replies_of(ProfileList))
async def list_profiles(request: Request) -> Response:
    """The names of the profiles in the registry."""
    names = await asyncio.to_thread(services_of(request).profiles.names)
    return json_response(to_json(ProfileList(names)))


@router.get("/admin/profiles/{name}", responses=replies_of(Profile))
async def read_profile(request: Request, name: str) -> Response:
    """A profile: weights, what they were tuned for, and what they were worth."""
    profile = await asyncio.to_thread(services_of(request).profiles.read, name)
    return json_response(profile.model_dump_json().encode())


@router.put("/admin/profiles/{name}", responses=replies_of(NamedProfile), openapi_extra=body_of(ProfileBody))
async def write_profile(request: Request, name: str) -> Response:
    """Store what /v1/rerank/tune answered as `profile`; /v1/rerank takes it by its name from then on."""
    profile = parse_json(ProfileBody, await request.body()).profile(name)
    await asyncio.to_thread(services_of(request).profiles.write, profile)
    return json_response(to_json(NamedProfile(name)))


@router.delete("/admin/profiles/{name}", responses=replies_of(NamedProfile))
async def delete_profile(request: Request, name: str) -> Response:
    """Remove a profile; requests that name it are refused from then on."""
    await asyncio.to_thread(services_of(request).profiles.delete, name)
    return json_response(to_json(NamedProfile(name)))


@router.get("/admin/models", responses=replies_of(AdminModels))
async def list_all_models(request: Request) -> Response:
    """Every version of the registry and how far it has come here; memory, requests in flight, last use."""
    services = services_of(request)
    host = services.host
    published = await _from_registry(host, Registry.published)
    return _reply(admin_models(host, published, services.reloader.queued))


@router.post("/admin/models/load", responses=replies_of(AdminModel), openapi_extra=body_of(LoadRequest))
async def load_model(request: Request) -> Response:
    """Serve a model from now on: 202 while it is loaded, 200 if it is; with `wait` the answer comes when it is.

    Models are loaded one after the other. One that is served already stays as it is.
    """
    services = services_of(request)
    wire = parse_json(LoadRequest, await request.body())
    version = await _from_registry(services.host, lambda registry: registry.resolve(wire.model))
    loading = services.reloader.load(wire.model)
    if not wire.wait:
        model = services.host.models.get(version.address)
        if model is not None and model.state is LoadState.LOADED:
            return _reply(admin_model(services.host, model, version.address))
        return _reply(AdminModel(id=version.address, state=LoadState.LOADING.value), _ACCEPTED)
    model = await asyncio.shield(loading)  # the loading continues after a disconnect
    if model.state is not LoadState.LOADED:
        raise NotReadyError(f"model {model.address} could not be loaded: {model.failure}")
    return _reply(admin_model(services.host, model, model.address))


@router.post("/admin/models/unload", responses=replies_of(AdminModel), openapi_extra=body_of(UnloadRequest))
async def unload_model(request: Request) -> Response:
    """Serve a model no longer. Requests that have it are answered by it; then its memory is given back.

    States that clients keep of it are forgotten.
    """
    services = services_of(request)
    wire = parse_json(UnloadRequest, await request.body())
    model = await asyncio.shield(services.reloader.unload(wire.model))
    if model.loaded is not None:
        services.states.free_version(model.loaded)
    in_flight = model.loaded.use.in_flight if model.loaded is not None else 0
    state = "draining" if in_flight else "published"
    return _reply(AdminModel(id=model.address, state=state, requests_in_flight=in_flight))


@router.put(
    "/admin/models/{name}/aliases/{alias}",
    responses=replies_of(AliasReply),
    openapi_extra=body_of(AliasRequest),
)
async def set_alias(request: Request, name: str, alias: str) -> Response:
    """Point an alias at a version in the registry, and serve that version by it if the alias is served."""
    wire = parse_json(AliasRequest, await request.body())

    def change(registry: Registry) -> int | None:
        registry.resolve(f"{name}@{wire.version}")  # first, as it checks the name
        previous = registry.aliases(name).get(alias)
        registry.set_alias(name, alias, wire.version)
        return previous

    previous = await _from_registry(services_of(request).host, change)
    return await _alias_reply(request, name, alias, wire.version, previous, wait=wire.wait)


@router.delete("/admin/models/{name}/aliases/{alias}", responses=replies_of(AliasReply))
async def delete_alias(request: Request, name: str, alias: str) -> Response:
    """Take an alias away from the registry; an address that is served by it goes on being answered."""
    host = services_of(request).host
    previous = await _from_registry(host, lambda registry: registry.delete_alias(name, alias))
    return await _alias_reply(request, name, alias, None, previous, wait=False)


async def _alias_reply(
    request: Request, name: str, alias: str, version: int | None, previous: int | None, *, wait: bool
) -> Response:
    """Refresh the host after a change of an alias, and return the reply."""
    services = services_of(request)
    refreshed = services.reloader.refresh()
    if wait:
        await asyncio.shield(refreshed)
    serving = services.host.address_table.by_address.get(f"{name}@{alias}")
    return _reply(
        AliasReply(name, alias, version, previous, serving.address if serving and serving.loaded else None)
    )


async def _from_registry(host: ModelHost, query: Callable[[Registry], R]) -> R:
    """Query the registry on a thread, as it may be slow.

    Raises:
        ModelNotFoundError: the registry has no such model; the message leaves out its location.
        LanguageModelError: any other error of the registry.
    """
    try:
        return await asyncio.to_thread(query, host.registry)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(host.redact_root(error)) from None


def _reply(reply: object, status: int = 200) -> Response:
    return json_response(to_json(reply), status)
