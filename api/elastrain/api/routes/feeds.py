"""What a job tells while it lives: events, metrics, logs; as pages, or followed as Server-Sent Events."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from elastrain.api.asking import MOST, Answers, Cursor, JobId, Service, refusals
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.training import EventPage, LogPage
from elastrain.api.sse import KINDS, Follow, Kind, wanted
from elastrain.service.errors import Invalid

router = APIRouter(prefix="/jobs/{job}", tags=["feeds"], responses=refusals(401, 403, 404, 422))

After = Annotated[int, Query(ge=0, le=MOST, description="Only what comes after this position.")]
LastEventId = Annotated[
    int | None, Header(ge=0, le=MOST, description="Where a broken stream goes on; wins over `after`.")
]
Attempt = Annotated[int | None, Query(ge=1, le=MOST, description="The current one if left out.")]
WORKER = r"^[A-Za-z0-9-]{1,63}$"


def also(*media_types: str) -> Answers:
    """The other forms of an answer, chosen by the `Accept` header."""
    return {200: {"content": {media_type: {} for media_type in media_types}, "description": "By `Accept`"}}


@router.get("/events", response_model=EventPage, responses=also("text/event-stream"))
def events(
    service: Service,
    asker: Asker,
    request: Request,
    job: JobId,
    after: After = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    last_event_id: LastEventId = None,
) -> Response:
    """What happened, oldest first."""
    if wanted(request):
        return Follow(service, asker, job, ("event",)).response(last_event_id, after)
    return Reply(service.events(job, actor=asker, after=after, limit=limit))


@router.get("/metrics", response_model=dict[str, list[list[Any]]], responses=also("text/event-stream"))
def metrics(
    service: Service,
    asker: Asker,
    request: Request,
    job: JobId,
    names: Annotated[
        str | None, Query(max_length=2000, description="Comma-separated; all if left out.")
    ] = None,
    from_step: Annotated[int, Query(ge=0, le=MOST)] = 0,
    points: Annotated[int, Query(ge=1, le=100_000, description="At most so many per name.")] = 1000,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """`{name: [[step, value, at], ...]}`, and under `superseded` what a later attempt trained again."""
    if wanted(request):
        return Follow(service, asker, job, ("metric",)).response(last_event_id, after)
    wished = [name for name in names.split(",") if name] if names else None
    return Reply(service.metrics(job, actor=asker, names=wished, from_step=from_step, points=points))


@router.get("/logs", response_model=LogPage, responses=also("text/event-stream", "text/plain"))
def logs(
    service: Service,
    asker: Asker,
    request: Request,
    job: JobId,
    worker: Annotated[
        str | None, Query(pattern=WORKER, description="Such as `w3`, `driver`, `setup`.")
    ] = None,
    attempt: Attempt = None,
    offset: Annotated[int | None, Query(ge=0, le=MOST, description="Bytes to skip, with `worker`.")] = None,
    limit: Annotated[int, Query(ge=1, le=2**20, description="Bytes at most.")] = 65536,
    tail: Annotated[int | None, Query(ge=1, le=10_000, description="Only the last lines.")] = None,
    cursor: Cursor = None,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> Response:
    """Output: lines as JSON, one worker's raw bytes as `text/plain`, or followed."""
    if wanted(request):
        return Follow(service, asker, job, ("log",), worker, attempt).response(last_event_id, after)
    if "text/plain" in request.headers.get("accept", ""):
        return raw_log(service, asker, job, worker, attempt, offset or 0)
    page = service.logs(
        job, actor=asker, worker=worker, attempt=attempt, offset=offset, limit=limit, tail=tail, cursor=cursor
    )
    return Reply(page)


def raw_log(
    service: Service, asker: Asker, job: str, worker: str | None, attempt: int | None, offset: int
) -> Response:
    """A worker's output, every byte of it as it was printed. Raises Invalid without a worker."""
    if worker is None:
        raise Invalid(
            "A raw log is one worker's", hint="Add ?worker=w0, or ask for JSON to get all workers' lines."
        )
    size, chunks = service.log_bytes(job, actor=asker, worker=worker, attempt=attempt, offset=offset)
    headers = {
        "Content-Length": str(size),
        "Content-Disposition": f'attachment; filename="{worker}.log"',
        "X-Content-Type-Options": "nosniff",
    }
    # no charset: these are the bytes that the user's code printed, whatever they are
    return StreamingResponse(chunks, headers={**headers, "Content-Type": "text/plain"})


@router.get("/feed", response_class=StreamingResponse, responses=also("text/event-stream"))
def feed(
    service: Service,
    asker: Asker,
    job: JobId,
    kinds: Annotated[list[Kind] | None, Query(description="All if left out.")] = None,
    after: After = 0,
    last_event_id: LastEventId = None,
) -> StreamingResponse:
    """Events, metrics and logs in one stream, in the order in which the service learnt of them."""
    return Follow(service, asker, job, tuple(kinds or KINDS)).response(last_event_id, after)
