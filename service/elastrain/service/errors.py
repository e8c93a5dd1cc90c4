"""What the service answers when it cannot do what was asked, named by the caller's next move.

Every error carries its HTTP status and everything an RFC 9457 problem needs; the API has one renderer.
`code` is stable and meant for programs, `detail` says what is wrong with the value, `hint` what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypedDict


class FieldError(TypedDict):
    """One wrong place in a request body. `pointer` is a JSON pointer such as /batch/microbatch."""

    pointer: str
    detail: str


class ServiceError(Exception):
    """The root of all answers that are not the one hoped for."""

    status = 500
    code = "internal_error"
    title = "The service failed"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        errors: Iterable[FieldError] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or type(self).code
        self.hint = hint
        self.errors = list(errors)
        self.extra = dict(extra or {})

    def problem(self) -> dict[str, Any]:
        """The RFC 9457 body, ready for JSON."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "errors": self.errors,
            "hint": self.hint,
        }
        return {**body, **self.extra}


class Unauthenticated(ServiceError):
    """No token, or one that is unknown or expired: get a token."""

    status, code, title = 401, "unauthenticated", "A valid token is needed"


class Forbidden(ServiceError):
    """The token is good and does not allow this."""

    status, code, title = 403, "forbidden", "This token does not allow that"


class NotFound(ServiceError):
    """There is no such thing, or the caller may not know that there is."""

    status, code, title = 404, "not_found", "Not found"


class Conflict(ServiceError):
    """Not in this state; `allowed_actions` in `extra` says what can be done now."""

    status, code, title = 409, "conflict", "Not possible now"


class Gone(ServiceError):
    """A newer attempt has taken over: stop posting and exit."""

    status, code, title = 410, "superseded", "A newer attempt has taken over"


class TooLarge(ServiceError):
    """Over a size limit; limit and size in bytes are in `extra`."""

    status, code, title = 413, "too_large", "Too large"


class Invalid(ServiceError):
    """The request itself is wrong: fix the fields named in `errors`."""

    status, code, title = 422, "invalid", "The request is not valid"


class Unavailable(ServiceError):
    """Something that the service depends on does not answer: try again in `retry_after_s` seconds."""

    status, code, title = 503, "unavailable", "Try again shortly"

    def __init__(self, detail: str, *, retry_after_s: int = 5, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint, extra={"retry_after_s": retry_after_s})
        self.retry_after_s = retry_after_s
