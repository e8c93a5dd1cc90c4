"""What can go wrong for a client, named by what its user does next."""

from collections.abc import Mapping
from typing import Any


class ElastrainError(Exception):
    """The root. `detail` is for people; `problem` is the server's problem details, empty if it sent none."""

    def __init__(self, detail: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problem = dict(problem or {})

    @property
    def errors(self) -> list[dict[str, str]]:
        """The fields at fault: `pointer` and `detail` of each."""
        return list(self.problem.get("errors") or [])

    @property
    def hint(self) -> str | None:
        return self.problem.get("hint")


class FixRequest(ElastrainError):
    """The request is wrong: change it and send it again."""


class NotFound(ElastrainError):
    """There is no such thing (for this token): check the id."""


class NotAllowed(ElastrainError):
    """The token is missing, wrong or may not do this: get another token."""


class Conflict(ElastrainError):
    """Not possible in the present state: `allowed_actions` says what is."""

    @property
    def allowed_actions(self) -> list[str]:
        return list(self.problem.get("allowed_actions") or [])


class Unreachable(ElastrainError):
    """The service did not answer, or asked to come back later: try again."""


class ServiceBroken(ElastrainError):
    """The service answered with a fault of its own: report the number in the message."""


class TimedOut(ElastrainError):
    """The wait took as long as was allowed; whatever was waited for goes on."""


class JobFailed(ElastrainError):
    """The job ended without success; `job` is its last state."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        message = str(job.get("message") or job.get("reason") or "no message")
        super().__init__(f"job {job['id']} {job['status']}: {message}")
        self.job = dict(job)


def from_problem(status: int, problem: Mapping[str, Any]) -> ElastrainError:
    """The error for an HTTP status of 400 or more."""
    kinds: dict[int, type[ElastrainError]] = {
        401: NotAllowed,
        403: NotAllowed,
        404: NotFound,
        409: Conflict,
        410: Conflict,
        429: Unreachable,
        502: Unreachable,
        503: Unreachable,
        504: Unreachable,
    }
    kind = kinds.get(status, FixRequest if status < 500 else ServiceBroken)
    detail = str(problem.get("detail") or problem.get("title") or f"the service answered {status}")
    return kind(detail, problem)
