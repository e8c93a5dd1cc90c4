"""The order of an asynchronous run is repeated: the bits are the same, whoever computes and whoever dies."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

from elastrain.trainers.strategies.ledger import ORDER
from engine.harness import Fault, Run, kill, probe, run, toy
from engine.served import check_asynchronous, kill_worker, order_of, served

pytestmark = pytest.mark.engine

BEHIND, RATE = 3, 0.4  # of an order that is written by hand


def replayed(folder: Path, first: Run, workers: int, *faults: tuple[int, Fault]) -> Run:
    """Another job beside the first one in the same storage, which repeats its order."""
    shutil.copytree(first.folder / "objects", folder / "objects")
    strategy = {**first.spec["strategy"], "replay": first.job}
    spec = {**first.spec, "strategy": strategy}
    return run(folder, spec, workers, *faults, job="again")


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
    data = save({"order": torch.tensor(order)})
    (folder / ORDER).write_bytes(data)
    files = [{"name": ORDER, "sha256": hashlib.sha256(data).hexdigest()}]
    manifest = {"step": len(order), "cursor": {}, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def written(folder: Path, steps: int, strategy: dict[str, Any], task: str, **args: Any) -> dict[str, Any]:
    """A job that repeats an order in which each push but the first few is BEHIND versions behind."""
    order = [(step, max(0, step - BEHIND)) for step in range(steps)]
    write_order(folder / f"objects/jobs/written/checkpoints/{steps:010d}", order)
    strategy = {"name": "parameter_server", "staleness": None, "servers": 1, "replay": "written", **strategy}
    optimizer, workers = {"name": "sgd", "lr": RATE}, {"min": 1, "max": 2}
    rows = [0.25 * step for step in range(2 * steps)]
    spec = probe(rows, args=args, strategy=strategy, optimizer=optimizer, workers=workers)
    return spec | {"task": f"engine.tasks.{task}"}


def by_the_equation(steps: int, scaled: bool = False, strength: float = 0.0) -> float:
    w = [0.0]
    for step in range(steps):
        version = max(0, step - BEHIND)
        gradient = w[version] - (2 * step + 0.5) / 4
        gradient += strength * gradient**2 * (w[-1] - w[version])
        w.append(w[-1] - RATE / (max(1, step - version) if scaled else 1) * gradient)
    return w[-1]


@pytest.mark.parametrize(("scaled", "strength"), [(False, 0.0), (True, 0.0), (False, 0.3), (True, 0.3)])
def test_a_push_moves_the_parameter_as_its_equation_says(
    tmp_path: Path, scaled: bool, strength: float
) -> None:
    strategy = {"scale_by_staleness": scaled, "compensation": strength}
    done = run(tmp_path, written(tmp_path, 12, strategy, "probe:Quadratic"), 1)
    assert done.metric("staleness_max")[12] == BEHIND
    assert done.tensors()["w"].item() == pytest.approx(by_the_equation(12, scaled, strength), rel=1e-5)


def test_a_version_that_was_made_in_the_last_moment_of_a_generation_is_there_for_the_pushes_that_need_it(
    tmp_path: Path,
) -> None:
    """Version 10 was forgotten when its generation ended before it went out: who needed it got version 11."""
    torn = {"at": 10, "ready": [10, 10 - BEHIND]}
    done = run(tmp_path, written(tmp_path, 24, {"scale_by_staleness": True}, "torn:Torn", **torn), 2)
    assert "torn" in done.log("s0") and len(done.of_kind("generation")) >= 2
    assert done.tensors()["w"].item() == pytest.approx(by_the_equation(24, True), rel=1e-5)


def _with(first: Run, **strategy: Any) -> Run:
    spec = {**first.spec, "strategy": {**first.spec["strategy"], **strategy}}
    return Run(first.folder, spec, first.workers, job=first.job)


def test_an_asynchronous_run_goes_on_from_a_synchronous_one_and_can_be_repeated(tmp_path: Path) -> None:
    run(tmp_path / "first", toy(steps=20), 2)
    more = run(tmp_path / "first", served(None, resume_from="job@20"), 2, job="other")
    assert more.steps() == list(range(21, 41))
    order = order_of(more)
    assert order[:20] == [[step, step] for step in range(20)]
    assert sorted(step for step, _ in order) == list(range(40))
    again = replayed(tmp_path / "again", more, 1)
    assert again.digests == more.digests and again.steps() == more.steps()


def test_a_repetition_begins_with_the_parameters_and_moments_of_the_job_that_the_first_run_went_on_from(
    tmp_path: Path,
) -> None:
    """Another rate before it: from the seed, the same order gives other parameters. A server dies as well."""
    before = {"name": "adamw", "lr": 5e-3, "weight_decay": 0.01}
    run(tmp_path / "first", toy(steps=20, optimizer=before), 1)
    spec = served(None, resume_from="job@20", task_args={"sleep_s": 0.01})
    more = run(tmp_path / "first", spec, 2, job="other")
    again = replayed(tmp_path / "again", more, 1, (25, kill(1)))
    assert again.digests == more.digests
    assert {e["data"]["to"] for e in again.events("rollback")} == {20}


def test_a_repetition_that_would_begin_with_other_parameters_is_refused_and_does_not_succeed_as_another_run(
    tmp_path: Path,
) -> None:
    """Any checkpoint of that step would do, or none at all, and the result was another one."""
    run(tmp_path, toy(steps=20), 1)
    run(tmp_path, toy(steps=20, optimizer={"name": "adamw", "lr": 5e-3}), 1, job="faster")
    first = run(tmp_path, served(None, resume_from="job@20"), 1, job="other")
    spec = {**first.spec, "strategy": {**first.spec["strategy"], "replay": "other"}}
    for number, source in enumerate(("faster@20", None)):
        refused = run(tmp_path, {**spec, "resume_from": source}, 1, job=f"again-{number}")
        assert refused.outcome is not None and refused.outcome.failed_by == "user" and not refused.steps()
        assert "that run began with checkpoint 20 of job job" in (refused.outcome.message or "")


def test_a_fine_tuning_on_other_data_is_repeated_from_the_model_that_it_began_with(tmp_path: Path) -> None:
    """Before a worker has said how long the data set is, it was taken for a run that goes on at step 20."""
    run(tmp_path / "first", toy(steps=20), 1)
    spec = served(None, resume_from="job@20", task_args={"samples": 250})
    tuned = run(tmp_path / "first", spec, 1, job="other")
    assert tuned.steps()[0] == 1, "of another data set only the model is taken"
    assert replayed(tmp_path / "again", tuned, 2).digests == tuned.digests


def test_a_repetition_begins_with_the_weights_that_the_first_run_began_with(tmp_path: Path) -> None:
    run(tmp_path / "first", toy(steps=20, seed=5), 1)
    more = run(tmp_path / "first", served(None, resume_from="job@20"), 1, job="other")
    assert more.steps()[0] == 1, "of another seed only the model is taken"
    assert replayed(tmp_path / "again", more, 1).digests == more.digests


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


def test_the_job_that_is_repeated_was_deleted_amid_the_repetition_and_a_server_died(tmp_path: Path) -> None:
    """The next server looked for the order in the job that was gone, and the repetition failed."""
    first = run(tmp_path / "first", served(None, task_args={"sleep_s": 0.01}), 2)

    def delete(again: Run) -> None:
        shutil.rmtree(again.folder / "objects/jobs/job")

    again = replayed(tmp_path / "again", first, 2, (8, delete), (12, kill(0)))
    assert again.digests == first.digests and again.events("rollback")


def test_a_repetition_that_began_amid_a_run_that_had_begun_elsewhere_is_refused(tmp_path: Path) -> None:
    """It trained from the seed, as what the coordinator believed to be step 20."""
    spec = served(None, task_args={"sleep_s": 0.01}, checkpoint={"every_steps": 10, "keep": 9})
    first = run(tmp_path, spec, 3)
    order = order_of(first)
    assert min(version for _, version in order[20:]) < 20, "else it could"
    strategy = {**first.spec["strategy"], "replay": "job"}
    refused = run(tmp_path, {**spec, "strategy": strategy, "resume_from": "job@20"}, 2, job="again")
    assert refused.outcome is not None and refused.outcome.failed_by == "user" and not refused.steps()
    assert "that run had no resume_from" in (refused.outcome.message or "")


def test_a_repetition_at_a_rate_at_which_it_diverges_fails_and_says_that_it_is_none_any_more(
    tmp_path: Path,
) -> None:
    first = run(tmp_path / "first", served(None, non_finite={"policy": "rollback", "max": 0}), 1)
    optimizer = {"name": "sgd", "lr": 1e20}
    other = Run(first.folder, {**first.spec, "optimizer": optimizer}, 1, job=first.job)
    again = replayed(tmp_path / "again", other, 1)
    assert again.outcome is not None and again.outcome.failed_by == "user"
    told = again.outcome.message or ""
    assert "strategy.replay job@40" in told and "not finite" in told
    assert "another rate would not repeat it any more" in told


def test_an_order_that_the_job_is_too_short_for_is_refused_before_the_first_step(tmp_path: Path) -> None:
    run(tmp_path, served(None), 2)
    strategy = {"name": "parameter_server", "staleness": None, "replay": "job"}
    refused = run(tmp_path, toy(strategy=strategy, steps=30), 1, job="again")
    assert refused.outcome is not None and refused.outcome.failed_by == "user"
    assert "and this job has 30 steps" in (refused.outcome.message or "") and not refused.steps()
