"""One task, trained in every way that a spec can choose: what each way learns, sends, keeps, loses by a kill.

    python bench/algorithms.py [--quick]

Two workers, the text of `peers/lesson.py`, Adam; each way sees the same samples. Loss is the mean of the last
twentieth of the samples, after equally many of them, and of the last second after equally long. Bytes are
counted at the loopback device, per worker and global batch of 16 sequences: a round of local_sgd reads
several, and its bytes are divided by them. Memory is that of the largest process (worker or server), beyond
what one has that imported a worker and built nothing; what a split worker imports more for it (43 MB) counts.
From one half of the run to the other it may hardly grow: a worker trains for weeks.
The kill (SIGKILL of a worker, no spare) comes in the middle of the job: how long until anybody commits, how
much training time went with it, and how many steps that were committed had to be made again.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rig.analysis import Target, median, ratio
from rig.report import bars, finish, markdown, table
from rig.rounds import Case, Measure, Results, Row, measure, options
from rig.run import Run, anonymous_mb, loopback_bytes, now
from rig.systems import Ours, OursSplit

WORKERS, SEQUENCES, LOCAL_STEPS = 2, 16, 8
LOOK_S = 0.05
AFTER_S = 4.0  # of training after a kill
STEADY = 1.1  # a process that grows by more from one half of its run to the other may do so for good
PLAIN = "all_reduce"
Strategy = dict[str, Any]

BOTH_WAYS = {"compression": "int8", "compression_down": "int8"}
GUARDS: dict[str, Any] = {
    "clip_norm": 1.0,
    "non_finite": {"policy": "rollback"},
    "loss_spike": {"policy": "report"},
    "watch": {"norms": "layers", "every_steps": 20},
}
LOCAL: Strategy = {"name": "local_sgd", "local_steps": LOCAL_STEPS, "replicas": WORKERS}
SERVED: Strategy = {"name": "parameter_server", "servers": 2}
WAYS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "all_reduce guarded": GUARDS,
    "all_reduce with moments": {"aggregate": "moments"},
    "all_reduce with bf16": {"compression": "bf16"},
    "all_reduce with fp16": {"compression": "fp16"},
    "all_reduce with int8": {"compression": "int8"},
    "all_reduce with topk": {"compression": {"name": "topk", "fraction": 0.05}},
    "all_reduce with powersgd": {"compression": {"name": "powersgd", "rank": 4}},
    "all_reduce with int8 both ways": BOTH_WAYS,
    "all_reduce split in two": {"workers": {"processes": 2}},
    "parameter_server synchronous": {"strategy": {**SERVED, "staleness": 0}},
    "parameter_server with int8 both ways": {"strategy": {**SERVED, "staleness": 0}, **BOTH_WAYS},
    "parameter_server staleness 2": {"strategy": {**SERVED, "staleness": 2}},
    "parameter_server asynchronous": {"strategy": {**SERVED, "staleness": None}},
    "local_sgd": {"strategy": LOCAL},
    "DiLoCo": {"strategy": {**LOCAL, "outer": "diloco"}},
    "gossip on a ring": {"strategy": {"name": "gossip", "graph": "ring"}},
}
COMMON: dict[str, Any] = {
    "task": "peers.lesson:Lesson",
    "optimizer": {"name": "adam", "lr": 1e-3},
    "batch": {"size": SEQUENCES, "microbatch": SEQUENCES // 4},
    "workers": {"min": 1, "max": WORKERS},
}


def main() -> int:
    chosen = options(__doc__).parse_args()
    batches, span_s = (200, 10.0) if chosen.quick else (800, 40.0)
    cases = [Case(system, story(system, batches, span_s), limit_s=600.0) for system in systems()]
    return report(measure(cases, chosen, 1 if chosen.quick else 3), chosen.out)


def spec_of(way: dict[str, Any]) -> dict[str, Any]:
    return COMMON | way | {"workers": COMMON["workers"] | way.get("workers", {})}


def systems() -> list[Ours]:
    """One for each way."""
    found: list[Ours] = []
    for name, way in WAYS.items():
        processes, spec = way.get("workers", {}).get("processes", 1), spec_of(way)
        found.append(OursSplit(name, processes, spec=spec) if processes > 1 else Ours(name, spec=spec))
    return found


def story(system: Ours, batches: int, span_s: float) -> Measure:
    """One run: learn, look, kill a worker, look again."""
    # global batches that one step of the job reads
    reads = int(system.setting["spec"].get("strategy", {}).get("local_steps", 1))

    def tell(run: Run) -> Row:
        first = run.wait_step(1)
        run.others()
        sent, since = loopback_bytes(), run.commits()[-1]["step"]
        seen = _watch(run, system, first["t"] + span_s, batches // reads)
        early, late = (max(part) for part in (seen[: len(seen) // 2], seen[len(seen) // 2 :]))
        moved, others, commits = loopback_bytes() - sent, run.others(), run.commits()
        steps = commits[-1]["step"] - since
        step_s = (commits[-1]["t"] - first["t"]) / max(1, commits[-1]["step"] - first["step"])
        return {
            "loss_steps": _loss(c["loss"] for c in commits if 0.95 * batches < c["step"] * reads <= batches),
            "loss_time": _loss(c["loss"] for c in commits if -1.0 < c["t"] - first["t"] - span_s <= 0.0),
            "batches_per_s": reads / step_s,
            "sent_mb": moved / 1e6 / max(1, steps) / reads / WORKERS,
            "memory_mb": max(early, late) - _imported(run, system),
            "grew": late / early,
            **_kill(run, system, step_s),
            "others": others,
        }

    return tell


def _watch(run: Run, system: Ours, until: float, step: int) -> list[float]:
    """Wait until that moment and that step, whichever is later. -> the largest worker's memory, in MB, again
    and again."""
    seen = []
    while now() < until or run.commits()[-1]["step"] < step:
        run.wait_step(1)  # raises if the run is over or too late
        found = []
        for pid in system.workers(run):
            with contextlib.suppress(OSError):
                found.append(anonymous_mb(pid))
        seen.append(max(found, default=0.0))
        time.sleep(LOOK_S)
        if now() > run.deadline:
            raise TimeoutError(f"step {step} is not reached; the last is {run.commits()[-1]['step']}")
    return seen


def _loss(values: Any) -> float | None:
    found = [float(v) for v in values]
    return statistics.fmean(found) if found else None


def _imported(run: Run, system: Ours) -> float:
    system.decoy(run)
    return float(run.wait(lambda: run.events("imported"), "process that only imported")[0]["anonymous_mb"])


def _kill(run: Run, system: Ours, step_s: float) -> Row:
    """SIGKILL of a worker that computes, right after a commit."""
    newest = {e["worker"]: e for e in run.events("worker")}
    computing = [e for e in newest.values() if e["state"] == "active" and e["worker"].startswith("w")]
    hit = run.wait_more(2)
    killed = run.kill(computing[-1]["worker_pid"])
    new = run.wait(lambda: next((c for c in run.commits() if c["t"] > killed), None), "step after the kill")
    run.wait_step(new["step"] + max(3, int(AFTER_S / step_s)))
    after = run.commits()
    last, before = after[-1], max(c["step"] for c in after if c["t"] <= killed)
    lost_s = last["t"] - hit["t"] - (last["step"] - hit["step"]) * step_s
    return {
        "pause_s": new["t"] - killed,
        "lost_s": max(0.0, lost_s),
        "redone": max(0, before + 1 - min(c["step"] for c in after if c["t"] > killed)),
    }


def report(results: Results, out: Path) -> int:
    names = [name for name, rows in results.rows.items() if rows]

    def middle(name: str, key: str) -> float | None:
        return median(row[key] for row in results[name])

    heads = {
        "loss, equal steps": "loss_steps",
        "loss, equal time": "loss_time",
        "batches/s": "batches_per_s",
        "MB sent per batch": "sent_mb",
        "MB of memory": "memory_mb",
        "pause by a kill, s": "pause_s",
        "lost by it, s": "lost_s",
        "steps redone": "redone",
    }
    rows: list[Sequence[Any]] = [(n, *(middle(n, key) for key in heads.values())) for n in names]
    print(table(["two workers", *heads], rows))
    out.mkdir(parents=True, exist_ok=True)
    (out / "algorithms.md").write_text(markdown(["two workers", *heads], rows))  # for docs/algorithms.md
    bars(
        out / "algorithms-loss.svg",
        "Loss after equal steps",
        "nats",
        {n: middle(n, "loss_steps") for n in names},
    )
    bars(out / "algorithms-sent.svg", "Sent per global batch", "MB", {n: middle(n, "sent_mb") for n in names})
    figures = {key: {n: middle(n, key) for n in names} for key in heads.values()}
    figures["sent_against_all_reduce"] = {
        n: ratio(middle(n, "sent_mb"), middle(PLAIN, "sent_mb")) for n in names
    }
    redone = [m for n in names if (m := middle(n, "redone")) is not None]
    grew = {n: m for n in names if (m := middle(n, "grew")) is not None}
    figures["second_half_against_first"] = grew
    targets = [
        Target("steps that anyone had to do again after a kill", max(redone, default=None), 0),
        Target("memory in a run's second half against its first", max(grew.values(), default=None), STEADY),
    ]
    return finish(figures, targets, results.remarks)


if __name__ == "__main__":
    sys.exit(main())
