"""What must hold after every run, whatever was done to its workers."""

from __future__ import annotations

import hashlib
from typing import Any

import psutil

from engine.harness import Run
from engine.rough_launcher import RoughLauncher

GONE_S = 20.0
SAME = ("loss", "grad_norm", "lr", "val_loss", "val_accuracy")


def check(disturbed: Run, undisturbed: Run, step: int | None = None) -> None:
    """Same bits, same metrics, no accepted step lost or repeated, no sample lost or repeated, nobody left.
    step: up to which the undisturbed run counts; default: to its end."""
    saved, wanted = disturbed.manifest(step), undisturbed.manifest(step)
    for name in ("params_digest", "state_digest", "sample_chain"):
        assert saved[name] == wanted[name], name
    check_steps(disturbed, undisturbed.steps()[-1] if step is None else step)
    for name in SAME:
        ours, theirs = (last_points(r, name, step) for r in (disturbed, undisturbed))
        differ = {s: (ours.get(s), theirs.get(s)) for s in ours | theirs if ours.get(s) != theirs.get(s)}
        assert not differ, f"{name} by step, disturbed and undisturbed: {differ}"
    check_nobody_is_left(disturbed)


def check_steps(run: Run, total: int) -> None:
    """Accepted steps are 1..total without gap or repetition, but for what a rollback event announced; points
    after a rollback carry a higher number, by which they replace the older ones."""
    at = epoch = 0
    for fact in run.facts:
        if fact.get("type") == "rollback":
            assert fact["data"]["from"] == at, f"a rollback from {fact['data']['from']}, at step {at}"
            at, epoch = fact["data"]["to"], epoch + 1
        elif fact["kind"] == "metric" and "loss" in fact["values"]:
            assert (fact["step"], fact["epoch_no"]) == (at + 1, epoch)
            at += 1
    assert at == total


def last_points(run: Run, name: str, end: int | None = None) -> dict[int, float]:
    """The metric as people see it: what was said of steps beyond a rollback holds no longer. end: the last
    step to look at."""
    points: dict[int, float] = {}
    for fact in run.facts:
        if fact.get("type") == "rollback":
            points = {step: value for step, value in points.items() if step <= fact["data"]["to"]}
        elif fact["kind"] == "metric" and name in fact["values"]:
            points[fact["step"]] = fact["values"][name]
    return {step: value for step, value in points.items() if end is None or step <= end}


def check_nobody_is_left(run: Run) -> None:
    """No process that the run started, and nothing that listens for one."""
    assert isinstance(run.launcher, RoughLauncher)
    left = run.launcher.still_running()
    if run.spec["workers"].get("processes", 1) > 1:  # the kernel takes a moment to end shards with their lead
        _, left = psutil.wait_procs(left, timeout=GONE_S)
    assert left == []
    listening = {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}
    assert int(run.attempt.coordinator.url.rpartition(":")[2]) not in listening
    assert all(f["state"] in ("ended", "lost") for f in {w["id"]: w for w in run.of_kind("worker")}.values())


# ---- samples: by what the Task saw, not by what the engine says --------------------------------------


def check_samples(disturbed: Run, records: list[dict[str, Any]], undisturbed: Run, samples: int) -> None:
    """Task: Witness. The undisturbed worker's own log proves each epoch a permutation; every accepted record
    of the disturbed run names these very samples, and some worker's log shows each of them read."""
    steps = check_epochs(undisturbed, samples)
    seen = {ids for worker in logs_of(disturbed) for ids in reads(worker)}
    for record in (r for r in records if r["step"] < undisturbed.steps()[-1]):  # others were rolled back
        microbatches = steps[record["task"][0] if "task" in record else record["step"]]
        digests = [hashlib.sha256(_packed(ids)).hexdigest()[:16] for ids in microbatches]
        assert record["ids"] == hashlib.sha256("".join(digests).encode()).hexdigest()[:32], record["step"]
        assert seen.issuperset(microbatches)


def check_epochs(run: Run, samples: int) -> list[list[tuple[int, ...]]]:
    """Microbatches per step, as the only worker of a run read them. Each epoch has every sample once."""
    size = run.spec["batch"]["size"]
    steps: list[list[tuple[int, ...]]] = [[]]
    epoch: list[int] = []
    for ids in reads(run.log("w0")):
        steps[-1].append(ids)
        epoch += ids
        if len(epoch) == samples:
            assert sorted(epoch) == list(range(samples))
            epoch = []
        if not epoch or len(epoch) % size == 0:
            steps.append([])
    return steps


def logs_of(run: Run) -> list[str]:
    return [path.read_text() for path in (run.folder / "logs").glob("w*.log")]


def reads(log: str) -> list[tuple[int, ...]]:
    """The sample numbers of each microbatch that a Task left in a worker's log."""
    lines = [line.split()[1:] for line in log.splitlines() if line.startswith("read ")]
    return [tuple(map(int, ids)) for ids in lines]


def _packed(ids: tuple[int, ...]) -> bytes:
    return b"".join(i.to_bytes(8, "little") for i in ids)
