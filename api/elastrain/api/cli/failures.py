"""Errors as one clear message, and as the exit codes of the contract."""

import sys
from collections.abc import Callable, Mapping
from functools import wraps

import typer

from elastrain.api.cli.traces import failure_lines
from elastrain.client.errors import (
    Conflict,
    ElastrainError,
    FixRequest,
    JobFailed,
    NotAllowed,
    NotFound,
    ServiceBroken,
    TimedOut,
    Unreachable,
)

JOB_FAILED = 1
EXIT_CODES: dict[type[ElastrainError], int] = {
    JobFailed: JOB_FAILED,
    FixRequest: 2,
    NotFound: 3,
    NotAllowed: 4,
    Conflict: 5,
    TimedOut: 6,
    Unreachable: 7,
    ServiceBroken: 7,
}


def guarded(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with its result as the exit code, and with errors that a person can act on."""

    @wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            code = command(*arguments, **options) or 0
        except ElastrainError as error:
            code = report(error)
        except BrokenPipeError:
            raise  # nobody reads any more: no error of this command's
        except OSError as error:  # a file or folder that was named: `--out`, ELASTRAIN_HOME; or a full disk
            where = f"{error.filename}: " if error.filename is not None else ""
            code = report(FixRequest(f"{where}{error.strerror or error}."))
        if code:
            raise typer.Exit(code)

    return run


def report(error: ElastrainError) -> int:
    """Prints the error to stderr; returns the exit code."""
    lines = failure_lines(error.job) if isinstance(error, JobFailed) else describe(error)
    print("\n".join(lines), file=sys.stderr)
    return EXIT_CODES.get(type(error), 7)


def describe(error: ElastrainError) -> list[str]:
    """What is wrong, each field at fault, what can be done."""
    fields = [_named(field) for field in error.errors]
    if len(fields) == 1:
        lines = [f"Error: {fields[0]}"]
    else:
        what = f"{len(fields)} fields are wrong:" if fields else error.detail
        lines = [f"Error: {what}", *(f"  {field}" for field in fields)]
    if isinstance(error, Conflict) and error.allowed_actions:
        lines.append(f"Possible now: {', '.join(error.allowed_actions)}")
    elif error.hint:
        lines.append(f"Hint: {error.hint}")
    return lines


def _named(field: Mapping[str, str]) -> str:
    """What is wrong with a field, after its name, which is said once."""
    name = field["pointer"].lstrip("/").replace("/", ".") or "spec"
    return field["detail"] if field["detail"].startswith(f"{name} ") else f"{name}: {field['detail']}"
