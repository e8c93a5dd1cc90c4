"""Deleted jobs are found without reading all"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("jobs_by_deletion", "jobs", ["deleted_at"])
