"""The tables of what jobs share: projects, and the plan by which they wait."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, String, Table, Text

from elastrain.service.store.schema import metadata

projects = Table(
    "projects",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("weight", Float, nullable=False),
    Column("quota_workers", Integer),
    Column("quota_gpus", Integer),
    Column("created_at", Float, nullable=False),
)

# the newest plan of the scheduler, one row
plans = Table(
    "plans",
    metadata,
    Column("name", String(20), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("at", Float, nullable=False),
    Column("queue", JSON, nullable=False),
    Column("first", Text),  # its title
    Column("first_job", String(64)),
    Column("first_needs", Text),
)
