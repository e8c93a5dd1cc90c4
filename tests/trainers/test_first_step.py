"""A worker touches its memory before anybody waits for it: as much as it will need, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from elastrain.trainers.numerics.chunks import BUCKET, FlatSpace
from elastrain.trainers.worker import first_snapshot, first_step

SIZE = 100 * BUCKET


@pytest.mark.parametrize(
    ("keepers", "expected"),
    [
        (1, ([SIZE], 3 * SIZE)),  # a gradient; activations, two slots
        (2, ([SIZE, SIZE], 3 * SIZE)),  # the sums too
        (4, ([SIZE], 2 * SIZE)),
        (0, ([SIZE], SIZE)),  # a worker with servers
        (100, ([SIZE], SIZE + SIZE // 25)),
    ],
)
def test_each_touches_its_share_of_the_state_and_a_worker_with_servers_none(
    keepers: int, expected: tuple[list[int], int]
) -> None:
    replica: Any = SimpleNamespace(
        rule=SimpleNamespace(lanes=1, slots=("exp_avg", "exp_avg_sq")),
        model=SimpleNamespace(space=SimpleNamespace(size=SIZE)),
    )
    assert first_step(replica, keepers) == expected


def test_the_copies_of_a_first_checkpoint_are_touched_too_if_there_is_to_be_one_on_the_way() -> None:
    """The first one after a worker had joined took the others 0.2 s."""
    space = FlatSpace.of([(name, (BUCKET,)) for name in "abc"])
    replica: Any = SimpleNamespace(
        rule=SimpleNamespace(lanes=1, slots=("exp_avg", "exp_avg_sq")),
        model=SimpleNamespace(space=space),
        spec=SimpleNamespace(checkpoint=SimpleNamespace(every_steps=50, every_s=None)),
    )
    assert first_snapshot(replica, 2) == [BUCKET // 2] * 9 + [3 * BUCKET]
    assert first_snapshot(replica, 0) == []
    replica.spec.checkpoint.every_steps = None
    assert first_snapshot(replica, 2) == []
