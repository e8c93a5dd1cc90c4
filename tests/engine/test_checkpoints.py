"""Checkpoints: whole or not there, numbered on, verified, and enough to go on from."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from elastrain.trainers.storage import StorageError
from engine.harness import Run, finish, kill, kill_all, once_saved, probe, run, toy

pytestmark = pytest.mark.engine

ROWS = [1.0] * 10 + [0.1] * 6  # per step of two samples: gradient 1 five times, then 0.1 three times
ADAM = {"name": "adam", "lr": 0.1}


def folder(tmp_path: Path, step: int) -> Path:
    return tmp_path / "objects/jobs/job/checkpoints" / f"{step:010d}"


def weight(run: Run, step: int) -> float:
    return float(run.tensors(step)["w"])


@pytest.mark.parametrize("workers", [(1, 1), (2, 1), (1, 2)])
def test_adam_goes_on_with_its_moments_at_any_size(tmp_path: Path, workers: tuple[int, int]) -> None:
    spec = probe(ROWS, optimizer=ADAM, checkpoint={"every_steps": 1, "keep": 100})
    first = run(tmp_path, spec, workers[0], (5, finish("paused")))
    assert first.outcome is not None and first.outcome.outcome == "paused"
    stopped = first.outcome.step
    second = run(tmp_path, spec, workers[1], number=2)
    assert second.steps() == list(range(stopped + 1, 9))
    expected = {6: -0.588437, 7: -0.667857, 8: -0.740016}
    for step, value in expected.items():
        assert weight(second, step) == pytest.approx(value, abs=1e-5)


def test_a_resumed_job_equals_the_undisturbed_one(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", toy())
    first = run(tmp_path / "two", toy(), 3, (13, finish("preempted")))
    assert first.outcome is not None and first.outcome.outcome == "preempted"
    second = run(tmp_path / "two", toy(), 2, number=2)
    assert second.digests == alone.digests
    assert second.metric("loss") == {s: v for s, v in alone.metric("loss").items() if s > first.outcome.step}
    assert second.manifest()["sample_chain"] == alone.manifest()["sample_chain"]


def test_random_draws_go_on_after_a_resume(tmp_path: Path) -> None:
    rows = [1.0] * 12
    whole = run(tmp_path / "one", probe(rows, task="Drawing"))
    run(tmp_path / "two", probe(rows, task="Drawing"), 1, (2, finish("paused")))
    second = run(tmp_path / "two", probe(rows, task="Drawing"), 2, number=2)
    drawn = {tuple(line.split("]")) for line in whole.log("w0").splitlines() if line.startswith("draw")}
    later = {
        tuple(x.split("]")) for w in ("w0", "w1") for x in second.log(w).splitlines() if x.startswith("draw")
    }
    assert later and later <= drawn and len({values for _, values in drawn}) == 12


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "manifest"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    alone = run(tmp_path / "one", toy())
    run(tmp_path / "two", toy(steps=20), 2)
    newest = folder(tmp_path / "two", 20)
    part = next(newest.glob("part-*"))
    data = part.read_bytes()
    if damage == "truncated":
        part.write_bytes(data[:-1024])
    elif damage == "flipped":
        part.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    elif damage == "missing":
        part.unlink()
    else:
        (newest / "manifest.json").write_text('{"format": 1, "ste')
    second = run(tmp_path / "two", toy(), 2, number=2)
    said = second.events("checkpoint.failed")[0]["message"]
    assert "checkpoint 20 is damaged" in said and ("manifest" if damage == "manifest" else part.name) in said
    assert second.events("checkpoint.restored")[-1]["data"] == {"step": 10}
    assert second.digests == alone.digests
    assert (newest / "manifest.bad-2.json").exists() and (newest / "manifest.json").exists()  # saved again


def test_a_save_that_was_cut_short_does_not_exist(tmp_path: Path) -> None:
    run(tmp_path, toy(steps=20), 1)
    (folder(tmp_path, 20) / "manifest.json").unlink()
    second = run(tmp_path, toy(steps=20), 1, number=2)
    assert second.events("checkpoint.restored")[0]["data"] == {"step": 10}
    assert second.steps() == list(range(11, 21))


def test_name_metadata_and_contents_of_a_checkpoint_agree(tmp_path: Path) -> None:
    probed = run(tmp_path, probe([1.0] * 40, checkpoint={"every_steps": 5, "keep": 9}), 2)
    for step in (5, 10, 15, 20):
        assert probed.manifest(step)["step"] == step and weight(probed, step) == -step


def test_numbering_goes_on_and_older_checkpoints_stay_untouched(tmp_path: Path) -> None:
    spec = toy(checkpoint={"every_steps": 10, "keep": 9})
    run(tmp_path, {**spec, "steps": 30}, 1)
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.glob("objects/**/*") if p.is_file()}
    second = run(tmp_path, {**spec, "steps": 50}, 2, number=2)
    assert second.attempt.checkpoints.steps() == [10, 20, 30, 40, 50]
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in before} == before


def test_retention_counts_the_checkpoints_of_all_attempts(tmp_path: Path) -> None:
    spec = toy(checkpoint={"every_steps": 5, "keep": 2})
    run(tmp_path, {**spec, "steps": 25}, 1)
    other = tmp_path / "objects/jobs/other/checkpoints/0000000005/manifest.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    second = run(tmp_path, {**spec, "steps": 50}, 1, number=2)
    assert second.attempt.checkpoints.steps() == [45, 50]
    assert [
        p.name for p in sorted((tmp_path / "objects/jobs/job/checkpoints").iterdir()) if any(p.iterdir())
    ] == [
        "0000000045",
        "0000000050",
    ]
    assert other.exists()


def test_every_parameter_gets_its_own_moments_back_at_another_size(tmp_path: Path) -> None:
    sizes = {"a": 7, "b": 13, "c": 1, "d": 64}
    spec = probe(
        [[1.0, 2.0, 3.0, 4.0]] * 16,
        args={"sizes": sizes},
        optimizer={"name": "sgd", "lr": 0.1, "momentum": 0.9},
        batch={"size": 4, "microbatch": 1},
        workers={"min": 1, "max": 3},
        checkpoint={"every_steps": 1, "keep": 9},
    )
    first = run(tmp_path, spec, 3, (2, finish("paused")))
    assert first.outcome is not None
    second = run(tmp_path, spec, 2, number=2)
    for factor, name in enumerate(sizes, start=1):
        velocity = expected = 0.0
        for _ in range(4):
            velocity = 0.9 * velocity + factor
            expected -= 0.1 * velocity
        assert torch.allclose(second.tensors(4)[name], torch.full((sizes[name],), expected), atol=1e-5), name


def test_non_finite_state_is_never_saved_and_pushes_nothing_out(tmp_path: Path) -> None:
    rows = [1.0] * 20 + [1e39] * 30
    spec = probe(
        rows,
        batch={"size": 1, "microbatch": 1},
        workers={"min": 1, "max": 1},
        checkpoint={"every_steps": 5, "keep": 3},
        non_finite={"policy": "fail"},
    )
    failed = run(tmp_path, spec, 1)
    assert failed.outcome is not None and failed.outcome.outcome == "failed"
    assert failed.attempt.checkpoints.steps() == [10, 15, 20]
    assert weight(failed, 20) == -20


class Unreliable:
    """A store that refuses keys with a pattern, for the first so many times, or takes its time with them."""

    def __init__(self, inner: Any, pattern: str, times: int, delay_s: float = 0.0) -> None:
        self.inner, self.pattern, self.times, self.delay_s = inner, pattern, times, delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def put(self, key: str, data: Any, *, create_only: bool = True) -> None:
        time.sleep(self.delay_s if self.pattern in key else 0.0)
        if self.pattern in key and self.times > 0:
            self.times -= 1
            raise StorageError("unavailable", "503 slow down")
        self.inner.put(key, data, create_only=create_only)


def test_a_manifest_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    spec = toy(steps=20)
    saved = run(tmp_path, spec, 2, wrap_storage=lambda inner: Unreliable(inner, "0000000020/manifest", 1))
    assert "503" in saved.events("checkpoint.failed")[0]["message"]
    assert saved.outcome is not None and saved.outcome.outcome == "succeeded"
    assert saved.attempt.checkpoints.steps() == [10, 20]


def test_an_owner_that_died_while_saving_did_not_leave_the_job_without_a_checkpoint(tmp_path: Path) -> None:
    killed = run(tmp_path, toy(steps=20), 3, (20, kill(1)))
    assert killed.outcome is not None and killed.outcome.outcome == "succeeded"
    assert killed.attempt.checkpoints.steps()[-1] == 20


def test_an_older_attempt_writes_nothing_once_a_newer_one_has_begun(tmp_path: Path) -> None:
    claim = tmp_path / "objects/jobs/job/attempts/2/claim.json"

    def supersede(run: Run) -> None:
        claim.parent.mkdir(parents=True)
        claim.write_text("{}")

    def cancel(fact: dict[str, Any]) -> None:
        if fact.get("type") == "checkpoint.failed":
            old.soon(finish("cancelled"))

    old = Run(tmp_path, toy(steps=2000), (1, 1), faults=[(10, once_saved(10, supersede))], on_fact=cancel)
    old.go()
    assert old.attempt.checkpoints.steps() == [10]
    assert "attempt 2 has begun" in old.events("checkpoint.failed")[0]["message"]


def test_evaluation_and_checkpoint_of_the_last_step_survive_a_kill_of_all(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", toy(steps=20))
    killed = run(tmp_path / "two", toy(steps=20), 2, (20, kill_all))
    assert killed.digests == alone.digests
    assert killed.manifest()["metrics"] == alone.manifest()["metrics"] != {}


def test_the_manifest_says_everything_that_the_contract_lists(tmp_path: Path) -> None:
    manifest = json.loads(
        (
            run(tmp_path, toy(steps=10), 2).folder / "objects/jobs/job/checkpoints/0000000010/manifest.json"
        ).read_text()
    )
    for name in [
        "format",
        "job",
        "attempt",
        "generation",
        "samples_seen",
        "params",
        "parts",
        "step",
        "updates",
        "threads",
        "spec_digest",
        "params_digest",
        "state_digest",
    ]:
        assert name in manifest
    for part in manifest["parts"]:
        assert {"file", "ranges", "bytes", "sha256"} <= set(part)


def test_a_slow_store_changes_neither_numbers_nor_contents(tmp_path: Path) -> None:
    spec = probe([1.0] * 40, checkpoint={"every_steps": 5, "keep": 9})
    slow = run(tmp_path, spec, 1, wrap_storage=lambda inner: Unreliable(inner, "manifest", 0, delay_s=0.3))
    assert slow.attempt.checkpoints.steps() == [5, 10, 15, 20]
    for step in (5, 10, 15, 20):
        assert slow.manifest(step)["step"] == step and weight(slow, step) == -step


def test_an_upload_that_fails_on_one_rank_is_said_and_nothing_half_is_published(tmp_path: Path) -> None:
    """Workers open the storage by themselves, so the fault is a folder where the part's parent should be."""
    blocked = folder(tmp_path, 10)
    blocked.parent.mkdir(parents=True)
    blocked.write_text("a file in the way of the checkpoint's folder")

    def clear(fact: dict[str, Any]) -> None:
        if fact.get("type") == "checkpoint.failed":
            blocked.unlink(missing_ok=True)

    saved = run(tmp_path, toy(), 2, on_fact=clear)
    assert saved.outcome is not None and saved.outcome.outcome == "succeeded"
    assert any("checkpoint 10 failed" in e["message"] for e in saved.events("checkpoint.failed"))
    assert 10 not in saved.attempt.checkpoints.steps() and 40 in saved.attempt.checkpoints.steps()


def test_progress_counts_the_whole_job_after_a_resume(tmp_path: Path) -> None:
    first = run(tmp_path, toy(task_args={"sleep_s": 0.01}), 1, (20, finish("paused")))
    assert first.outcome is not None
    second = run(tmp_path, toy(task_args={"sleep_s": 0.01}), 2, number=2)
    shown = [f for f in second.of_kind("progress") if f["status"] == "running"]
    assert shown[0]["step"] >= first.outcome.step and {f["total_steps"] for f in shown} == {40}
    assert all(f["step"] <= 40 for f in shown) and shown[-1]["step"] == 40
