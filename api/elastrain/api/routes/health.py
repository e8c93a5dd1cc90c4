"""Is it up, is it ready, and what Prometheus scrapes."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from elastrain.api.asking import Service, refusals
from elastrain.api.door import Asker, documented
from elastrain.api.metrics import exposition
from elastrain.api.replies import Reply
from elastrain.api.schemas.service import Healthy, Ready

router = APIRouter(tags=["health"], responses=refusals(422))


@router.get("/", response_class=PlainTextResponse)
def landing() -> str:
    """Says what this is to who opens the address."""
    return (
        "elastrain: elastic training on Ray.\n\n"
        "The API is under /v1 and wants a bearer token; so do /openapi.json and /docs, which describe it.\n"
        "From a shell: elastrain --help\n"
    )


@router.get(
    "/healthz", response_model=Healthy, responses={503: {"model": Healthy, "description": "No database"}}
)
async def healthz(
    service: Service, db: Annotated[bool, Query(description="Also write to the database.")] = False
) -> Reply:
    """The process lives; with `db=1`, its database takes a write too."""
    # without a thread: they may all wait for a database that is away, which is no reason to end the process
    ok = not db or await run_in_threadpool(service.database_ok)
    return Reply({"ok": ok}, status_code=200 if ok else 503)


@router.get("/readyz", response_model=Ready, responses={503: {"model": Ready, "description": "Not ready"}})
def readyz(service: Service) -> Reply:
    """Whether jobs can be taken and run: database, objects, Ray and the reconciler."""
    answer = service.readyz()
    return Reply(answer, status_code=200 if answer["ready"] else 503)


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[documented], responses=refusals(401))
def metrics(service: Service, asker: Asker) -> PlainTextResponse:
    """For Prometheus; it wants a token as any other route does."""
    return exposition(service)
