"""What the service asks of an attempt: pause, checkpoint now, begin from another job's checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.harness import Run, finish, kill_all, probe, run, toy

pytestmark = pytest.mark.engine


def files(folder: Path, job: str) -> dict[str, bytes]:
    root = folder / "objects/jobs" / job / "checkpoints"
    return {str(path.relative_to(root)): path.read_bytes() for path in root.glob("**/*") if path.is_file()}


def outcome(done: Run) -> tuple[str, str | None]:
    assert done.outcome is not None
    return done.outcome.outcome, done.outcome.failed_by


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("alone"), toy())


@pytest.mark.parametrize("step", [13, 40])
def test_a_job_that_is_paused_at_any_step_the_last_one_too_goes_on_to_the_same_bits(
    tmp_path: Path, alone: Run, step: int
) -> None:
    first = run(tmp_path, toy(), 2, (step, finish("paused")))
    assert first.outcome is not None and outcome(first)[0] in ("paused", "succeeded")
    forking = psutil.Process().children()  # what stays for the next run
    assert [process for helper in forking for process in helper.children(recursive=True)] == []
    if outcome(first)[0] == "paused":
        second = run(tmp_path, toy(), 1, number=2)
        assert outcome(second) == ("succeeded", None)
        assert second.steps() == list(range(first.outcome.step + 1, 41))
        assert second.digests == alone.digests


def test_a_pause_before_the_first_step_is_a_start_from_scratch_later(tmp_path: Path, alone: Run) -> None:
    def at_once(fact: dict[str, Any]) -> None:
        if fact["kind"] == "progress" and fact.get("status") == "starting":
            first.attempt.finish("paused")

    first = Run(tmp_path, toy(), (1, 1), on_fact=at_once)
    first.go()
    assert outcome(first) == ("paused", None) and first.steps() == []
    assert run(tmp_path, toy(), 1, number=2).digests == alone.digests


def test_a_checkpoint_that_is_asked_for_is_made_and_acknowledged_by_its_number(
    tmp_path: Path, alone: Run
) -> None:
    def ask(run: Run) -> None:
        run.attempt.checkpoint(3)

    spec = toy(checkpoint={"every_steps": None, "keep": 9})
    asked = run(tmp_path, spec, 2, (7, ask))
    (done,) = asked.of_kind("checkpoint_done")
    assert done["number"] == 3 and 7 <= done["step"] < 40
    assert asked.attempt.checkpoints.steps() == [done["step"], 40]
    assert asked.digests == alone.digests


@pytest.mark.parametrize("at", ["", "@20"])
def test_a_job_begins_where_another_ones_checkpoint_is_and_leaves_that_alone(
    tmp_path: Path, alone: Run, at: str
) -> None:
    run(tmp_path, toy(steps=30), 2)
    before = files(tmp_path, "job")
    second = run(tmp_path, toy(resume_from=f"job{at}"), 2, job="other")
    step = int(at[1:] or 30)
    assert second.steps() == list(range(step + 1, 41))
    assert second.events("checkpoint.restored")[0]["data"] == {"step": step, "job": "job"}
    assert second.manifest()["params_digest"] == alone.manifest()["params_digest"]
    assert files(tmp_path, "job") == before


def test_where_it_began_is_saved_as_its_own_when_it_is_paused_there(tmp_path: Path, alone: Run) -> None:
    def when_formed(fact: dict[str, Any]) -> None:
        if fact["kind"] == "generation":
            first.attempt.finish("paused")

    run(tmp_path, toy(steps=20), 1)
    spec = toy(resume_from="job@20")
    first = Run(tmp_path, spec, (1, 1), job="other", on_fact=when_formed)
    first.go()
    assert outcome(first) == ("paused", None)
    assert first.attempt.checkpoints.steps()[-1] in (20, 21)
    shutil.rmtree(tmp_path / "objects/jobs/job")
    second = run(tmp_path, spec, 1, job="other", number=2)
    assert second.manifest()["params_digest"] == alone.manifest()["params_digest"]


PUSHED = {"name": "parameter_server", "staleness": None, "servers": 2, "scale_by_staleness": False}


@pytest.mark.parametrize(
    "strategy",
    ["all_reduce", PUSHED, {"name": "local_sgd", "local_steps": 1}, "gossip"],
    ids=["all_reduce", "asynchronous", "local_sgd", "gossip"],
)
def test_with_another_seed_a_job_has_the_model_alone_also_after_all_its_workers_died(
    tmp_path: Path, strategy: Any
) -> None:
    """The gradient is 1 always: what follows from a fresh momentum and a fresh schedule is the same path."""
    spec = probe(
        [1.0] * 200,
        strategy=strategy,
        optimizer={"name": "sgd", "lr": 0.01, "momentum": 0.9},
        schedule={"warmup_steps": 4},
    )
    first = run(tmp_path, spec, 2)
    went = float(first.tensors()["w"])
    second = run(tmp_path, {**spec, "seed": 1, "resume_from": "job"}, 2, (10, kill_all), job="other")
    (back,), (warned,) = second.events("rollback"), second.of_kind("warning")
    assert back["data"]["to"] == 0 and second.steps()[-1] == 100
    assert float(second.tensors()["w"]) == pytest.approx(2 * went, abs=1e-4)
    assert (second.manifest()["updates"], second.metric("lr")) == (100, first.metric("lr"))
    assert "resume_from job: seed is 1 and was 0" in warned["message"]
    assert [e["data"]["model_only"] for e in second.events("checkpoint.restored")] == [True, True]


def test_a_data_set_of_another_length_is_found_out_once_a_worker_has_seen_it(tmp_path: Path) -> None:
    spec = probe([1.0] * 20, optimizer={"name": "sgd", "lr": 0.01})
    run(tmp_path, spec, 1)
    longer = run(tmp_path, probe([1.0] * 30, optimizer=spec["optimizer"], resume_from="job"), 1, job="other")
    assert longer.steps() == list(range(1, 16))
    assert float(longer.tensors()["w"]) == pytest.approx(-0.25, abs=1e-5)
    assert "dataset length is 30 and was 20" in longer.of_kind("warning")[0]["message"]


@pytest.mark.parametrize("damage", ["nothing there", "truncated", "flipped", "another model"])
def test_a_checkpoint_to_begin_from_that_cannot_be_used_fails_the_job_before_step_1(
    tmp_path: Path, damage: str
) -> None:
    spec = toy(resume_from="nope" if damage == "nothing there" else "job@20")
    run(tmp_path, toy(steps=20), 2)
    model = tmp_path / "objects/jobs/job/checkpoints/0000000020/model.safetensors"
    data = model.read_bytes()
    if damage == "truncated":
        model.write_bytes(data[:-10])
    elif damage == "flipped":
        model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "another model":
        spec = {**spec, "task": "elastrain.trainers.tasks.digits:Digits"}
    before = files(tmp_path, "job")
    second = run(tmp_path, spec, 2, job="other")
    assert outcome(second) == ("failed", "user"), second.outcome
    assert second.outcome is not None and f"resume_from {spec['resume_from']}" in str(second.outcome.message)
    assert second.steps() == [] and files(tmp_path, "other") == {}
    assert files(tmp_path, "job") == before


def test_the_state_of_another_optimizer_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run(tmp_path, toy(steps=20, optimizer={"name": "sgd", "lr": 0.1}), 1)
    second = run(tmp_path, toy(resume_from="job@20"), 1, job="other")
    assert outcome(second) == ("failed", "user"), second.outcome
    assert second.steps() == []
