"""A worker touches its memory before anybody waits for it: as much as it will need, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastrain.trainers.exchange.collectives import AT_ONCE
from elastrain.trainers.numerics.chunks import BUCKET
from elastrain.trainers.worker import first_step

SIZE = 100 * BUCKET + 7


@pytest.mark.parametrize(
    ("members", "sums", "kept"),
    [
        (1, [], SIZE),
        (2, [*[BUCKET] * 100, 7], SIZE),
        (4, [*[BUCKET] * AT_ONCE, SIZE // 4, SIZE // 4], SIZE // 2),
        (1000, [*[BUCKET] * AT_ONCE, SIZE // 1000], SIZE // 500),
    ],
)
def test_of_many_workers_each_touches_its_share_of_the_state(
    members: int, sums: list[int], kept: int
) -> None:
    replica: Any = SimpleNamespace(
        rule=SimpleNamespace(lanes=1, slots=("exp_avg", "exp_avg_sq")),
        model=SimpleNamespace(space=SimpleNamespace(size=SIZE)),
    )
    assert first_step(replica, members) == ([SIZE, *sums], 2 * kept), "a gradient, sums; two slots"
