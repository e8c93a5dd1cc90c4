"""The result does not depend on the workers: how many, when they came, when they died."""

import hashlib
import random
from pathlib import Path

import pytest

from elastrain.trainers.numerics.data import Plan
from engine.harness import Run, kill, run, scale, toy

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("one"), toy())


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_any_number_of_workers_gives_the_same_bits(tmp_path: Path, undisturbed: Run, workers: int) -> None:
    assert run(tmp_path, toy(), workers).digests == undisturbed.digests


def test_workers_that_came_died_left_and_came_again_changed_no_bit(tmp_path: Path, undisturbed: Run) -> None:
    chosen = random.Random(7)
    faults = [
        (chosen.randint(3, 8), kill(chosen.randrange(4))),
        (15, scale(1, 2)),
        (20, kill(0)),
        (25, scale(1, 3)),
        (chosen.randint(30, 35), kill(1)),
    ]
    disturbed = run(tmp_path, toy(), (4, 4), *faults)
    assert disturbed.digests == undisturbed.digests
    assert len(disturbed.events("worker.lost")) >= 3 and disturbed.events("worker.left")


def test_the_logged_loss_and_validation_metrics_are_equal_too(tmp_path: Path, undisturbed: Run) -> None:
    disturbed = run(tmp_path, toy(), 3, (12, kill(2)), (21, kill(0)))
    for name in ("loss", "grad_norm", "lr", "val_loss", "val_accuracy"):
        assert disturbed.metric(name) == undisturbed.metric(name), name


def test_no_accepted_step_is_lost_or_repeated_when_workers_die(tmp_path: Path, undisturbed: Run) -> None:
    disturbed = run(tmp_path, toy(), 3, (5, kill(0)), (17, kill(1)), (29, kill(2)))
    assert disturbed.steps() == list(range(1, 41))
    assert not disturbed.events("rollback")


def test_every_sample_of_an_epoch_was_used_once_and_the_chain_proves_it(tmp_path: Path) -> None:
    disturbed = run(tmp_path, toy(), 3, (5, kill(0)), (17, kill(1)))
    plan = Plan(300, 64, 8, steps=40)
    chain = ""
    for step in range(40):
        ids = [
            hashlib.sha256(plan.indices(step, j).astype("<i8").tobytes()).hexdigest()[:16]
            for j in range(plan.count(step))
        ]
        joined = hashlib.sha256("".join(ids).encode()).hexdigest()[:32]
        chain = hashlib.sha256(f"{chain}{step}:{joined}".encode()).hexdigest()[:32]
    assert disturbed.manifest()["sample_chain"] == chain
    first_epoch = [
        i for step in range(5) for j in range(plan.count(step)) for i in plan.indices(step, j).tolist()
    ]
    assert sorted(first_epoch) == list(range(300))


def test_the_survivors_of_a_kill_keep_their_processes(tmp_path: Path) -> None:
    killed = run(tmp_path, toy(), 3, (10, kill(1)))
    pids = {(w["id"], w["pid"]) for w in killed.of_kind("worker") if w["pid"]}
    survivors = killed.of_kind("generation")[1]["workers"]
    assert len(survivors) == 2
    for worker in survivors:
        assert len({pid for name, pid in pids if name == worker}) == 1
    assert [e["data"]["cause"] for e in killed.events("worker.exited")] == ["signal 9 (SIGKILL)"]


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        {"name": "adam", "lr": 1e-3, "amsgrad": True},
        {"name": "rmsprop", "lr": 1e-3, "momentum": 0.5, "centered": True},
        {"name": "adagrad", "lr": 0.02, "lr_decay": 0.01},
    ],
)
def test_every_rule_survives_kills_with_the_same_state(tmp_path: Path, optimizer: dict[str, object]) -> None:
    spec = toy(optimizer=optimizer, steps=20, clip_norm=0.5, schedule={"warmup_steps": 5, "decay": "cosine"})
    alone = run(tmp_path / "one", spec)
    assert run(tmp_path / "three", spec, 3, (6, kill(0)), (13, kill(1))).digests == alone.digests


def test_bf16_and_two_threads_keep_their_bits_as_well(tmp_path: Path) -> None:
    spec = toy(precision="bf16", steps=12, resources={"cpu": 2})
    assert run(tmp_path / "one", spec).digests == run(tmp_path / "two", spec, 3, (5, kill(1))).digests


def test_groups_of_two_leave_together(tmp_path: Path, undisturbed: Run) -> None:
    spec = toy(workers={"min": 2, "max": 4, "per_group": 2})
    grouped = run(tmp_path, spec, 4, (10, kill(0)))
    assert grouped.digests == undisturbed.digests
    assert len(grouped.events("worker.lost")) == 2
    assert len(grouped.of_kind("generation")[1]["workers"]) == 2


def test_units_of_two_microbatches_change_who_computes_what_and_no_bit(
    tmp_path: Path, undisturbed: Run
) -> None:
    spec = toy(wire_nodes=4, workers={"min": 1, "max": 4})
    dealt = run(tmp_path, spec, 3, (5, kill(0)), (17, kill(1)))
    assert dealt.digests == undisturbed.digests
