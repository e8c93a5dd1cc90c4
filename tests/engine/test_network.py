"""Lines that are cut without a word, or slow: every worker in a network namespace of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers.membership.messages import Json
from engine.chaos import under_fire
from engine.checks import check
from engine.harness import Fault, Run, run, toy
from engine.net_chaos import NetChaos
from engine.netns import DRIVER, ApartLauncher, Network, require_network

pytestmark = pytest.mark.engine

SPEC = toy(task_args={"sleep_s": 0.01})  # 5 s for one worker: time for a line to be cut in


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), SPEC)


@pytest.fixture
def network() -> Iterator[Network]:
    require_network()
    with Network() as made:
        yield made


def apart(network: Network, folder: Path, workers: int, *faults: tuple[int, Fault], **more: Any) -> Run:
    launch = partial(ApartLauncher, network=network)
    return Run(
        folder,
        SPEC,
        (workers, workers),
        faults=list(faults),
        launch=launch,
        host=network.addresses[DRIVER],
        **{"heartbeat_s": 0.5, **more},
    )


def cut(network: Network, rank: int, other: int | None = None) -> Fault:
    def fault(run: Run) -> None:
        members = run.active()
        network.cut(members[rank], members[other] if other is not None else None)

    return fault


def test_a_worker_whose_line_was_cut_is_removed_and_ended_and_the_others_went_on(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    silent_s: list[float] = []

    def note(fact: dict[str, Any]) -> None:
        if fact.get("type") == "worker.lost":
            fleet = went_on.attempt.machine.fleet
            silent_s.append(fleet.now - fleet.roster.workers[fact["data"]["worker"]].last_beat)

    went_on = apart(network, tmp_path, 3, (10, cut(network, 1)), on_fact=note)
    went_on.go()
    check(went_on, undisturbed)
    policy = went_on.attempt.machine.policy
    assert silent_s[0] < policy.silence * policy.heartbeat_s, "in the way of others: not the long patience"
    lost = went_on.events("worker.lost")
    assert [(e["data"]["worker"], e["data"]["cause"]) for e in lost] == [("w1", "no heartbeat")]
    assert went_on.events("worker.exited")[0]["data"]["cause"] == "signal 9 (SIGKILL)"
    assert went_on.steps() == list(range(1, 41))


def test_a_removed_worker_whose_line_came_back_before_the_kill_had_nothing_to_say_any_more(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    def come_back(fact: dict[str, Any]) -> None:
        if fact.get("type") == "worker.lost":
            network.mend(fact["data"]["worker"])

    def cut_and_kill_late(run: Run) -> None:
        run.launcher.kill_after_s = 60.0  # type: ignore[attr-defined]
        cut(network, 0)(run)

    back = apart(network, tmp_path, 3, (10, cut_and_kill_late), on_fact=come_back).go()
    check(back, undisturbed)
    assert [e["data"]["worker"] for e in back.events("worker.lost")] == ["w0"]
    assert back.steps() == list(range(1, 41))


def test_owner_and_buddy_were_cut_off_together_and_the_job_went_back_to_the_newest_checkpoint(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    rolled = apart(network, tmp_path, 4, (15, cut(network, 0)), (15, cut(network, 1))).go()
    check(rolled, undisturbed)
    (rollback,) = rolled.events("rollback")
    assert rollback["data"]["to"] == 10 and rollback["data"]["from"] >= 15


def test_a_line_that_was_away_for_a_moment_cost_no_worker(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    def blink(run: Run) -> None:
        cut(network, 1)(run)
        run.later(1.0, lambda run: network.mend(run.active()[1]))

    blinked = apart(network, tmp_path, 3, (10, blink), heartbeat_s=2.0).go()
    check(blinked, undisturbed)
    assert not blinked.events("worker.lost")


def test_the_driver_was_cut_off_for_a_moment_and_nobody_was_removed(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    def blink(run: Run) -> None:
        network.cut(DRIVER)
        run.later(1.0, lambda run: network.mend(DRIVER))

    blinked = apart(network, tmp_path, 2, (10, blink), heartbeat_s=2.0).go()
    check(blinked, undisturbed)
    assert not blinked.events("worker.lost")


def test_the_driver_was_cut_off_for_long_and_new_workers_went_on_from_what_was_saved(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    def cut_all(run: Run) -> None:
        for worker in run.active():
            network.cut(DRIVER, worker)

    alone = apart(network, tmp_path, 2, (15, cut_all)).go()
    check(alone, undisturbed)
    assert [e["data"]["to"] for e in alone.events("rollback")] == [10]


@pytest.mark.parametrize("away", [True, False], ids=["not_heard", "hears_nothing"])
def test_a_line_that_was_cut_in_one_direction_is_as_good_as_none(
    tmp_path: Path, network: Network, undisturbed: Run, away: bool
) -> None:
    def fault(run: Run) -> None:
        one, other = run.active()[1], DRIVER
        network.cut_one_way(*((one, other) if away else (other, one)))

    half = apart(network, tmp_path, 3, (10, fault)).go()
    check(half, undisturbed)
    assert half.steps() == list(range(1, 41))


def test_one_slow_line_changed_no_bit_and_cost_no_worker(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    def narrow(run: Run) -> None:
        network.slow(run.active()[1], rate="20mbit", delay_ms=50)

    slow = apart(network, tmp_path, 3, (25, narrow)).go()
    check(slow, undisturbed)
    assert not slow.events("worker.lost")
    assert slow.steps() == list(range(1, 41))


def test_two_workers_that_cannot_reach_each_other_do_not_hang_the_job(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    parted = apart(network, tmp_path, 3, (10, cut(network, 1, 2)), policy={"link_s": 2.0}).go()
    check(parted, undisturbed)
    assert parted.steps() == list(range(1, 41))
    assert [e["data"]["worker"] for e in parted.events("worker.lost")] == ["w2"], "the higher rank"
    assert parted.events("worker.lost")[0]["data"]["cause"] == "cut off: no connection between it and w1"


def test_a_joiner_was_cut_off_while_it_was_handed_the_state(
    tmp_path: Path, network: Network, undisturbed: Run
) -> None:
    """Its line is so thin that the handover takes seconds; whoever hands over must not be stuck in it."""

    def cut_the_joiner(run: Run) -> None:
        coordinator = run.attempt.coordinator
        inner = coordinator.tell

        def tell(workers: Iterable[str], message: Json) -> None:
            if message["kind"] == "open" and len(message["members"]) == 2:
                coordinator.tell = inner  # type: ignore[method-assign]
                joiner = message["members"][1]["worker"]
                network.slow(joiner, rate="500kbit", delay_ms=5)
                run.later(1.5, lambda run: network.cut(joiner))
            inner(workers, message)

        coordinator.tell = tell  # type: ignore[method-assign]
        run.attempt.scale(1, 2)

    joined = apart(network, tmp_path, 1, (10, cut_the_joiner)).go(timeout_s=60)
    check(joined, undisturbed)
    assert [e["data"]["worker"] for e in joined.events("worker.lost")] == ["w1"]
    assert joined.steps() == list(range(1, 41))


def test_lines_and_workers_under_fire_together_changed_nothing(tmp_path: Path) -> None:
    require_network()
    chaos = under_fire(tmp_path, 3, seed=5, kind=NetChaos, generations=4)
    print(chaos.summary())
    assert len(chaos.of_kind("generation")) > 3
