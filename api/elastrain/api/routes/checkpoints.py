"""Checkpoints and their files."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.responses import StreamingResponse

from elastrain.api.asking import JobId, Service, refusals
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.training import CheckpointPage

router = APIRouter(
    prefix="/jobs/{job}/checkpoints", tags=["checkpoints"], responses=refusals(401, 403, 404, 422)
)

Step = Annotated[str, Path(pattern=r"^([0-9]{1,10}|latest)$", description="A step, or `latest`.")]
FileName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]


@router.get("", response_model=CheckpointPage)
def checkpoints(service: Service, asker: Asker, job: JobId) -> Reply:
    """Checkpoints that are there, and bad ones that were found out."""
    return Reply(service.checkpoints(job, actor=asker))


@router.get(
    "/{step}/{file}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The file's bytes"}},
)
def checkpoint_file(
    service: Service, asker: Asker, job: JobId, step: Step, file: FileName
) -> StreamingResponse:
    """One file of a checkpoint, streamed from object storage."""
    size, chunks = service.checkpoint_file(job, step if step == "latest" else int(step), file, actor=asker)
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="{file}"',
        "X-Content-Type-Options": "nosniff",
    }
    return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)
