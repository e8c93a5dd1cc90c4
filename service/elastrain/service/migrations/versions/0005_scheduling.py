"""What jobs still hold, when they were resized, how fast they were; the queue as last planned; projects"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("workers_held", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("grown_at", sa.Float(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("shrunk_at", sa.Float(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("curve", sa.JSON(), nullable=True))
    op.create_index("jobs_by_since", "jobs", ["status", "since"])
    op.create_table(
        "plans",
        sa.Column("name", sa.String(length=20), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("queue", sa.JSON(), nullable=False),
        sa.Column("first", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "projects",
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("weight", sa.Float(), nullable=False),
        sa.Column("quota_workers", sa.Integer(), nullable=True),
        sa.Column("quota_gpus", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
