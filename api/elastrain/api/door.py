"""The door: every request needs a bearer token, also for paths that do not exist, but for a short list.

It stands in front of the router, so a new route is closed without doing anything for it.
"""

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastrain.api.errors import render
from elastrain.service.control import Actor, Control
from elastrain.service.errors import ServiceError, TooLarge

# nothing here names a job, a user or an address
OPEN = frozenset({("GET", "/"), ("GET", "/healthz"), ("GET", "/readyz")})
# it checks the driver's one-time code itself
CLAIM = ("POST", "/v1/driver/claim")
# these want the token that the claim returned
DRIVERS = frozenset({("POST", "/v1/driver/facts"), ("GET", "/v1/driver/desired")})
# the most bytes of a JSON body; packages stream past it, with the service's own limit
BODY_MAX = 16 * 2**20
STREAMED = "/v1/packages/"
# and of one that is read before anybody has shown who he is
CLAIM_MAX = 64 * 2**10


class Door:
    """ASGI middleware that turns a token into the request's actor or answers 401."""

    def __init__(self, app: ASGIApp, control: Control) -> None:
        self.app = app
        self.control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                await self.enter(scope)
            except ServiceError as error:
                scope.setdefault("state", {})["problem"] = error.code
                await render(error)(scope, receive, send)
                return
            if not scope["path"].startswith(STREAMED):
                receive = limited(receive, most(scope))
        await self.app(scope, receive, send)

    async def enter(self, scope: Scope) -> None:
        """Raises Unauthenticated or TooLarge; otherwise the request may pass, with its actor in its state.

        Nothing of its body was read by then.
        """
        headers = Headers(scope=scope)
        way, token = (scope["method"], scope["path"]), bearer(headers.get("authorization"))
        if way in DRIVERS:
            if not self.control.driver_met(token):
                await run_in_threadpool(self.control.driver_meet, token)
        elif way not in OPEN and way != CLAIM:
            actor = self.control.auth.known(token)
            if actor is None:
                actor = await run_in_threadpool(self.control.authenticate, token)
            scope.setdefault("state", {})["actor"] = actor
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > most(scope) and not scope["path"].startswith(STREAMED):
            raise too_large(int(length), most(scope))


def most(scope: Scope) -> int:
    """Bytes that the body of a request may have."""
    return CLAIM_MAX if (scope["method"], scope["path"]) == CLAIM else BODY_MAX


def too_large(size: int, limit: int) -> TooLarge:
    return TooLarge(
        f"The body has {size} bytes or more, the limit is {limit}.", extra={"size": size, "limit": limit}
    )


def limited(receive: Receive, limit: int) -> Receive:
    """`receive` that raises TooLarge once more than `limit` bytes came: a chunked body names no length."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise too_large(size, limit)
        return message

    return counted


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer` header, or None."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


def driver_token(request: Request) -> str:
    """The driver's own token, which the door has let pass."""
    return bearer(request.headers.get("authorization")) or ""


async def actor(request: Request) -> Actor:
    """Who is asking, as the door found it. Async for the same reason as `asking.control`."""
    found: Actor = request.state.actor
    return found


Asker = Annotated[Actor, Depends(actor)]
# only documents the door in OpenAPI; the door itself has already answered when this runs
documented = Depends(
    HTTPBearer(auto_error=False, description="A token; `elastrain up` writes one to HOME/token.")
)
