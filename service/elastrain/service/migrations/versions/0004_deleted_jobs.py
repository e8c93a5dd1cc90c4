"""Deleted jobs are found without reading all; pages of a status without sorting all of it"""

from alembic import op
from sqlalchemy import text

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # partial: else SQLite takes it for those that are not deleted, and sorts all of them for each page
    few = text("deleted_at IS NOT NULL")
    op.create_index("jobs_by_deletion", "jobs", ["deleted_at"], sqlite_where=few, postgresql_where=few)
    op.drop_index("jobs_by_status", "jobs")
    op.create_index("jobs_by_status", "jobs", ["status", "created_at", "id"])
