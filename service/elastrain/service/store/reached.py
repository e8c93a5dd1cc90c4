"""What a database that is away, refuses us, or is none is called, for whoever asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DatabaseError, DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from elastrain.service.errors import Invalid, Unavailable

LOCKED = "The database is locked by another program"


class NoDatabase(ValueError):
    """This URL cannot be used, or what it names is no database. The message goes on after its name, and does
    not hold the URL: there may be a password in it."""


@contextmanager
def readable() -> Iterator[None]:
    """Around `reached`, which makes those that are away Unavailable. Raises NoDatabase."""
    try:
        yield
    except DatabaseError as error:
        raise NoDatabase(f"names something else: {first_line(error.orig)}") from error


@contextmanager
def reached() -> Iterator[None]:
    """A database that is away, or does not come to it in time, is no fault of whoever asks."""
    try:
        yield
    except DataError as error:
        raise _unfit(error.orig or error) from error
    except (OperationalError, InterfaceError, PoolTimeout, DBAPIError) as error:
        if not away(error):
            raise
        raise Unavailable(trouble_of(error), hint="Nothing is lost; try again.") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise _unfit(error) from error


def away(error: Exception) -> bool:
    """Whether the error is about reaching the database, not about what was asked of it."""
    if isinstance(error, PoolTimeout | InterfaceError):
        return True
    if isinstance(error, DBAPIError) and (error.connection_invalidated or _read_only(error)):
        return True
    # SQLite calls a wrong statement operational too
    return isinstance(error, OperationalError) and not str(error.orig).startswith("no such")


def trouble_of(error: Exception) -> str:
    """A sentence for whoever asked; it names no address. The log has the database's own words."""
    said = str(error.orig).lower() if isinstance(error, DBAPIError) else ""
    if _read_only(error):
        return "The database is read-only and takes no writes"
    if "is full" in said or "no space left" in said:
        return "The disk of the database is full"
    if "is locked" in said:
        return LOCKED
    return "The database does not answer"


def _read_only(error: Exception) -> bool:
    """A file or folder without the right to write, or a PostgreSQL that has become a standby."""
    orig = error.orig if isinstance(error, DBAPIError) else None
    return "readonly database" in str(orig) or getattr(orig, "sqlstate", None) == "25006"


def _unfit(error: BaseException) -> Invalid:
    return Invalid(
        f"The request holds a value that no database can hold: {first_line(error)}",
        hint="Leave out NUL characters and halves of surrogate pairs, and numbers beyond 64 bits.",
    )


def first_line(said: object) -> str:
    return str(said).strip().split("\n", 1)[0]
