"""The job that the others in the queue wait behind, by its id, and what it needs"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # `first` stays, and is its title from here on: a service of the version before, which is still there
    # while another one starts, can read and write it
    op.add_column("plans", sa.Column("first_job", sa.String(length=64), nullable=True))
    op.add_column("plans", sa.Column("first_needs", sa.Text(), nullable=True))
