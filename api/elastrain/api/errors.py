"""The one renderer of errors: each leaves the API as RFC 9457 problem details, never as a traceback."""

import logging
import uuid
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from elastrain.api.replies import Reply
from elastrain.service.errors import ServiceError, Unavailable

log = logging.getLogger("elastrain.api")


class ProblemReply(Reply):
    media_type = "application/problem+json"
    code = ""  # of the problem, for those who count them


def problem(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    errors: Iterable[Mapping[str, Any]] = (),
    hint: str | None = None,
    headers: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> ProblemReply:
    """Problem details as a response. `extra` holds further members such as `allowed_actions`."""
    body: dict[str, Any] = {
        **(extra or {}),
        "type": f"urn:elastrain:problem:{code}",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        "errors": [dict(error) for error in errors],
    }
    if hint:
        body["hint"] = hint
    reply = ProblemReply(body, status_code=status, headers=dict(headers or {}))
    reply.code = code
    return reply


def render(error: ServiceError) -> ProblemReply:
    """What the service refuses, as the client sees it."""
    headers = {"WWW-Authenticate": "Bearer"} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(error.retry_after_s)
    return problem(
        error.status,
        error.code,
        error.title,
        error.detail,
        errors=error.errors,
        hint=error.hint,
        headers=headers,
        extra=error.extra,
    )


def pointer(location: Iterable[Any]) -> str:
    """FastAPI's location of a fault as a JSON pointer; the body's own fields start at the root."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location]
    if parts and parts[0] == "body":
        parts = parts[1:]
    return "".join(f"/{part}" for part in parts)


def refuse_request(error: RequestValidationError) -> ProblemReply:
    """A request that does not fit: 400 if it is not even JSON, else 422 with every fault at once."""
    faults = error.errors()
    if any(fault["type"] == "json_invalid" for fault in faults):
        why = str(faults[0].get("ctx", {}).get("error", "it cannot be parsed"))
        return problem(
            400, "bad_json", "Bad JSON", f"The body is not JSON: {why}.", hint="Send one JSON object."
        )
    errors = [{"pointer": pointer(fault["loc"]), "detail": str(fault["msg"])} for fault in faults]
    if not errors[0]["pointer"]:  # the body as a whole, such as YAML, or JSON that is not called so
        said = "The body is not one JSON object, or its Content-Type is not application/json."
        return problem(422, "invalid", "Invalid request", said, errors=errors, hint="Send one JSON object.")
    count = f"{len(errors)} field{'s are' if len(errors) > 1 else ' is'} wrong"
    first = f"{errors[0]['pointer']}: {errors[0]['detail']}"
    return problem(422, "invalid", "Invalid request", f"{count}; {first}.", errors=errors)


def refuse_route(request: Request, error: HTTPException) -> ProblemReply:
    """No such path, no such method on it, and what else the framework itself refuses."""
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_")
    detail = f"{request.method} {request.url.path}: {str(error.detail).lower()}."
    hint = "GET /openapi.json lists every route." if error.status_code in (404, 405) else None
    return problem(error.status_code, code, phrase, detail, hint=hint, headers=error.headers)


def own_fault(request: Request, error: Exception) -> ProblemReply:
    """A bug of ours: the log gets the traceback, the client a number to find it by."""
    number = uuid.uuid4().hex[:12]
    log.error(
        "fault %s in %s %s",
        number,
        request.method,
        request.url.path,
        exc_info=(type(error), error, error.__traceback__),
    )
    return problem(
        500,
        "internal",
        "Internal error",
        f"The service failed on this request; its log has the cause under {number}.",
        hint="Try again; if it stays, report the number.",
        extra={"fault": number},
    )


async def answer(request: Request, error: Exception) -> ProblemReply:
    """Any exception that a handler let through, as problem details."""
    reply = _answer(request, error)
    request.state.problem = reply.code
    return reply


def _answer(request: Request, error: Exception) -> ProblemReply:
    if isinstance(error.__cause__, ServiceError):  # what stopped the reading of the body
        error = error.__cause__
    if isinstance(error, ServiceError):
        return render(error)
    if isinstance(error, RequestValidationError):
        return refuse_request(error)
    if isinstance(error, HTTPException):
        return refuse_route(request, error)
    return own_fault(request, error)


def install(app: FastAPI) -> None:
    """Makes `app` answer every error as problem details."""
    for kind in (ServiceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
