"""Cancelling many jobs at once, those that a filter finds, with an answer for each."""

from __future__ import annotations

from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.changes import Changes
from elastrain.service.clock import Clock
from elastrain.service.commands import ask_one
from elastrain.service.errors import Conflict, Invalid
from elastrain.service.idempotency import Once
from elastrain.service.jobs import ENDED, Status
from elastrain.service.listings import labels_in, statuses_in
from elastrain.service.store import Store, Tx, jobs
from elastrain.service.store.rows import JobRow

Json = dict[str, Any]
# a transaction cancels so many: others want to write too
AT_ONCE = 200
MOST = 100_000
ROUTE = "POST /jobs/cancel"


class Bulk:
    def __init__(self, store: Store, once: Once, clock: Clock, changes: Changes) -> None:
        self._store = store
        self._once = once
        self._clock = clock
        self._changes = changes

    def cancel(
        self,
        actor: Actor,
        status: str | None,
        project: str | None,
        label: str | None,
        dry_run: bool,
        key: str | None,
    ) -> Json:
        """{dry_run, items: [{id, name, status, done, detail}]}: every job that the filter finds.

        Jobs that have ended are found only if `status` names theirs. Raises Invalid without any filter, and
        for one that is empty.
        """
        actor.must("member", "cancel jobs")
        asked = {"status": status, "project": project, "label": label}
        if blank := [name for name, value in asked.items() if value is not None and not value.strip()]:
            raise Invalid(
                f"{' and '.join(blank)} {'is' if len(blank) == 1 else 'are'} empty, and would fit every job",
                hint="Leave it out, or name what you mean; a variable of your shell may not be set.",
            )
        if not any(asked.values()):
            alive = ",".join(status for status in Status if status not in ENDED)
            raise Invalid("Nothing says which jobs to cancel", hint=f"For all that live: status={alive}")
        wanted = statuses_in(status) or [status.value for status in Status if status not in ENDED]
        rows = self._found(actor, wanted, project, labels_in(label))
        if dry_run:
            return {"dry_run": True, "items": [_item(row, row.status, None) for row in rows]}
        if (before := self._once.known(actor, ROUTE, key, asked)) is not None:
            return before  # and what was submitted since is not cancelled by the repetition
        items: list[Json] = []
        # as whoever locks several: two that meet do not wait for each other
        rows.sort(key=lambda row: row.id)

        def act(tx: Tx) -> tuple[None, Json]:
            return None, {"dry_run": False, "items": items}

        # each is harmless to repeat, so a service that dies on the way is only asked again
        for first in range(0, len(rows), AT_ONCE):
            with self._store.write() as tx:
                items += [self._cancel(tx, row, wanted, actor) for row in rows[first : first + AT_ONCE]]
        items.reverse()  # the newest first, as in a list
        answer, _ = self._once.do(actor, ROUTE, key, asked, act)
        for item in items:
            self._changes.tell(item["id"], decide=True)
        return answer

    def _found(
        self, actor: Actor, statuses: list[str], project: str | None, labels: list[tuple[str, str]]
    ) -> list[JobRow]:
        if project is not None and not actor.sees(project):
            return []
        project = project or actor.project
        with self._store.read() as tx:
            return jobs.page(tx, statuses=statuses, project=project, labels=labels, before=None, limit=MOST)

    def _cancel(self, tx: Tx, row: JobRow, wanted: list[str], actor: Actor) -> Json:
        try:
            now = jobs.lock(tx, row.id)
            if now.status not in wanted:
                return _item(row, now.status, f"it is {now.status} by now")
            ask_one(tx, now, "cancel", actor.name, self._clock.now())
        except LookupError:
            return _item(row, row.status, "it was deleted meanwhile")
        except Conflict as error:
            return _item(row, now.status, error.detail)
        return _item(row, jobs.get(tx, row.id).status, None)


def _item(row: JobRow, status: Status, refused: str | None) -> Json:
    shown = {"id": row.id, "name": row.name, "project": row.project, "status": status.value}
    return {**shown, "done": refused is None, "detail": refused}
