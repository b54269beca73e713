"""Record who began the upgrade of a model"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

Text = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    for name in ("begun_by", "begun_by_tenant"):
        op.add_column("model_upgrades", sa.Column(name, Text, nullable=True))
