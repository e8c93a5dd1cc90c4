"""A worker touches its memory before anybody waits for it: as much as it will need, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastrain.trainers.exchange.collectives import AT_ONCE
from elastrain.trainers.numerics.chunks import BUCKET
from elastrain.trainers.worker import first_step

SIZE = 100 * BUCKET


@pytest.mark.parametrize(
    ("keepers", "expected"),
    [
        (1, 4 * SIZE),  # soon one of two
        (2, 4 * SIZE),  # copies, sums, two slots
        (4, SIZE + 3 * SIZE // 2 + AT_ONCE * BUCKET),
        (0, SIZE),  # a worker with servers
        (100, SIZE + 3 * SIZE // 50 + AT_ONCE * BUCKET),
    ],
)
def test_each_touches_its_share_of_the_state_and_a_worker_with_servers_none(
    keepers: int, expected: int
) -> None:
    replica: Any = SimpleNamespace(
        rule=SimpleNamespace(slots=("exp_avg", "exp_avg_sq")),
        model=SimpleNamespace(space=SimpleNamespace(size=SIZE)),
    )
    assert first_step(replica, keepers) == expected
