"""Which job a caller means, and whether it exists for that caller."""

from __future__ import annotations

from elastrain.service import ids
from elastrain.service.auth import Actor
from elastrain.service.errors import Conflict, Forbidden, NotFound
from elastrain.service.store import Tx, jobs
from elastrain.service.store.rows import JobRow


def find(tx: Tx, text: str, actor: Actor) -> JobRow:
    """The job with this id, or the only one that begins so. Raises NotFound, Conflict if there are more."""
    wanted = text if text.startswith("j-") else f"j-{text}"
    if ids.is_job_id(wanted) or (len(wanted) > 2 and wanted[2:].isalnum()):
        found = jobs.starting_with(tx, wanted, actor.project)
        if len(found) == 1 or (found and found[0].id == wanted):
            return found[0]
        if found:
            listed = ", ".join(row.id for row in found)
            raise Conflict(f"{text!r} begins the ids of several jobs: {listed}", code="ambiguous_id")
    raise NotFound(f"There is no job {text[:80]!r}", hint="`elastrain ls` lists the jobs.")


def lock(tx: Tx, text: str, actor: Actor, to: str) -> JobRow:
    """As `find`, for a change. Raises Forbidden if the actor's role does not allow to `to`."""
    id = find(tx, text, actor).id
    if actor.role == "viewer":
        raise Forbidden(f"{actor.name!r} is a viewer; to {to} takes the role member", hint="Ask an admin.")
    try:
        row = jobs.lock(tx, id)
    except LookupError:
        row = None
    if row is None or row.deleted_at is not None:  # a moment ago
        raise NotFound(f"There is no job {id!r}")
    return row
