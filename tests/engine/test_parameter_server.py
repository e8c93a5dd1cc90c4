"""Servers keep the state, workers compute: workers and servers die, and what holds is what was promised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine.checks import check_nobody_is_left, check_steps
from engine.harness import Run, finish, kill, once_saved, probe, run, scale, toy
from engine.served import check_asynchronous, kill_worker, order_of, served

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def all_reduced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), toy())


# ---- synchronous: all-reduce, bit for bit ------------------------------------------------------


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (3, 3)])
def test_synchronous_servers_give_the_bits_of_all_reduce(
    tmp_path: Path, all_reduced: Run, workers: int, servers: int
) -> None:
    apart = run(tmp_path, served(servers=servers), workers)
    assert apart.digests == all_reduced.digests
    for name in ("loss", "grad_norm", "lr", "val_loss", "val_accuracy"):
        assert apart.metric(name) == all_reduced.metric(name), name
    check_nobody_is_left(apart)


def test_a_killed_worker_cost_no_step_and_nothing_that_the_servers_had(
    tmp_path: Path, all_reduced: Run
) -> None:
    killed = run(tmp_path, served(), 2, (7, kill_worker(0)), (20, kill_worker(1)))
    assert killed.digests == all_reduced.digests
    assert killed.steps() == list(range(1, 41)) and not killed.events("rollback")
    assert [e["data"]["worker"][0] for e in killed.events("worker.lost")] == ["w", "w"]


def test_a_killed_server_was_recovered_from_its_buddy_and_replaced(tmp_path: Path, all_reduced: Run) -> None:
    spec = served(task_args={"sleep_s": 0.05})  # time for another server to start
    killed = run(tmp_path, spec, 1, (7, kill(0)), (30, kill(1)))
    assert killed.digests == all_reduced.digests
    assert killed.steps() == list(range(1, 41)) and not killed.events("rollback")
    assert {e["data"]["worker"] for e in killed.events("worker.joined")} >= {"s0", "s1", "s2", "w0"}


def test_all_workers_died_and_the_servers_had_everything(tmp_path: Path, all_reduced: Run) -> None:
    killed = run(tmp_path, served(), 2, (15, kill_worker(0)), (15, kill_worker(1)))
    assert killed.digests == all_reduced.digests
    assert killed.steps() == list(range(1, 41)) and not killed.events("rollback")


def test_all_servers_died_and_new_ones_went_on_from_the_newest_checkpoint(
    tmp_path: Path, all_reduced: Run
) -> None:

    def both_servers(run: Run) -> None:
        kill(0)(run)
        kill(1)(run)

    both = once_saved(10, both_servers)
    killed = run(tmp_path, served(task_args={"sleep_s": 0.02}), 1, (15, both))
    assert killed.digests == all_reduced.digests
    assert killed.events("rollback") and killed.events("checkpoint.restored")
    check_steps(killed, 40)


def test_workers_came_and_went_while_the_servers_stayed(tmp_path: Path, all_reduced: Run) -> None:
    scaled = run(tmp_path, served(), (3, 3), (10, scale(1, 1)), (20, scale(1, 3)))
    assert scaled.digests == all_reduced.digests
    assert scaled.events("worker.left") and len(scaled.of_kind("generation")) >= 3


# ---- asynchronous: an order, and what follows from it ------------------------------------------


@pytest.mark.parametrize("bound", [1, 3])
def test_bounded_staleness_kept_its_bound(tmp_path: Path, bound: int) -> None:
    done = run(tmp_path, served(bound), 3, (20, kill_worker(2)))
    check_asynchronous(done)
    assert max(done.metric("staleness").values()) <= bound


def test_a_paused_asynchronous_run_went_on_from_its_checkpoint(tmp_path: Path) -> None:
    paused = run(tmp_path, served(None), 2, (12, finish("paused")))
    assert paused.outcome is not None and paused.outcome.outcome == "paused"
    at = paused.outcome.step
    before = order_of(paused, at)
    resumed = run(tmp_path, served(None), 2, number=2)
    assert resumed.steps() == list(range(at + 1, 41))
    assert sorted(step for step, _ in order_of(resumed)) == list(range(40))
    assert order_of(resumed)[:at] == before


def test_a_push_that_came_while_a_server_still_tidied_up_its_shelf_was_not_thrown_away(
    tmp_path: Path,
) -> None:
    """The first server has welcomed the worker, another one is half a second behind."""
    spec = served(None, task="engine.tasks.tardy:Tardy", task_args={"sleep_s": 0.01})
    done = run(tmp_path, spec, (1, 2), (6, scale(1, 1)), (9, scale(1, 2)), (14, kill_worker(0)))
    check_asynchronous(done)
    assert len(done.of_kind("generation")) >= 3


def test_a_new_server_that_was_left_alone_while_it_was_handed_everything_has_the_order_as_well(
    tmp_path: Path,
) -> None:
    """The third server gets all from the first, which dies before the generation is whole."""
    args = {"once": str(tmp_path / "once"), "sleep_s": 0.02}
    spec = served(None, task="engine.tasks.tardy:Martyr", task_args=args)
    done = run(tmp_path / "first", spec, 2, (8, kill(1)))
    assert [e["data"]["worker"] for e in done.events("worker.lost")] == ["s1", "s0"]
    assert not done.events("rollback"), "the third one had it all"
    check_asynchronous(done)


@pytest.mark.parametrize("name", ["all_reduce", "parameter_server"])
def test_steps_in_order_do_not_go_on_from_steps_that_counted_out_of_order(tmp_path: Path, name: str) -> None:
    run(tmp_path, served(None, steps=20), 2)
    spec = toy(strategy={"name": name}, resume_from="job@20")
    refused = run(tmp_path, spec, 1, job="other")
    assert refused.outcome is not None and refused.outcome.failed_by == "user"
    assert "counted out of order" in (refused.outcome.message or "")


# ---- cases B14 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, None])
def test_as_many_updates_as_steps_were_applied_whichever_worker_was_killed_whenever(
    tmp_path: Path, staleness: int | None
) -> None:
    """Gradient 1, lr 0.01: w at step k is -0.01 k. Ten runs."""
    chosen = random.Random(3)
    strategy = {"name": "parameter_server", "staleness": staleness, "scale_by_staleness": False}
    spec = probe(
        [1.0] * 40,
        strategy=strategy,
        optimizer={"name": "sgd", "lr": 0.01},
        checkpoint={"every_steps": 1, "keep": 30},
    )
    lost = 0
    for number in range(10):
        at, which = chosen.randint(2, 15), chosen.randrange(2)
        done = run(tmp_path / str(number), spec, 2, (at, kill_worker(which)))
        assert done.steps() == list(range(1, 21))
        lost += len(done.events("worker.lost"))
        for step in done.attempt.checkpoints.steps():
            assert done.tensors(step)["w"].item() == pytest.approx(-0.01 * step, abs=1e-6)
        assert done.attempt.checkpoints.steps()[-1] == 20
        if staleness is not None:
            assert max(done.metric("staleness").values(), default=0.0) <= staleness
    assert lost > 0


def test_an_exception_in_an_asynchronous_step_is_the_users_once_two_workers_raised_it(tmp_path: Path) -> None:
    strategy = {"name": "parameter_server", "staleness": None}
    args = {"sample": 5, "how": "raise"}
    failed = run(tmp_path, probe([1.0] * 8, task="Faulty", args=args, strategy=strategy), 2)
    assert failed.outcome is not None
    assert (failed.outcome.outcome, failed.outcome.failed_by) == ("failed", "user")
    assert "undefined_name" in (failed.outcome.message or "") and "step 2" in (failed.outcome.message or "")
