"""The half of Control that changes jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.service.auth import Actor
from elastrain.service.bulk import Bulk
from elastrain.service.commands import Commands
from elastrain.service.patching import Patching
from elastrain.service.removal import Removal
from elastrain.service.submission import Submission

Json = dict[str, Any]


class JobActions:
    """What may be done to jobs. A `key` makes a repeated call the same call: it gets the same answer."""

    _submission: Submission
    _commands: Commands
    _patching: Patching
    _bulk: Bulk
    _removal: Removal

    def submit(
        self, spec: Mapping[str, Any], *, actor: Actor, idempotency_key: str | None = None
    ) -> tuple[Json, bool]:
        """-> (job, created). created is False if this key was used for the same spec before.

        Raises Invalid with a pointer per wrong field (or: key used for another spec), Forbidden, Conflict.
        """
        return self._submission.submit(spec, actor, idempotency_key)

    def dry_run(self, spec: Mapping[str, Any], *, actor: Actor) -> Json:
        """{spec, schedulable, would_get, blocked_by, warnings}; raises as `submit`."""
        return self._submission.dry_run(spec, actor)

    def clone(
        self, job_id: str, overrides: Mapping[str, Any], *, actor: Actor, idempotency_key: str | None = None
    ) -> tuple[Json, bool]:
        """-> (job, created): a new job from scratch with this one's spec and `overrides`; as `submit`."""
        return self._submission.clone(job_id, overrides, actor, idempotency_key)

    def patch(self, job_id: str, body: Mapping[str, Any], *, actor: Actor) -> Json:
        """Change a live job: workers {min, max}, priority, labels, pinned; the last two also when it ended.

        Raises Invalid, Forbidden, Conflict.
        """
        return self._patching.patch(job_id, body, actor)

    def ask(self, action: str, job_id: str, *, actor: Actor, idempotency_key: str | None = None) -> Json:
        """The job after cancel, pause, resume, retry or checkpoint, the same however often it is asked.

        Raises Conflict with `allowed_actions` if that is impossible now.
        """
        return self._commands.ask(action, job_id, actor, idempotency_key)

    def cancel(
        self, job_id: str, *, actor: Actor, force: bool = False, idempotency_key: str | None = None
    ) -> Json:
        """The job, cancelling or cancelled, however often. Raises Conflict once it ended otherwise.

        force: for admins, without the proof that its processes are gone: the receipt says so.
        """
        if force:
            return self._commands.force_cancel(job_id, actor, idempotency_key)
        return self.ask("cancel", job_id, actor=actor, idempotency_key=idempotency_key)

    def cancel_many(
        self,
        *,
        actor: Actor,
        status: str | None = None,
        project: str | None = None,
        label: str | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """{dry_run, items: [{id, name, project, status, done, detail}]}: cancel all that the filter finds.

        Raises Invalid if there is no filter at all.
        """
        return self._bulk.cancel(actor, status, project, label, dry_run, idempotency_key)

    def delete(self, job_id: str, *, actor: Actor) -> Json:
        """The job as it was; it and its data are gone from now on. Raises Conflict unless it has ended."""
        return self._removal.delete(job_id, actor)

    def preempt_all(self, message: str) -> list[str]:
        """Ask every job with an open attempt to checkpoint and go back to the queue; returns their ids.

        Costs none of their retries. For `up`, which ends them before it ends Ray.
        """
        return self._commands.preempt_all(message)
