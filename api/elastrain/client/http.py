"""The client's line to the service: one token, few retries, errors by the caller's next move."""

import ssl
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from elastrain.client.errors import ElastrainError, FixRequest, ServiceBroken, Unreachable, from_problem
from elastrain.client.home import Address, loopback

LEAST_S, LONGEST_S = 5.0, 30.0  # for an answer, however short or long somebody wants to wait
TIMEOUT = httpx.Timeout(LONGEST_S, connect=LEAST_S)
PAUSES_S = (0.2, 0.6, 1.5)  # between tries; every request of ours may be repeated safely


class Http:
    """Requests to one service with its token. Raises ElastrainError's children, never httpx errors."""

    def __init__(self, address: Address, transport: httpx.BaseTransport | None = None) -> None:
        self.url = address.url
        self._client = httpx.Client(
            base_url=address.url,
            headers={"Authorization": f"Bearer {address.token}"},
            timeout=TIMEOUT,
            transport=transport,
            verify=_trust(address),
            trust_env=not loopback(
                address.url
            ),  # a proxy for the outside must not get between us and this machine
        )

        # a client that was only dropped lets go of its connections too
        self.close = weakref.finalize(self, self._client.close)

    def json(self, method: str, path: str, **request: Any) -> Any:
        """The answer's JSON body, with a few tries when nobody answers; arguments as in `send`."""
        reply = self.send(method, path, **request)
        try:
            return reply.json()
        except ValueError:
            kind = reply.headers.get("content-type", "something")
            raise ServiceBroken(
                f"{self.url} answered {method} {path} with {kind}, not with JSON: another program than "
                "elastrain listens there, or stands in between."
            ) from None

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Callable[[], Any] | None = None,
        within_s: float | None = None,
        also: tuple[int, ...] = (),
        **request: Any,
    ) -> httpx.Response:
        """A whole response; `body` makes a fresh request body for each try. Raises as the class says.

        All tries of a POST have one key: whichever of them the service hears first is the only one. What a
        DELETE no longer finds once an answer to it was lost is deleted. within_s: no more tries after that.
        also: statuses that are answers, beside the good ones.
        """
        lost, until = False, None if within_s is None else time.monotonic() + within_s
        if method == "POST":
            request["headers"] = {"Idempotency-Key": str(uuid.uuid4()), **request.get("headers", {})}
        for pause_s in (*PAUSES_S, None):
            over = pause_s is None or (until is not None and time.monotonic() + pause_s >= until)
            if within_s is not None:
                request["timeout"] = httpx.Timeout(max(LEAST_S, min(within_s, LONGEST_S)), connect=LEAST_S)
            try:
                content = {} if body is None else {"content": body()}
                reply = self._client.request(method, path, **content, **request)
                if reply.status_code in also or (lost and method == "DELETE" and reply.status_code == 404):
                    return reply
                return self._checked(reply)
            except Unreachable:
                if over:
                    raise
            except httpx.TransportError as error:
                if over:
                    raise self._unreachable(error) from error
                lost = True
            time.sleep(pause_s or 0.0)
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def stream(self, path: str, **request: Any) -> Iterator[httpx.Response]:
        """A response whose body is read piece by piece; no retries here. A broken line raises Unreachable."""
        try:
            with self._client.stream("GET", path, **request) as response:
                if response.is_error:
                    response.read()
                yield self._checked(response)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.is_success:
            return response
        raise from_problem(response.status_code, _problem(response))

    def _unreachable(self, error: httpx.TransportError) -> ElastrainError:
        why = str(error) or type(error).__name__
        return Unreachable(f"The service at {self.url} does not answer: {why}. Is it up? (`elastrain up`)")


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    """The problem details of an error, or what can be said without them."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and body:
        return body
    where = f"{response.request.method} {response.request.url.path}"
    return {"detail": f"{where} was answered with {response.status_code} {response.reason_phrase}"}


def _trust(address: Address) -> ssl.SSLContext | bool:
    """Certificates are loaded only for https: reading them takes longer than most commands do."""
    if not address.url.startswith("https:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return ssl.create_default_context(cafile=address.ca_bundle) if address.ca_bundle else True
    except OSError as error:
        why = error.strerror or error
        raise FixRequest(
            f"ELASTRAIN_CA_BUNDLE={address.ca_bundle!r} holds no certificates: {why}."
        ) from error
