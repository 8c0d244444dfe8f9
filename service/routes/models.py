"""GET /v1/models and GET /v1/models/{address}."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.reranking.ranking import Profile
from service.routes.openapi import body_of, replies_of
from service.routes.request import json_response, services_of, to_json
from service.schemas.models import NamedProfile, ProfileBody, ProfileList, model_card, model_list
from service.schemas.replies import ModelCard, ModelList
from service.schemas.wire import parse_json

router = APIRouter()


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
