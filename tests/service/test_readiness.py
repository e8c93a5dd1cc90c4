"""readyz: each part says for itself what is wrong, without addresses, and is not asked too often."""

import shutil
from pathlib import Path

from world import World


def test_everything_in_order_is_ready(world: World) -> None:
    world.round()
    ready = world.control.readyz()
    assert ready["ready"] and set(ready["checks"]) == {"database", "objects", "ray", "reconciler"}
    assert all(check["age_s"] >= 0 for check in ready["checks"].values())


def test_a_reconciler_that_hangs_is_noticed(world: World) -> None:
    assert "not completed" in world.control.readyz()["checks"]["reconciler"]["detail"]
    world.round()
    world.clock.pass_s(120)
    world.control._readiness._max_age_s = 0.0
    check = world.control.readyz()["checks"]["reconciler"]
    assert not check["ok"] and "120 s ago" in check["detail"]


def test_an_object_store_that_takes_nothing_is_named_without_its_address(
    world: World, tmp_path: Path
) -> None:
    world.round()
    shutil.rmtree(tmp_path / "objects")
    (tmp_path / "objects").write_text("in the way")
    ready = world.control.readyz()
    assert not ready["ready"] and not ready["checks"]["objects"]["ok"]
    assert str(tmp_path) not in str(ready)


def test_the_answer_is_kept_for_a_while(world: World) -> None:
    world.round()
    assert world.control.readyz()["ready"]
    world.ray.trouble = "gone"
    assert world.control.readyz()["ready"]
