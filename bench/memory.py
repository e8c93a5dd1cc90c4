"""How much memory a worker takes: ours with 1, 2 and 4 workers, beside the formula, DDP and ZeRO.

    python bench/memory.py [--quick]

Measured is the peak, over some ten steps, of what a worker's process allocated, less that of a process that
has imported the same and built nothing. The formula, with P the size of the parameters (38.7 MB) and m the
microbatches per worker:

    parameters P + gradients P (1 + log2 m) + optimizer state 2 P min(1, 2 / workers)
    + with peers: the sums of the chunks that it keeps, P min(1, 2 / workers), and one bucket's partial sums
    + while a checkpoint is written: the state 2 P / workers and, on rank 0, the parameters P, and the file P

With the model of each worker split among k processes (`workers.processes`) all of it by k, in each process,
but for the parameters of the embedding from forward to backward, those and the gradients of one block, and a
copy of these on their way between the processes. With two stages of a pipeline instead: the parameters of one
and their gradients, and a run of these on their way.

Beside that, every worker has activations; they are what forward and backward alone take beyond 2 P. And more
than any formula says: pieces that the allocator cannot use, buffers of sockets, what a library sets up at its
first use. How much that is on a machine, DDP shows in the same run: ours may be no further above its formula
and the activations than DDP is above its own.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from rig.analysis import Target, median, ratio
from rig.report import bars, finish, table
from rig.rounds import Case, Measure, Results, Row, measure, options
from rig.run import Run, anonymous_mb, now
from rig.systems import Limit, Ours, OursSplit, System, Torchrun

P = 9_671_808 * 4 / 1e6  # MB
BUCKET = 4 * 1024 * 1024 * 4 / 1e6  # MB
BATCH = 12
LOOK_S = 0.003
ROOT, BLOCK = (2048 + 32 + 2) * 384 * 4 / 1e6, 1_774_464 * 4 / 1e6  # MB; what a split model brings together
TOGETHER = 2 * 2 * 1024 * 1024 * 4 / 1e6  # MB; gradients on their way between two stages, there and here
STAGED = "elastrain, 2 workers of 2 stages"
ALONE, DDP, SAVING = "forward and backward", "DDP", "elastrain, 2 workers, saving"


def ours(workers: int) -> str:
    return f"elastrain, {workers} worker{'s' if workers > 1 else ''}"


def main() -> int:
    chosen = options(__doc__).parse_args()
    span_s = 6.0 if chosen.quick else 15.0
    cases = [
        _case(Limit(name=ALONE), span_s),
        _case(Torchrun(name=DDP), span_s),
        _case(Torchrun(name="DDP with ZeRO", setting={"variant": "zero"}), span_s),
        _case(Ours(SAVING), span_s, ckpt_every=8),
    ]
    for workers in (1, 2, 4):  # at least one microbatch each
        system = Ours(ours(workers), microbatch=min(6, BATCH // workers))
        cases.append(_case(system, span_s, workers=workers))
    for processes in (2, 3):
        cases.append(_case(OursSplit(split(processes), processes), span_s, processes))
    cases.append(_case(OursSplit(STAGED, 2, "pipeline"), span_s, 2))
    return report(measure(cases, _patient(chosen), 1), chosen.out)


def _patient(chosen: argparse.Namespace) -> argparse.Namespace:
    """Memory does not depend on who else computes here."""
    chosen.calm = math.inf
    return chosen


def split(processes: int) -> str:
    return f"elastrain, 2 workers of {processes} processes"


def _case(system: System, span_s: float, processes: int = 1, **setting: Any) -> Case:
    return Case(system, peak(system, span_s, setting.get("workers", 2), processes), setting)


def peak(system: System, span_s: float, workers: int, processes: int) -> Measure:
    """The largest peak of any process of a worker, over all of the run's steps after the first few."""

    def look(run: Run) -> Row:
        run.wait_step(5, workers)
        pids = system.workers(run)
        assert len(pids) == workers * processes, f"{len(pids)} processes instead of {workers * processes}"
        seen = dict.fromkeys(pids, 0.0)
        until = now() + span_s
        while now() < until:
            for pid in pids:
                seen[pid] = max(seen[pid], anonymous_mb(pid))
            time.sleep(LOOK_S)
        system.decoy(run)
        empty = run.wait(lambda: run.events("imported"), "process that only imported")[0]["anonymous_mb"]
        return {"peak_mb": max(seen.values()) - empty, "imported_mb": empty, "others": 0.0}

    return look


def formula(workers: int, microbatch: int, saving: bool = False) -> float:
    """MB per worker, for Adam (docs/decisions/0029)."""
    mine = BATCH // microbatch / workers
    gradients = P * (1 + math.log2(mine))
    state = 2 * P * min(1.0, 2 / workers)
    reduced = P * min(1.0, 2 / workers) + min(BUCKET, P) if workers > 1 else 0.0
    snapshot = 2 * P / workers + 2 * P if saving else 0.0
    return P + gradients + state + reduced + snapshot


def report(results: Results, out: Path) -> int:
    names = [name for name, rows in results.rows.items() if rows]

    def measured(name: str) -> float | None:
        return median(row["peak_mb"] for row in results[name])

    alone = measured(ALONE)
    activations = alone - 2 * P if alone is not None else None
    wanted = {ours(n): formula(n, min(6, BATCH // n)) for n in (1, 2, 4)}
    wanted[SAVING] = formula(2, 6, saving=True)
    wanted |= {split(k): formula(2, 6) / k + ROOT + 4 * BLOCK for k in (2, 3)}
    wanted[STAGED] = formula(2, 6) / 2 + 2 * (ROOT + 3 * BLOCK) + TOGETHER  # of five blocks
    # What these need by construction: DDP has a copy of the gradients in its buckets.
    wanted |= {ALONE: 2 * P, DDP: 5 * P, "DDP with ZeRO": 4 * P}

    def whole(name: str) -> float | None:
        parts = 2 if name == STAGED else next((k for k in (2, 3) if name == split(k)), 1)
        return wanted[name] + activations / parts if activations is not None else None

    heads = ["MB per worker", "measured", "formula", "formula and activations", "measured / that"]
    cells = [(n, measured(n), wanted[n], whole(n), ratio(measured(n), whole(n))) for n in names]
    print(table(heads, cells))
    bars(out / "memory.svg", "Memory per worker", "MB", {name: measured(name) for name in names})
    against = {name: ratio(measured(name), whole(name)) for name in names}
    figures: dict[str, Any] = {
        "measured_mb": {name: measured(name) for name in names},
        "formula_mb": {name: wanted[name] for name in names},
        "activations_mb": activations,
        "against_formula": against,
        "against_ddp": ratio(measured(ours(2)), measured(DDP)),
        "against_zero": ratio(measured(ours(2)), measured("DDP with ZeRO")),
    }
    ours_all = [*(ours(n) for n in (1, 2, 4)), SAVING]
    targets = [
        Target(
            f"memory of {n} above its formula, against DDP's", ratio(against.get(n), against.get(DDP)), 1.0
        )
        for n in ours_all
    ]
    return finish(figures, targets, results.remarks)


if __name__ == "__main__":
    sys.exit(main())
