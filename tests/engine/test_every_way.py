"""Group (b) of the cases, for every way to make an update: an eventful job each. What is arithmetic is in
numerics/test_cases.py, with the ways and what they are excused from in numerics/ways.py.

Three workers; one is killed (B02, B14), two sizes are asked for at once (B10), one joins and does its set-up
(B12), the job is paused in the middle of its third epoch and goes on with others (B06). Its 103 samples are
divided by no size (B04). Rate and parameter of every step are what the number of updates says (B08, B14),
also after the resume, and though the model computes in bf16 (D10).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from elastrain.trainers.numerics.rounds import Rounds, plan_of
from elastrain.trainers.spec import parse_spec
from engine.checks import check_nobody_is_left, logs_of, reads
from engine.harness import Run, finish, kill, once, run, scale
from numerics.ways import APART, PUSHES, all_ways, expected, optimizer_of, spec_of

pytestmark = pytest.mark.engine

SAMPLES, EPOCHS, STEPS = 103, 3, 39  # 13 steps an epoch, the last one of 7 samples
KILLED, ASKED, PAUSED = 5, 9, 29


def eventful(way: str, brake: Path) -> dict[str, Any]:
    return spec_of(
        way,
        [1.0] * SAMPLES,
        task="Signed",
        args={"brake": str(brake)},
        batch={"size": 8, "microbatch": 2},
        epochs=EPOCHS,
        shuffle=True,
        seed=7,
        precision="bf16",
        optimizer=optimizer_of(way, 0.01),
        schedule={"decay": "cosine"},
        checkpoint={"every_steps": 1, "keep": STEPS},
    )


def computing(run: Run) -> list[str]:
    return [worker for worker in run.active() if worker.startswith("w")]


class Events:
    """What is done to the job. Each act waits for what the one before has led to."""

    def __init__(self, brake: Path) -> None:
        self.brake = brake

    def kill_one(self, run: Run) -> None:
        kill(run.active().index(computing(run)[-1]))(run)

    def ask_for_three_and_for_one(self, run: Run) -> None:
        scale(1, 3)(run)
        scale(1, 1)(run)
        once(lambda run: len(computing(run)) == 1, self.ask_for_two)(run)

    def ask_for_two(self, run: Run) -> None:
        self.brake.touch()  # time to join
        scale(1, 2)(run)
        once(lambda run: len(computing(run)) == 2, self.go_on)(run)

    def go_on(self, run: Run) -> None:
        self.brake.unlink()
        once(lambda run: run.steps()[-1] >= PAUSED, self.pause)(run)

    def pause(self, run: Run) -> None:
        self.brake.touch()
        finish("paused")(run)


def audit(spec: dict[str, Any], order: list[int]) -> tuple[str, set[tuple[int, ...]]]:
    """The chain over the samples of all steps, and what is read at once; each epoch a permutation. order: the
    step of the plan that each accepted step was."""
    plan, chain, seen = plan_of(parse_spec(spec), SAMPLES), "", set[tuple[int, ...]]()
    epochs: list[list[int]] = [[] for _ in range(EPOCHS)]
    for at, step in enumerate(order):
        parts = [plan.indices(step, j) for j in range(plan.count(step))]
        digests = [hashlib.sha256(part.astype("<i8").tobytes()).hexdigest()[:16] for part in parts]
        ids = hashlib.sha256("".join(digests).encode()).hexdigest()[:32]
        chain = hashlib.sha256(f"{chain}{at}:{ids}".encode()).hexdigest()[:32]
        epochs[step // 13] += [int(i) for part in parts for i in part]
        if isinstance(plan, Rounds):
            parts = [part for j in range(plan.count(step)) for cut in plan.cuts(step, j) for part in cut]
        seen |= {tuple(map(int, part)) for part in parts}
    assert all(sorted(epoch) == list(range(SAMPLES)) for epoch in epochs)
    return chain, seen


def order_of(run: Run) -> list[int]:
    file = run.folder / f"objects/jobs/{run.job}/checkpoints/{STEPS:010d}/order.safetensors"
    return [int(step) for step, _ in load_file(file)["order"]] if file.exists() else list(range(STEPS))


@all_ways("B02, B04, B06, B08, B12, B14", combined=False)
def test_whatever_happens_to_the_workers_every_sample_and_every_update_counts_once(
    tmp_path: Path, way: str
) -> None:
    brake = tmp_path / "brake"
    spec, events = eventful(way, brake), Events(brake)
    first = run(tmp_path, spec, 3, (KILLED, events.kill_one), (ASKED, events.ask_for_three_and_for_one))
    brake.unlink()
    assert first.outcome is not None and first.outcome.outcome == "paused"
    second = run(tmp_path, spec, 2, number=2)
    assert second.outcome is not None and second.outcome.outcome == "succeeded"

    # B02, B14: every step once, none again
    assert first.steps() + second.steps() == list(range(1, STEPS + 1))
    assert PAUSED <= first.steps()[-1] < STEPS, "in the middle of the third epoch"
    assert first.events("worker.lost") and not first.events("rollback") and not second.events("rollback")
    assert (second.manifest()["step"], second.manifest()["updates"]) == (STEPS, STEPS)

    # B12: whoever joined has done its set-up, and the next steps have two workers
    assert all("set up" in first.log(e["data"]["worker"]) for e in first.events("worker.joined"))
    assert first.metric("workers")[first.steps()[-1]] == 2

    # B04, B06: each epoch's samples, in the order of the undisturbed run, as written down and as read
    order = order_of(second)
    chain, seen = audit(spec, order)
    assert second.manifest()["sample_chain"] == chain and (way in PUSHES or order == list(range(STEPS)))
    assert {ids for log in logs_of(second) for ids in reads(log)} >= seen

    # B08, B14: rate and parameter of every step
    rates = [0.005 * (1 + math.cos(math.pi * u / STEPS)) for u in range(STEPS)]
    told = first.metric("lr") | second.metric("lr")
    part = 0.1 if way == "moments" else 1.0
    assert [told[step] for step in range(1, STEPS + 1)] == pytest.approx([part * r for r in rates])
    if ("B14 parameter", way) not in APART:
        want = expected(way, [[1.0] * 4] * STEPS, lr=rates)
        saved = second.attempt.checkpoints.steps()
        assert len(saved) > STEPS // 2
        found = [float(second.tensors(step)["w"]) for step in saved]
        assert found == pytest.approx([want[step - 1] for step in saved], abs=1e-5)
    check_nobody_is_left(second)
