"""GET /v1/models; administration of models, aliases and re-ranking profiles; health and metrics."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Path, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from models.checkpoint.registry_interface import Registry
from models.errors import ModelNotFoundError, NotReadyError
from models.reranking.ranking import Profile
from service.api_keys import KeyScope
from service.hosting.loaded_model import LoadState
from service.hosting.model_host import READY, ModelHost, readiness
from service.routes.endpoints import AddressInPath, EndpointRouter
from service.routes.request import json_response, read_json, services_of
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
)
from service.schemas.replies import Health, ModelCard, ModelList

router = EndpointRouter()
R = TypeVar("R")
_admin = partial(router.endpoint, tag="Admin", scope=KeyScope.ADMIN)
_ModelName = Annotated[str, Path(description="Name of a model, without a version.", examples=["ngram"])]
_Alias = Annotated[str, Path(description="Alias of a version, as in `name@alias`.", examples=["candidate"])]
_ProfileName = Annotated[str, Path(description="Name of a profile.", examples=["speech"])]


@router.endpoint("GET", "/v1/models", tag="Models", reply=ModelList)
async def list_models(request: Request) -> Response:
    """List all models of the service, including models that failed to load, and running trainings."""
    host = services_of(request).host
    cards = [model_card(host, hosted) for hosted in host.models.values()]
    return json_response(ModelList("list", cards, host.training))


@router.endpoint("GET", "/v1/models/{address:path}", tag="Models", reply=ModelCard)
async def get_model(request: Request, address: AddressInPath) -> Response:
    """Describe one model, addressed as `name`, `name@7` or `name@champion`."""
    host = services_of(request).host
    return json_response(model_card(host, host.find(address)))


@_admin("GET", "/admin/profiles", reply=ProfileList)
async def list_profiles(request: Request) -> Response:
    """List the names of the profiles in the registry."""
    names = await asyncio.to_thread(services_of(request).profiles.names)
    return json_response(ProfileList(names))


@_admin("GET", "/admin/profiles/{name}", reply=Profile)
async def read_profile(request: Request, name: _ProfileName) -> Response:
    """Return a profile: its weights, tuning settings and held-out figures."""
    profile = await asyncio.to_thread(services_of(request).profiles.read, name)
    return json_response(profile)


@_admin("PUT", "/admin/profiles/{name}", body=ProfileBody, reply=NamedProfile)
async def write_profile(request: Request, name: _ProfileName) -> Response:
    """Store the `profile` of a /v1/rerank/tune reply under a name that /v1/rerank accepts."""
    profile = (await read_json(request, ProfileBody)).profile(name)
    await asyncio.to_thread(services_of(request).profiles.write, profile)
    return json_response(NamedProfile(name))


@_admin("DELETE", "/admin/profiles/{name}", reply=NamedProfile)
async def delete_profile(request: Request, name: _ProfileName) -> Response:
    """Delete a profile; later requests that name it are rejected."""
    await asyncio.to_thread(services_of(request).profiles.delete, name)
    return json_response(NamedProfile(name))


@_admin("GET", "/admin/models", reply=AdminModels)
async def list_all_models(request: Request) -> Response:
    """List every version of the registry with its state, memory, requests in flight and last use."""
    services = services_of(request)
    host = services.host
    published = await _from_registry(host, Registry.published)
    return json_response(admin_models(host, published, services.reloader.queued))


@_admin(
    "POST",
    "/admin/models/load",
    body=LoadRequest,
    reply=AdminModel,
    statuses={202: "the model is loading"},
)
async def load_model(request: Request) -> Response:
    """Load a model: status 202 while it is loading, 200 once it is loaded; with `wait`, reply after loading.

    Models load one at a time. A loaded model is not reloaded.
    """
    services = services_of(request)
    wire = await read_json(request, LoadRequest)
    version = await _from_registry(services.host, lambda registry: registry.resolve(wire.model))
    loading = services.reloader.load(wire.model)
    if not wire.wait:
        model = services.host.models.get(version.address)
        if model is not None and model.state is LoadState.LOADED:
            return json_response(admin_model(services.host, model, version.address))
        return json_response(AdminModel(id=version.address, state=LoadState.LOADING.value), 202)
    model = await asyncio.shield(loading)  # loading continues after a disconnect
    if model.state is not LoadState.LOADED:
        raise NotReadyError(f"model {model.address} could not be loaded: {model.failure}")
    return json_response(admin_model(services.host, model, model.address))


@_admin("POST", "/admin/models/unload", body=UnloadRequest, reply=AdminModel)
async def unload_model(request: Request) -> Response:
    """Unload a model. Requests in flight complete first; then its memory is freed.

    Stored states of the model are freed at once.
    """
    services = services_of(request)
    wire = await read_json(request, UnloadRequest)
    model = await asyncio.shield(services.reloader.unload(wire.model))
    if model.loaded is not None:
        services.states.free_version(model.loaded)
    in_flight = model.loaded.use.in_flight if model.loaded is not None else 0
    state = "draining" if in_flight else "published"
    return json_response(AdminModel(id=model.address, state=state, requests_in_flight=in_flight))


@_admin("PUT", "/admin/models/{name}/aliases/{alias}", body=AliasRequest, reply=AliasReply)
async def set_alias(request: Request, name: _ModelName, alias: _Alias) -> Response:
    """Point an alias at a version in the registry; if the service serves the alias, switch to that version."""
    wire = await read_json(request, AliasRequest)

    def change(registry: Registry) -> int | None:
        registry.resolve(f"{name}@{wire.version}")  # first: it checks the name
        previous = registry.aliases(name).get(alias)
        registry.set_alias(name, alias, wire.version)
        return previous

    previous = await _from_registry(services_of(request).host, change)
    return await _alias_reply(request, name, alias, wire.version, previous, wait=wire.wait)


@_admin("DELETE", "/admin/models/{name}/aliases/{alias}", reply=AliasReply)
async def delete_alias(request: Request, name: _ModelName, alias: _Alias) -> Response:
    """Delete an alias from the registry; a service that serves it continues with the same version."""
    host = services_of(request).host
    previous = await _from_registry(host, lambda registry: registry.delete_alias(name, alias))
    return await _alias_reply(request, name, alias, None, previous, wait=False)


async def _alias_reply(
    request: Request, name: str, alias: str, version: int | None, previous: int | None, *, wait: bool
) -> Response:
    """Refresh the model host after an alias change, and return the reply."""
    services = services_of(request)
    refreshed = services.reloader.refresh()
    if wait:
        await asyncio.shield(refreshed)
    serving = services.host.address_table.by_address.get(f"{name}@{alias}")
    return json_response(
        AliasReply(name, alias, version, previous, serving.address if serving and serving.loaded else None)
    )


async def _from_registry(host: ModelHost, query: Callable[[Registry], R]) -> R:
    """Query the registry on a thread, as it may be slow.

    Errors about missing models omit its location.
    """
    try:
        return await asyncio.to_thread(query, host.registry)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(host.registry.redact_location(str(error))) from None


@router.endpoint(
    "GET",
    "/health/live",
    tag="Health",
    scope=None,
    reply=Health,
    statuses={503: "a model computation hangs; restart the process"},
)
async def live(request: Request) -> Response:
    """Report liveness: status 503 once a model computation hangs, which only a restart resolves."""
    is_hung = services_of(request).engine.is_hung
    return json_response(Health("hung" if is_hung else "ok"), 503 if is_hung else 200)


@router.endpoint(
    "GET",
    "/health/ready",
    tag="Health",
    scope=None,
    reply=Health,
    statuses={503: "not ready; `status` has the reason"},
)
async def ready(request: Request) -> Response:
    """Report readiness for requests.

    The status is 200 once every model named at start has loaded or failed and the default model has loaded, until
    shutdown. Loading a later version does not change it, because the old version still serves.
    """
    services = services_of(request)
    status = readiness(services.host, services.reloader, services.engine.scheduler)
    models = {model.address: model.state.value for model in services.host.models.values()}
    code = 200 if status == READY else 503
    return json_response(Health(status, models), code)


@router.endpoint("GET", "/v2/healthcheck", tag="Health", scope=None, media_types=("text/plain",))
async def languagetool_health(request: Request) -> Response:
    """Report readiness as LanguageTool does: `OK`, or status 503 with the reason."""
    services = services_of(request)
    status = readiness(services.host, services.reloader, services.engine.scheduler)
    said, code = ("OK", 200) if status == READY else (status, 503)
    return Response(said, code, media_type="text/plain")


@router.endpoint("GET", "/metrics", tag=None, scope=KeyScope.METRICS)
async def metrics(request: Request) -> Response:
    """Return all metrics in the Prometheus text format."""
    return Response(services_of(request).metrics.exposition(), media_type=CONTENT_TYPE_LATEST)
