"""What routes have in common: the service, names in paths, the documented errors."""

from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request

from elastrain.api.schemas.service import Problem
from elastrain.api.writers import Writers
from elastrain.service.control import Control


async def control(request: Request) -> Control:
    """The service behind this app. Not a plain function, which would go through a thread in each request."""
    found: Control = request.app.state.control
    return found


async def writers(request: Request) -> Writers:
    """Those who write into the store."""
    found: Writers = request.app.state.writers
    return found


Service = Annotated[Control, Depends(control)]
Writing = Annotated[Writers, Depends(writers)]
JobId = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$",
        description="The job's id; it may be shortened while unique.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before.")]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        description="The same key with the same body is the same request, and gets its answer.",
    ),
]

# beyond what any position, step or offset comes to, and within what every database can compare
MOST = 2**53

Answers = dict[int | str, dict[str, Any]]


def refusals(*statuses: int) -> Answers:
    """The problems that a route may answer with, for its documentation."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"model": Problem, "content": content} for status in statuses}
