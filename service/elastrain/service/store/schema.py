"""The tables. Only the store and its migrations know SQL; the rest of the service sees rows as dataclasses.

Times are seconds since the epoch. `position` numbers what happened to one job, over events, metrics and logs
together; it is given out under the job row's lock, so that a smaller position is never committed later.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)

metadata = MetaData()
_DELETED = text("deleted_at IS NOT NULL")


def _job() -> Column[str]:
    return Column("job", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True, nullable=False)


jobs = Table(
    "jobs",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("name", String(63), nullable=False),
    Column("project", String(63), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("created_by", String(200), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    # what is observed
    Column("status", String(20), nullable=False),
    Column("reason", String(40), nullable=False),
    Column("message", Text),
    Column("failed_by", String(20)),
    Column("since", Float, nullable=False),
    Column("queued_at", Float, nullable=False),
    Column("short_of", Integer, nullable=False),  # workers that a queued job lacks
    # what is wanted; the version grows with every change that the driver must hear of
    Column("desired", String(20), nullable=False),
    Column("desired_version", Integer, nullable=False),
    Column("desired_at", Float, nullable=False),
    Column("workers_min", Integer, nullable=False),
    Column("workers_max", Integer, nullable=False),
    Column("workers_target", Integer, nullable=False),
    Column("workers_held", Integer, nullable=False, server_default="0"),  # until the driver says otherwise
    Column("grown_at", Float, nullable=False, server_default="0"),
    Column("shrunk_at", Float, nullable=False, server_default="0"),
    Column("curve", JSON),  # how fast it was with how many
    Column("checkpoint_no", Integer, nullable=False),  # the newest request for a checkpoint
    Column("checkpoint_done", Integer, nullable=False, server_default="0"),  # acknowledged up to this one
    # attempts and their budget
    Column("attempt", Integer, nullable=False),
    Column("attempts_made", Integer, nullable=False),
    Column("next_attempt_at", Float, nullable=False),
    Column("retries_used", Integer, nullable=False),
    Column("retries_mark", Integer, nullable=False),
    Column("active_s", Float, nullable=False, server_default="0"),  # in starting and running, until `since`
    # the newest facts
    Column("position", BigInteger, nullable=False),
    Column("step", Integer, nullable=False),
    Column("total_steps", Integer),
    Column("epoch", Float),
    Column("eta_s", Float),
    Column("samples_per_s", Float),
    Column("workers_active", Integer, nullable=False),
    Column("workers_replaced", Integer, nullable=False),
    Column("steps_skipped", Integer, nullable=False),
    Column("warnings", JSON, nullable=False),
    # the metrics' age: what an older (attempt, epoch_no) said about the same steps is superseded
    Column("era_attempt", Integer, nullable=False),
    Column("era_epoch_no", Integer, nullable=False),
    # how long it stays: pinned ones until they are deleted, deleted ones until their data is gone
    Column("pinned", Boolean, nullable=False, server_default=false()),
    Column("deleted_at", Float),
    Index("jobs_by_end", "finished_at"),
    Index("jobs_by_deletion", "deleted_at", sqlite_where=_DELETED, postgresql_where=_DELETED),
    Index("jobs_by_status", "status", "created_at", "id"),
    Index("jobs_by_since", "status", "since"),
    Index("jobs_by_age", "created_at", "id"),
)

job_labels = Table(
    "job_labels",
    metadata,
    _job(),
    Column("key", String(63), primary_key=True),
    Column("value", String(255), nullable=False),
    Index("job_labels_by_value", "key", "value"),
)

transitions = Table(
    "transitions",
    metadata,
    _job(),
    Column("number", Integer, primary_key=True),
    Column("status", String(20), nullable=False),
    Column("reason", String(40), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(200), nullable=False),
)

attempts = Table(
    "attempts",
    metadata,
    _job(),
    Column("number", Integer, primary_key=True),
    Column("submission_id", String(100), nullable=False, unique=True),
    Column("state", String(20), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("submitted_at", Float),
    Column("claimed_at", Float),
    Column("ended_at", Float),
    # the code is kept in clear until it is used once: a submission that was cut short is repeated with it
    Column("code", String(100)),
    Column("code_digest", String(64), nullable=False),
    Column("nonce_digest", String(64)),
    Column("token_secret", String(100), nullable=False),
    Column("token_digest", String(64), unique=True),
    Column("acked_seq", BigInteger, nullable=False),
    Column("stop_asked_at", Float),
    Column("outcome", String(20)),
    Column("outcome_at", Float),
    Column("outcome_step", Integer),
    Column("failed_by", String(20)),
    Column("message", Text),
    Column("cluster", String(200)),  # the Ray that has the driver: after another one answers, it is gone
    # the end of its processes: what is known (service/receipts.py), and the search for it
    Column("receipt", JSON(none_as_null=True)),
    Column("sweep_no", Integer, nullable=False, server_default="0"),
    Column("sweep_at", Float),  # when it was begun, or may be begun
    Column("forced_by", String(200)),  # who took it as gone
    Index("attempts_by_state", "state"),
)

events = Table(
    "events",
    metadata,
    _job(),
    Column("position", BigInteger, primary_key=True),
    Column("at", Float, nullable=False),
    Column("type", String(60), nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

metrics = Table(
    "metrics",
    metadata,
    _job(),
    Column("position", BigInteger, primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("step", Integer, nullable=False),
    Column("value", Float),
    Column("word", String(10)),  # NaN, Infinity or -Infinity, where value is NULL
    Column("at", Float, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("epoch_no", Integer, nullable=False),
    Column("superseded", Boolean, nullable=False),
    Index("metrics_by_step", "job", "name", "superseded", "step"),
)

metrics_latest = Table(
    "metrics_latest",
    metadata,
    _job(),
    Column("name", String(200), primary_key=True),
    Column("step", Integer, nullable=False),
    Column("value", Float),
    Column("word", String(10)),
    Column("attempt", Integer, nullable=False),
    Column("epoch_no", Integer, nullable=False),
)

metrics_superseded = Table(
    "metrics_superseded",
    metadata,
    _job(),
    Column("position", BigInteger, primary_key=True),
    Column("first_step", Integer, nullable=False),
    Column("last_step", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
)

log_segments = Table(
    "log_segments",
    metadata,
    _job(),
    Column("position", BigInteger, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("worker", String(63), nullable=False),
    Column("offset", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Index("log_segments_by_offset", "job", "attempt", "worker", "offset", unique=True),
)

workers = Table(
    "workers",
    metadata,
    _job(),
    Column("attempt", Integer, primary_key=True),
    Column("id", String(63), primary_key=True),
    Column("group", String(63)),
    Column("node", String(255)),
    Column("pid", Integer),
    Column("rank", Integer),
    Column("state", String(20), nullable=False),
    Column("joined_step", Integer),
    Column("share", Float),
)

generations = Table(
    "generations",
    metadata,
    _job(),
    Column("attempt", Integer, primary_key=True),
    Column("generation", Integer, primary_key=True),
    Column("formed_at", Float, nullable=False),
    Column("step", Integer, nullable=False),
    Column("workers", JSON, nullable=False),
    Column("cause", Text, nullable=False),
    Column("pause_ms", Float),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _job(),
    Column("step", Integer, primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("epoch", Float),
    Column("created_at", Float, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("state", String(20), nullable=False),
    Column("params_digest", String(64)),
    Column("state_digest", String(64)),
    Column("metrics", JSON, nullable=False),
    Column("files", JSON, nullable=False),
    Column("pinned", Boolean, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("name", String(63), nullable=False),
    Column("role", String(10), nullable=False),
    Column("project", String(63)),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("last_used_at", Float),
)

packages = Table(
    "packages",
    metadata,
    Column("sha256", String(64), primary_key=True),
    Column("project", String(63), primary_key=True),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", Float, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("token", String(32), primary_key=True),
    Column("route", String(40), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body_digest", String(64), nullable=False),
    Column("answer", JSON),
    Column("job", ForeignKey("jobs.id", ondelete="CASCADE")),
    Column("at", Float, nullable=False),
)

# single facts about the installation: its id, what the reconciler last saw and when it was last alive
facts = Table(
    "facts",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("at", Float, nullable=False),
    Column("value", JSON, nullable=False),
)
