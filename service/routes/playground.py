"""Playground, API page and their static files; model cards, images and reports of published models."""

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Annotated

from fastapi import Path as PathParameter
from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from models.checkpoint.manifest import FileEntry
from models.checkpoint.registry_interface import Registry
from models.errors import CheckpointError
from service.hosting.loaded_model import LoadedModel
from service.routes.endpoints import AddressInPath, EndpointRouter
from service.routes.request import json_response, resolve_model, services_of
from service.schemas.models import ModelFile, ModelFileList

router = EndpointRouter()
_STATIC = Path(__file__).parents[1] / "static"
_SWAGGER = resources.files("fastapi_offline") / "static"
_SWAGGER_FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
_CARD = "MODEL_CARD.md"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}
_PUBLIC_SUFFIXES = frozenset({".html", ".md", ".png"})
"""Suffixes of published files that clients may read; weights and vocabularies are excluded."""

_PUBLIC_MEDIA_TYPES = ("image/png", "text/html", "text/markdown")

_PAGE_POLICY = (
    "default-src 'self'; img-src 'self' blob:; base-uri 'none'; object-src 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
)
"""Policy without other origins or inline code; images that require a key are fetched and shown as blobs."""

_API_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Policy of Swagger UI, which has icons in its style sheet and does not support trusted types."""

_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
"""Policy of reports: inline styles, no scripts."""


_FileName = Annotated[
    str, PathParameter(description="Name from the list of files.", examples=["perplexities.png"])
]
_NOT_MODIFIED = {304: "the file matches `If-None-Match`"}


@router.endpoint("GET", "/", tag=None, scope=None)
async def playground(request: Request) -> Response:
    """Serve the playground."""
    headers = {"content-security-policy": _PAGE_POLICY, "cross-origin-opener-policy": "same-origin"}
    return _cached_response(request, *_static_files()["index.html"], headers)


@router.endpoint("GET", "/docs", tag=None, scope=None)
async def api_page(request: Request) -> Response:
    """Serve Swagger UI for the OpenAPI document."""
    headers = {"content-security-policy": _API_PAGE_POLICY, "cross-origin-opener-policy": "same-origin"}
    return _cached_response(request, *_static_files()["docs.html"], headers)


@router.endpoint("GET", "/static/{name}", tag=None, scope=None)
async def static_file(request: Request, name: str) -> Response:
    """Serve a static file of the pages."""
    file = _static_files().get(name)
    if file is None:
        raise HTTPException(404)
    return _cached_response(request, *file)


@router.endpoint(
    "GET", "/v1/models/{address}/card", tag="Models", media_types=("text/markdown",), statuses=_NOT_MODIFIED
)
async def get_model_card(request: Request, address: AddressInPath) -> Response:
    """Return a model card in Markdown: figures, training data and limits."""
    return await _file_response(request, address, _CARD)


@router.endpoint("GET", "/v1/models/{address}/files", tag="Models", reply=ModelFileList)
async def list_model_files(request: Request, address: AddressInPath) -> Response:
    """List a model's readable files: its card, images and reports, including those of its parts."""
    loaded = resolve_model(request, address)
    listed = sorted(_public_files(loaded).items())
    files = [ModelFile(name, entry.bytes, entry.sha256) for name, entry in listed]
    return json_response(ModelFileList("list", loaded.address, files))


@router.endpoint(
    "GET",
    "/v1/models/{address}/files/{name:path}",
    tag="Models",
    media_types=_PUBLIC_MEDIA_TYPES,
    statuses=_NOT_MODIFIED,
)
async def get_model_file(request: Request, address: AddressInPath, name: _FileName) -> Response:
    """Return a file of a model, unchanged."""
    return await _file_response(request, address, name)


@cache
def _static_files() -> Mapping[str, tuple[str, bytes, str]]:
    """Read all files of the pages: entity tag, content and media type by name.

    No others are served.
    """
    files = {}
    for path in (*_STATIC.iterdir(), *(_SWAGGER / name for name in _SWAGGER_FILES)):
        suffix = PurePosixPath(path.name).suffix
        if suffix in _MEDIA_TYPES:
            content = path.read_bytes()
            etag = hashlib.sha256(content).hexdigest()[:32]
            files[path.name] = etag, content, _MEDIA_TYPES[suffix]
    return files


def _public_files(loaded: LoadedModel) -> dict[str, FileEntry]:
    files = loaded.checkpoint.manifest.files
    return {name: entry for name, entry in files.items() if PurePosixPath(name).suffix in _PUBLIC_SUFFIXES}


async def _file_response(request: Request, address: str, name: str) -> Response:
    """Return a version's public file, which never changes.

    The status is 404 if it is not in the manifest or deleted.
    """
    loaded = resolve_model(request, address)
    entry = _public_files(loaded).get(name)
    if entry is None:
        raise HTTPException(404)
    content = await asyncio.to_thread(_read_file, services_of(request).host.registry, loaded, name)
    suffix = PurePosixPath(name).suffix
    headers = {"content-security-policy": _REPORT_POLICY} if suffix == ".html" else {}
    return _cached_response(
        request, entry.sha256, content, _MEDIA_TYPES[suffix], {"x-model": loaded.address, **headers}
    )


def _read_file(registry: Registry, loaded: LoadedModel, name: str) -> bytes:
    try:
        return (loaded.checkpoint.path / name).read_bytes()
    except OSError:
        model, _, number = loaded.address.partition("@")
        try:
            return registry.read_file(registry.version(model, int(number)), name)
        except CheckpointError:
            raise HTTPException(404) from None


def _cached_response(
    request: Request, etag: str, content: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return the content, or 304 if the browser has it.

    Browsers revalidate every time, to see new versions.
    """
    quoted = f'"{etag}"'
    reply_headers = {"etag": quoted, "cache-control": "no-cache", **(headers or {})}
    cached_tags = request.headers.get("if-none-match", "")
    if quoted in (tag.strip().removeprefix("W/") for tag in cached_tags.split(",")):
        return Response(status_code=304, headers=reply_headers)
    return Response(content, headers=reply_headers, media_type=media_type)
