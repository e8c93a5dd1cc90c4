"""The driver's line to the service, with its own door: a one-time code, then the driver's token."""

import asyncio
import contextlib
import time
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from starlette.concurrency import run_in_threadpool

from elastrain.api.asking import Service, Writing, refusals
from elastrain.api.door import driver_token
from elastrain.api.replies import Reply
from elastrain.service.changes import orders

router = APIRouter(prefix="/driver", tags=["driver"], responses=refusals(400, 401, 403, 410, 413, 422))

# the store is asked anyway: the watch that would have brought news may itself be cut off from it
SURE_S = 10.0

Message = Annotated[dict[str, Any], Body()]


@router.post("/claim")
def claim(service: Service, message: Message) -> Reply:
    """Turns the attempt's one-time code into its token, spec and secrets."""
    return Reply(service.driver_claim(message))


@router.post("/facts")
async def facts(service: Service, writers: Writing, request: Request, message: Message) -> Reply:
    """Takes facts in order; those that are known already are passed over."""
    return Reply(await writers.facts(partial(service.driver_facts, driver_token(request), message)))


@router.get("/desired")
async def desired(
    service: Service,
    request: Request,
    version: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=60)] = 30,
) -> Reply:
    """What the attempt should do: at once if it is not `version`, else on a change or after `wait_s`."""
    token, until = driver_token(request), time.monotonic() + wait_s
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with contextlib.suppress(RuntimeError):  # the server is going down
            loop.call_soon_threadsafe(news.set)

    job, _ = await run_in_threadpool(service.driver_version, token)
    with service.changes.listening(orders(job), wake):
        while True:
            news.clear()
            _, current = await run_in_threadpool(service.driver_version, token)
            if current != version or time.monotonic() >= until or await request.is_disconnected():
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), min(SURE_S, until - time.monotonic()))
    return Reply(await run_in_threadpool(service.driver_desired, token))
