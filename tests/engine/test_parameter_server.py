"""Servers keep the state, workers compute: workers and servers die, and what holds is what was promised."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checks import check_nobody_is_left, check_steps
from engine.harness import Fault, Run, finish, kill, once_saved, probe, run, scale, toy

pytestmark = pytest.mark.engine

SERVERS = 2  # they have the first ranks


def served(staleness: int | None = 0, servers: int = SERVERS, **fields: Any) -> dict[str, Any]:
    strategy = {"name": "parameter_server", "staleness": staleness, "servers": servers}
    return toy(strategy=strategy | fields.pop("strategy", {}), **fields)


def kill_worker(number: int) -> Fault:
    return kill(SERVERS + number)


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


def order_of(run: Run, step: int = 40) -> list[list[int]]:
    file = run.folder / f"objects/jobs/{run.job}/checkpoints/{step:010d}" / "order.safetensors"
    orders: list[list[int]] = load_file(file)["order"].tolist()
    return orders


def replayed(folder: Path, first: Run, workers: int, *faults: tuple[int, Fault]) -> Run:
    """Another job beside the first one in the same storage, which repeats its order."""
    shutil.copytree(first.folder / "objects", folder / "objects")
    strategy = {**first.spec["strategy"], "replay": first.job}
    spec = {**first.spec, "strategy": strategy}
    return run(folder, spec, workers, *faults, job="again")


def check_asynchronous(done: Run) -> None:
    assert done.outcome is not None and done.outcome.outcome == "succeeded"
    assert done.steps() == list(range(1, 41))
    order = order_of(done)
    assert sorted(step for step, _ in order) == list(range(40)), "each step counts once"
    staleness = {n + 1: float(n - version) for n, (_, version) in enumerate(order)}
    assert done.metric("staleness") == staleness
    assert done.metric("staleness_max")[40] == max(staleness.values())
    assert done.metric("staleness_mean")[40] == pytest.approx(sum(staleness.values()) / 40, abs=1e-3)
    check_nobody_is_left(done)


def test_an_asynchronous_run_is_repeated_bit_for_bit_by_other_workers(tmp_path: Path) -> None:
    first = run(tmp_path / "first", served(None), 3)
    check_asynchronous(first)
    assert max(first.metric("staleness").values()) >= 1
    for workers in (1, 2):
        again = replayed(tmp_path / f"again-{workers}", first, workers)
        assert again.digests == first.digests
        assert again.metric("loss") == first.metric("loss")


def test_workers_and_a_server_died_in_an_asynchronous_run_and_it_can_be_repeated(tmp_path: Path) -> None:
    spec = served(None, task_args={"sleep_s": 0.02})
    first = run(tmp_path / "first", spec, 3, (8, kill_worker(1)), (16, kill(0)), (26, kill_worker(0)))
    check_asynchronous(first)
    assert not first.events("rollback")
    again = replayed(tmp_path / "again", first, 2, (10, kill_worker(0)), (20, kill(1)))
    assert again.digests == first.digests


@pytest.mark.parametrize("bound", [1, 3])
def test_bounded_staleness_kept_its_bound(tmp_path: Path, bound: int) -> None:
    done = run(tmp_path, served(bound), 3, (20, kill_worker(2)))
    check_asynchronous(done)
    assert max(done.metric("staleness").values()) <= bound


def test_delay_compensation_can_be_repeated_too(tmp_path: Path) -> None:
    strategy = {"compensation": 0.04}
    spec = served(None, strategy=strategy, optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9})
    first = run(tmp_path / "first", spec, 2)
    plain = replayed(tmp_path / "plain", _with(first, compensation=0.0), 2)
    assert replayed(tmp_path / "again", first, 1).digests == first.digests != plain.digests


def test_moments_and_norms_of_an_asynchronous_run_can_be_repeated_too(tmp_path: Path) -> None:
    watch = {"norms": "layers", "every_steps": 4}
    first = run(tmp_path / "first", served(None, aggregate="moments", watch=watch), 2, (20, kill(0)))
    check_asynchronous(first)
    assert set(first.metric("update_ratio/0")) == set(range(4, 41, 4))
    again = replayed(tmp_path / "again", first, 1)
    assert again.digests == first.digests
    assert again.metric("update_ratio/0") == first.metric("update_ratio/0")


def write_order(folder: Path, order: list[tuple[int, int]]) -> None:
    """As an asynchronous run would have left it."""
    folder.mkdir(parents=True)
    save_file({"order": torch.tensor(order)}, folder / "order.safetensors")
    (folder / "manifest.json").write_text(json.dumps({"step": len(order)}))


@pytest.mark.parametrize(("scaled", "strength"), [(False, 0.0), (True, 0.0), (False, 0.3), (True, 0.3)])
def test_a_push_moves_the_parameter_as_its_equation_says(
    tmp_path: Path, scaled: bool, strength: float
) -> None:
    steps, behind, rate = 12, 3, 0.4
    rows = [0.25 * step for step in range(2 * steps)]
    order = [(step, max(0, step - behind)) for step in range(steps)]
    write_order(tmp_path / f"objects/jobs/written/checkpoints/{steps:010d}", order)
    strategy = {"scale_by_staleness": scaled, "compensation": strength, "replay": "written"}
    spec = probe(
        rows,
        task="Quadratic",
        strategy={"name": "parameter_server", "staleness": None, "servers": 1, **strategy},
        optimizer={"name": "sgd", "lr": rate},
        workers={"min": 1, "max": 1},
    )
    w = [0.0]
    for step, version in order:
        gradient = w[version] - (rows[2 * step] + rows[2 * step + 1]) / 2
        gradient += strength * gradient**2 * (w[-1] - w[version])
        w.append(w[-1] - rate / (max(1, step - version) if scaled else 1) * gradient)
    done = run(tmp_path, spec, 1)
    assert done.metric("staleness_max")[steps] == behind
    assert done.tensors()["w"].item() == pytest.approx(w[-1], rel=1e-5)


def _with(first: Run, **strategy: Any) -> Run:
    spec = {**first.spec, "strategy": {**first.spec["strategy"], **strategy}}
    return Run(first.folder, spec, first.workers, job=first.job)


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


def test_an_asynchronous_run_goes_on_from_a_synchronous_one_and_can_be_repeated(tmp_path: Path) -> None:
    run(tmp_path / "first", toy(steps=20), 2)
    more = run(tmp_path / "first", served(None, resume_from="job@20"), 2, job="other")
    assert more.steps() == list(range(21, 41))
    order = order_of(more)
    assert order[:20] == [[step, step] for step in range(20)]
    assert sorted(step for step, _ in order) == list(range(40))
    again = replayed(tmp_path / "again", more, 1)
    assert again.digests == more.digests and again.steps() == more.steps()


def test_an_order_that_was_saved_amid_the_job_is_repeated_and_then_pushes_count_as_they_come(
    tmp_path: Path,
) -> None:
    spec = served(None, task_args={"sleep_s": 0.01}, checkpoint={"every_steps": 10, "keep": 9})
    first = run(tmp_path / "first", spec, 3)
    shutil.copytree(first.folder / "objects", tmp_path / "again/objects")
    strategy = {**first.spec["strategy"], "replay": "job@20"}
    again = run(tmp_path / "again", {**spec, "strategy": strategy}, 2, (30, kill(0)), job="again")
    assert again.manifest(20)["state_digest"] == first.manifest(20)["state_digest"]
    assert order_of(again)[:20] == order_of(first)[:20]
    check_asynchronous(again)
    assert not again.events("rollback"), "past the order that it repeats it does not begin anew"


def test_an_order_that_the_job_is_too_short_for_is_refused_before_the_first_step(tmp_path: Path) -> None:
    run(tmp_path, served(None), 2)
    strategy = {"name": "parameter_server", "staleness": None, "replay": "job"}
    refused = run(tmp_path, toy(strategy=strategy, steps=30), 1, job="again")
    assert refused.outcome is not None and refused.outcome.failed_by == "user"
    assert "and this job has 30 steps" in (refused.outcome.message or "") and not refused.steps()


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
