"""Receipts: what is known of the end of an attempt's processes"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("cluster", sa.String(length=200), nullable=True))
    op.add_column("attempts", sa.Column("receipt", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("attempts", sa.Column("sweep_no", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("attempts", sa.Column("sweep_at", sa.Float(), nullable=True))
    op.add_column("attempts", sa.Column("forced_by", sa.String(length=200), nullable=True))
