"""Uploaded code: content-addressed zip files."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from elastrain.api.asking import Service, refusals
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.service import Package
from elastrain.service.errors import NotFound

router = APIRouter(prefix="/packages", tags=["packages"], responses=refusals(401, 403, 422))

Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="sha256 of the package's bytes.")]
Project = Annotated[str, Query(pattern=r"^[a-z0-9-]{1,63}$", description="Whose package it is.")]
ZIP_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.head(
    "/{sha256}",
    response_class=Response,
    responses={**refusals(404), 200: {"description": "The project has it"}},
)
def has_package(service: Service, asker: Asker, sha256: Digest, project: Project = "default") -> Response:
    """Whether an upload can be skipped."""
    if not service.has_package(sha256, actor=asker, project=project):
        raise NotFound(f"Project {project!r} has no package {sha256}")
    return Response()


@router.put(
    "/{sha256}",
    status_code=201,
    response_model=Package,
    responses={**refusals(409, 413), 200: {"model": Package, "description": "It was there already"}},
    openapi_extra=ZIP_BODY,
)
async def put_package(
    service: Service,
    asker: Asker,
    sha256: Digest,
    request: Request,
    project: Project = "default",
) -> Reply:
    """Stores a zip file under the sha256 of its bytes; checked while it streams in."""
    declared = int(length) if (length := request.headers.get("content-length")) else None
    begin = partial(service.package_upload, sha256, actor=asker, project=project, declared_bytes=declared)
    size = 0
    with await run_in_threadpool(begin) as upload:
        async for chunk in request.stream():
            size += len(chunk)
            await run_in_threadpool(upload.write, chunk)
        created = await run_in_threadpool(upload.finish)
    return Reply({"sha256": sha256, "bytes": size}, status_code=201 if created else 200)
