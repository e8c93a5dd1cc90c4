"""The driver's line to the service, with its own door: a one-time code, then the driver's token."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from starlette.concurrency import run_in_threadpool

from elastrain.api.asking import Service, refusals
from elastrain.api.door import driver_token
from elastrain.api.replies import Reply
from elastrain.api.sse import LOOK_S, POLL_S

router = APIRouter(prefix="/driver", tags=["driver"], responses=refusals(400, 401, 403, 410, 413, 422))


Message = Annotated[dict[str, Any], Body()]


@router.post("/claim")
def claim(service: Service, message: Message) -> Reply:
    """Turns the attempt's one-time code into its token, spec and secrets."""
    return Reply(service.driver_claim(message))


@router.post("/facts")
def facts(service: Service, request: Request, message: Message) -> Reply:
    """Takes facts in order; those that are known already are passed over."""
    return Reply(service.driver_facts(driver_token(request), message))


@router.get("/desired")
async def desired(
    service: Service,
    request: Request,
    version: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=60)] = 30,
) -> Reply:
    """What the attempt should do: at once if it is not `version`, else on a change or after `wait_s`."""
    token, until = driver_token(request), time.monotonic() + wait_s
    while True:
        seen = service.changes.count()
        answer = await run_in_threadpool(service.driver_desired, token, version)
        if answer["version"] != version or time.monotonic() >= until or await request.is_disconnected():
            return Reply(answer)
        again = min(until, time.monotonic() + POLL_S)
        while service.changes.count() == seen and time.monotonic() < again:
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(LOOK_S)  # a burst of facts of other jobs is one look, not hundreds
