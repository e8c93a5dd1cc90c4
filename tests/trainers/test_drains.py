"""Ray drains nodes: who is told, and how often. Ray is a fake."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from elastrain.trainers.launching.ray_nodes import Drains
from elastrain.trainers.membership.messages import Notice

HERE = [("w0", "aaaaaaaaaa"), ("w1", "bbbbbbbbbb"), ("w2", "bbbbbbbbbb")]


class Ray:
    def __init__(self) -> None:
        self.draining: Mapping[str, float] = {}
        self.broken = False

    def __call__(self) -> Mapping[str, float]:
        if self.broken:
            raise AttributeError("get_draining_nodes")
        return self.draining


def test_every_worker_of_a_drained_node_gets_one_notice_with_the_time_that_is_left() -> None:
    ray = Ray()
    drains = Drains(ray)
    assert drains.look(HERE) == []
    ray.draining = {"bbbbbbbbbb": 25.0}
    why = "Ray drains its node bbbbbbbb"
    assert drains.look(HERE) == [Notice("w1", 25.0, why), Notice("w2", 25.0, why)]
    ray.draining = {"bbbbbbbbbb": 24.0}
    assert drains.look(HERE) == []
    assert drains.nodes == {"bbbbbbbbbb"}, "nothing is placed there any more"


def test_a_worker_that_was_placed_just_before_is_told_later() -> None:
    drains = Drains(lambda: {"cccccccccc": 9.0})
    assert drains.look(HERE) == []
    assert [n.worker for n in drains.look([*HERE, ("w3", "cccccccccc")])] == ["w3"]


def test_a_ray_that_does_not_say_is_asked_again_and_complained_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ray = Ray()
    ray.broken = True
    drains = Drains(ray)
    assert drains.look(HERE) == drains.look(HERE) == []
    assert len(caplog.records) == 1 and "get_draining_nodes" in caplog.text
    ray.broken, ray.draining = False, {"aaaaaaaaaa": 3.0}
    assert [n.worker for n in drains.look(HERE)] == ["w0"]
