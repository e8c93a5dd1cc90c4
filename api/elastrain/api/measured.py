"""Every request is counted and timed by its route, in a few microseconds; its path never becomes a label."""

from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastrain.service.meters import Meters

# what answered no route: there are as many such paths as somebody likes to try
UNKNOWN = "(none)"
PREFIX = "/v1"


class Measured:
    """ASGI middleware around the door, so that refusals count as well."""

    def __init__(self, app: ASGIApp, meters: Meters) -> None:
        self.app = app
        self.meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, answered = perf_counter(), False

        async def told(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start" and not answered:
                answered = True
                self._count(scope, message["status"], perf_counter() - began)
            await send(message)

        try:
            await self.app(scope, receive, told)
        except Exception:  # it becomes an answer further out, see errors.own_fault
            if not answered:
                scope.setdefault("state", {}).setdefault("problem", "internal")
                self._count(scope, 500, perf_counter() - began)
            raise

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        self.meters.request(scope["method"], template(scope), status, seconds)
        problem = scope.get("state", {}).get("problem")
        if problem is not None:
            self.meters.problems.labels(problem).inc()


def template(scope: Scope) -> str:
    """The path of the route that took the request, as `/v1/jobs/{id}`."""
    route = scope.get("route")
    path = getattr(route, "path_format", None) or getattr(route, "path", None)
    if path is None:
        return UNKNOWN
    under_prefix = scope["path"].startswith(f"{PREFIX}/") and not path.startswith(f"{PREFIX}/")
    return f"{PREFIX}{path}" if under_prefix else str(path)  # an included route may not know its prefix
