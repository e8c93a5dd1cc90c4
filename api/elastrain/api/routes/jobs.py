"""Jobs: submit, list, look at, change, cancel, and the workers and generations that they have."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from starlette.concurrency import run_in_threadpool

from elastrain.api.asking import (
    MOST,
    Cursor,
    IdempotencyKey,
    JobId,
    Limit,
    Service,
    Writing,
    refusals,
)
from elastrain.api.door import Asker
from elastrain.api.replies import Reply
from elastrain.api.schemas.jobs import Cancelled, DryRun, Job, JobPage, JobPatch
from elastrain.api.schemas.training import GenerationPage, WorkerPage

router = APIRouter(prefix="/jobs", tags=["jobs"], responses=refusals(401, 403, 422))

# routes that write a wish down, which others then fulfil
ASKED: dict[str, Any] = {"status_code": 202, "response_model": Job, "responses": refusals(404, 409)}
StatusFilter = Annotated[str | None, Query(max_length=200, description="One or several, comma-separated.")]
ProjectFilter = Annotated[str | None, Query(max_length=63)]
LabelFilter = Annotated[str | None, Query(max_length=200, description="`key:value`.")]
SPEC_EXAMPLE = {
    "name": "digits",
    "task": "elastrain.trainers.tasks.digits:Digits",
    "optimizer": {"name": "adam", "lr": 0.001},
    "batch": {"size": 256, "microbatch": 32},
    "epochs": 5,
    "workers": {"min": 1, "max": 4},
}


@router.post(
    "",
    status_code=201,
    response_model=Job | DryRun,
    responses={
        **refusals(400, 409, 413),
        200: {"model": Job | DryRun, "description": "Known already, or a dry run"},
    },
)
async def submit(
    service: Service,
    writers: Writing,
    asker: Asker,
    spec: Annotated[dict[str, Any], Body(examples=[SPEC_EXAMPLE])],
    idempotency_key: IdempotencyKey = None,
    dry_run: bool = False,
) -> Reply:
    """Stores a job, to be scheduled; with `dry_run` only says what would happen."""
    if dry_run:
        return Reply(await run_in_threadpool(service.dry_run, spec, actor=asker))
    write = partial(service.submit, spec, actor=asker, idempotency_key=idempotency_key)
    job, created = await writers.submit(write)
    headers = {"Location": f"/v1/jobs/{job['id']}"}
    return Reply(job, status_code=201 if created else 200, headers=headers)


@router.get("", response_model=JobPage)
def list_jobs(
    service: Service,
    asker: Asker,
    status: StatusFilter = None,
    project: ProjectFilter = None,
    label: LabelFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Reply:
    """Jobs, newest first."""
    page = service.list_jobs(
        actor=asker, status=status, project=project, label=label, limit=limit, cursor=cursor
    )
    return Reply(page)


@router.get("/{job}", response_model=Job, responses=refusals(404))
def get_job(service: Service, asker: Asker, job: JobId) -> Reply:
    """One job in full."""
    return Reply(service.job(job, actor=asker))


@router.patch("/{job}", response_model=Job, responses=refusals(400, 404, 409, 413))
def patch_job(service: Service, asker: Asker, job: JobId, change: JobPatch) -> Reply:
    """Changes a live job: its range of workers, priority, labels; and whether it is kept for ever."""
    return Reply(service.patch(job, change.model_dump(exclude_unset=True), actor=asker))


@router.post("/{job}/cancel", **ASKED)
def cancel(
    service: Service,
    asker: Asker,
    job: JobId,
    force: Annotated[
        bool, Query(description="For admins: without the proof, where the cluster cannot give it any more.")
    ] = False,
    idempotency_key: IdempotencyKey = None,
) -> Reply:
    """Asks for the job's end; `cancelled` is only reached once all its processes are gone."""
    done = service.cancel(job, actor=asker, force=force, idempotency_key=idempotency_key)
    return Reply(done, status_code=202)


@router.post("/{job}/pause", **ASKED)
def pause(service: Service, asker: Asker, job: JobId, idempotency_key: IdempotencyKey = None) -> Reply:
    """Saves a checkpoint and gives everything back; `paused` until it is resumed."""
    return Reply(service.ask("pause", job, actor=asker, idempotency_key=idempotency_key), status_code=202)


@router.post("/{job}/resume", **ASKED)
def resume(service: Service, asker: Asker, job: JobId, idempotency_key: IdempotencyKey = None) -> Reply:
    """Puts a paused job back into the queue; it goes on from its checkpoint."""
    return Reply(service.ask("resume", job, actor=asker, idempotency_key=idempotency_key), status_code=202)


@router.post("/{job}/retry", **ASKED)
def retry(service: Service, asker: Asker, job: JobId, idempotency_key: IdempotencyKey = None) -> Reply:
    """A new attempt of a failed or cancelled job, from its newest good checkpoint, with all its retries."""
    return Reply(service.ask("retry", job, actor=asker, idempotency_key=idempotency_key), status_code=202)


@router.post("/{job}/checkpoint", **ASKED)
def checkpoint(service: Service, asker: Asker, job: JobId, idempotency_key: IdempotencyKey = None) -> Reply:
    """Saves a checkpoint as soon as possible; acknowledged by number in `checkpoint_requests`."""
    return Reply(
        service.ask("checkpoint", job, actor=asker, idempotency_key=idempotency_key), status_code=202
    )


@router.delete("/{job}", status_code=202, response_model=Job, responses=refusals(404, 409))
def delete(service: Service, asker: Asker, job: JobId) -> Reply:
    """Removes an ended job and its data. The answer is the last that is seen of it."""
    return Reply(service.delete(job, actor=asker), status_code=202)


@router.post("/cancel", response_model=Cancelled, responses=refusals(409))
def cancel_many(
    service: Service,
    asker: Asker,
    status: StatusFilter = None,
    project: ProjectFilter = None,
    label: LabelFilter = None,
    dry_run: bool = False,
    idempotency_key: IdempotencyKey = None,
) -> Reply:
    """Cancels every job that the filter finds, with an answer for each; with `dry_run` only lists them."""
    return Reply(
        service.cancel_many(
            actor=asker,
            status=status,
            project=project,
            label=label,
            dry_run=dry_run,
            idempotency_key=idempotency_key,
        )
    )


@router.post(
    "/{job}/clone",
    status_code=201,
    response_model=Job,
    responses={**refusals(400, 404, 409, 413), 200: {"model": Job, "description": "Known already"}},
)
def clone(
    service: Service,
    asker: Asker,
    job: JobId,
    overrides: Annotated[dict[str, Any] | None, Body(examples=[{"optimizer": {"lr": 0.01}}])] = None,
    idempotency_key: IdempotencyKey = None,
) -> Reply:
    """A new job from scratch, with this one's spec but for the fields in the body."""
    made, created = service.clone(job, overrides or {}, actor=asker, idempotency_key=idempotency_key)
    headers = {"Location": f"/v1/jobs/{made['id']}"}
    return Reply(made, status_code=201 if created else 200, headers=headers)


@router.get("/{job}/workers", response_model=WorkerPage, responses=refusals(404))
def workers(
    service: Service, asker: Asker, job: JobId, attempt: Annotated[int | None, Query(ge=1, le=MOST)] = None
) -> Reply:
    """The workers of the current attempt (or of the one asked for), those that left included."""
    return Reply(service.workers(job, actor=asker, attempt=attempt))


@router.get("/{job}/generations", response_model=GenerationPage, responses=refusals(404))
def generations(
    service: Service, asker: Asker, job: JobId, limit: Limit = 100, cursor: Cursor = None
) -> Reply:
    """Every fixed set of workers that the job has had, and how long forming it paused training."""
    return Reply(service.generations(job, actor=asker, limit=limit, cursor=cursor))
