"""Numbered checkpoint requests, time used, pinned and deleted jobs; answers kept with idempotency keys"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("checkpoint_done", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("active_s", sa.Float(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("deleted_at", sa.Float(), nullable=True))
    op.create_index("jobs_by_end", "jobs", ["finished_at"])
    # a request that was answered before has no answer here, but the job that it was about
    with op.batch_alter_table("idempotency") as keys:
        keys.add_column(sa.Column("answer", sa.JSON(), nullable=True))
        keys.alter_column("job", existing_type=sa.String(length=64), nullable=True)
