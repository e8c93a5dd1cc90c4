"""Every request as a span, named by its route. In the app only where traces are on."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastrain.api.measured import template
from elastrain.service.tracing import Tracing

# asked every few seconds by machines, and of no interest
QUIET = frozenset({"/healthz", "/readyz", "/metrics"})


class Traced:
    """ASGI middleware. The span of a stream lasts as long as somebody follows it."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self.app = app
        self.tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in QUIET:
            await self.app(scope, receive, send)
            return
        with self.tracing.request(scope["method"], Headers(scope=scope)) as span:

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self.app(scope, receive, told)
            finally:
                span.update_name(f"{scope['method']} {template(scope)}")
                span.set_attribute("http.route", template(scope))
