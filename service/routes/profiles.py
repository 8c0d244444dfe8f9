"""GET /admin/profiles; GET, PUT and DELETE of one."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.reranking.profiles import Profile
from service.routes.openapi import body_of, replies_of
from service.routes.serving import json_response, services_of, to_json
from service.schemas.profiles import NamedProfile, ProfileBody, ProfileList
from service.schemas.wire import parse_json

router = APIRouter()


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
