"""What it costs that a worker dies (SIGKILL), joins, or leaves: ours, torchft, torchrun, Ray Train.

    python bench/recovery.py [--quick]

Two workers, a checkpoint every 10 steps. A kill comes five steps after one, each in another part of a step,
of each rank in turn. The pause lasts from the kill to the next committed step by anyone. What a survivor
needs to compute the dead one's share is measured by itself: its forward and backward, alone. What was left
of the step at the kill is shown too: the survivor would have needed that anyway.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from rig.analysis import (
    Target,
    longest_gap,
    median,
    median_ratio,
    recovery,
    rows_dropped,
    step_times,
)
from rig.report import bars, finish, table
from rig.rounds import Case, Measure, Results, Row, measure, options
from rig.run import Run, now
from rig.systems import (
    Grows,
    Limit,
    Ours,
    RayTrain,
    RayTrainElastic,
    System,
    Torchft,
    Torchrun,
    TorchrunElastic,
)

WORKERS, BATCH = 2, 12
CKPT_EVERY = 10
AHEAD = 20  # steps over which a kill's whole cost is counted
OURS, SHARE = "elastrain", "one share, alone"


def main() -> int:
    chosen = options(__doc__).parse_args()
    kills = 2 if chosen.quick else 4
    ours, torchft, torchrun, ray = Ours(), Torchft(), Torchrun(), RayTrain()
    saved = {"ckpt_every": CKPT_EVERY}
    alone = {**saved, "workers": 1}
    cases = [
        Case(Limit(), share_alone, {"workers": 1, "of": WORKERS}, name=SHARE),
        Case(ours, story(ours, kills, grows=ours), alone),
        Case(torchft, story(torchft, kills, grows=torchft), alone),
        Case(torchrun, story(torchrun, kills), saved),
        Case(ray, story(ray, 1 if chosen.quick else 2), saved),
    ]
    if chosen.only or not chosen.quick:  # quick has them only when asked for
        growing: list[Grows] = [TorchrunElastic(), RayTrainElastic()]
        cases += [Case(system, story(system, 0, grows=system), alone, once=True) for system in growing]
    return report(measure(cases, chosen, 1 if chosen.quick else 3), chosen.out)


def share_alone(run: Run) -> Row:
    """The time for one worker's share of a step, with the machine to itself."""
    run.wait_step(5)
    run.others()
    time.sleep(5.0)
    others = run.others()
    return {"step_s": statistics.median(step_times(run.commits(), 5)), "others": others}


def story(system: System, kills: int, grows: Grows | None = None) -> Measure:
    """One run: a worker joins if the system grows, then it trains, then workers are killed one by one."""

    def tell(run: Run) -> Row:
        row: Row = {}
        if grows is not None:
            row |= join(run, grows)
        newest = run.wait_more(4, WORKERS) if grows else run.wait_step(6, WORKERS)
        run.others()
        run.wait_step(newest["step"] + 2 * CKPT_EVERY, WORKERS)
        row["others"] = run.others()
        times = step_times(run.commits(), newest["step"])
        row |= {"step_s": statistics.median(times), "mean_s": statistics.fmean(times)}
        found = [kill(run, system, number, (number + 0.5) / kills, row) for number in range(kills)]
        for key in found[0] if found else ():
            row[key] = median(one[key] for one in found)
        if kills:
            row["steps_redone"] = max(one["steps_redone"] for one in found)
            row["rows_dropped"] = dropped(run)
        if isinstance(system, Ours):
            row["leave_s"] = leave(run, system, row)
        return row

    return tell


def join(run: Run, system: Grows) -> Row:
    """Training alone, then one more is asked for: the longest stall until it takes part."""
    run.wait_step(12)
    step_s = statistics.median(step_times(run.commits(), 4))
    asked = now()
    system.grow(run)
    run.setting["workers"] = WORKERS
    up = run.wait(lambda: next((c for c in run.commits() if c["world"] == WORKERS), None), "join")
    run.wait_step(up["step"] + 4)
    commits = run.commits()
    before = max(c["step"] for c in commits if c["world"] < WORKERS)
    gap = longest_gap(commits, asked, up["t"] + 4 * step_s)
    return {
        "join_s": max(0.0, gap - step_s),
        "join_ready_s": up["t"] - asked,
        "join_redone": max(0, before + 1 - up["step"]),
    }


def kill(run: Run, system: System, number: int, part: float, steady: Row) -> Row:
    """SIGKILL of one worker when that part of a step is over, and everything until all are back and have
    trained on for a while."""
    base = run.commits()[-1]["step"]
    first = base + 1 + (CKPT_EVERY // 2 - base - 1) % CKPT_EVERY
    hit = run.wait_step(first, WORKERS)
    workers = system.workers(run)
    victim = workers[(WORKERS - 1 - number) % len(workers)]
    time.sleep(max(0.0, hit["t"] + steady["step_s"] * part - now()))
    killed = run.kill(victim)
    before = [c for c in run.commits() if c["t"] <= killed]
    ready = run.wait(
        lambda: next((e["t"] for e in run.events("ready") if e["t"] > killed), None), "replacement"
    )
    full = run.wait(
        lambda: next((c for c in run.commits() if c["t"] > ready and c["world"] == WORKERS), None),
        "full strength",
    )
    run.wait_step(max(before[-1]["step"] + AHEAD + 1, full["step"] + 4))
    commits = run.commits()
    cost = recovery(commits, killed, ready, WORKERS, steady["mean_s"], AHEAD)
    back = longest_gap(commits, full["t"] - steady["step_s"], full["t"] + 2 * steady["step_s"])
    return {
        "pause_s": cost.pause_s,
        "rest_s": max(0.0, before[-1]["t"] + steady["step_s"] - killed),
        "progress_s": cost.progress_s,
        "full_s": cost.full_s,
        "lost_s": cost.lost_s,
        "rejoin_s": max(0.0, back - steady["step_s"]),
        "steps_redone": cost.steps_redone,
    }


def leave(run: Run, system: Ours, steady: Row) -> float:
    """A planned leave: the longest stall of the one that stays."""
    run.wait_more(4, WORKERS)
    asked = now()
    system.scale(run, 1)
    down = run.wait(
        lambda: next((c for c in run.commits() if c["t"] > asked and c["world"] == 1), None), "leave"
    )
    run.wait_step(down["step"] + 4)
    commits = run.commits()
    alone_s = statistics.median(step_times(commits, down["step"]))
    return max(0.0, longest_gap(commits, asked, down["t"]) - alone_s)


def dropped(run: Run) -> int:
    """Rows that reached no update. Our workers say what they compute, the peers' what they committed."""
    last = run.commits()[-1]["step"] - 2
    computed: list[dict[str, Any]] = [{**e, "step": e["step"] + 1} for e in run.events("computes")]
    return rows_dropped(computed or run.commits(), BATCH, last)


def report(results: Results, out: Path) -> int:
    names = [name for name, rows in results.rows.items() if rows and name != SHARE]

    def middle(name: str, key: str) -> float | None:
        return median(row.get(key) for row in results[name])

    columns = {
        "pause, s": "pause_s",
        "new step, s": "progress_s",
        "all back, s": "full_s",
        "steps redone": "steps_redone",
        "rows dropped": "rows_dropped",
        "lost, s": "lost_s",
        "rejoin, s": "rejoin_s",
        "join, s": "join_s",
        "leave, s": "leave_s",
    }
    print(table(["", *columns], [[name, *(middle(name, key) for key in columns.values())] for name in names]))
    share, pause, rest = middle(SHARE, "step_s"), middle(OURS, "pause_s"), middle(OURS, "rest_s")
    above = pause - share if pause is not None and share is not None else None
    beyond = above - rest if above is not None and rest is not None else None
    print(
        table(
            ["of our pause", "s"],
            [
                ["to compute what the dead one owed", share],
                ["what was left of the step", rest],
                ["all the rest", beyond],
            ],
        )
    )
    pauses = {name: middle(name, "pause_s") for name in names}
    bars(out / "recovery.svg", "From SIGKILL of a worker to the next step", "seconds", pauses, log=True)
    figures: dict[str, Any] = {
        "pause_s": pauses,
        "owed_s": share,
        "pause_above_owed_s": above,
        "pause_above_owed_and_rest_s": beyond,
        "pause_against_torchft": _ratio(results, "torchft", "pause_s"),
        "pause_against_ray_train": _ratio(results, "Ray Train", "pause_s"),
        "pause_against_torchrun": _ratio(results, "torchrun", "pause_s"),
        "join_s": {name: middle(name, "join_s") for name in names},
        "join_against_torchft": _ratio(results, "torchft", "join_s"),
        "leave_s": middle(OURS, "leave_s"),
        "steps_redone": middle(OURS, "steps_redone"),
        "rows_dropped": middle(OURS, "rows_dropped"),
    }
    targets = [
        Target("our pause after a SIGKILL against torchft's", figures["pause_against_torchft"], 0.5),
        Target("our pause after a SIGKILL against Ray Train's", figures["pause_against_ray_train"], 1 / 20),
        Target("seconds of our pause beyond computing what the dead worker owed", above, 0.1),
        Target("steps redone by us", figures["steps_redone"], 0),
        Target("rows dropped by us", figures["rows_dropped"], 0),
        Target("our pause for a join against torchft's", figures["join_against_torchft"], 0.5),
    ]
    return finish(figures, targets, results.remarks)


def _ratio(results: Results, peer: str, key: str) -> float | None:
    return median_ratio(results[OURS], results[peer], key)


if __name__ == "__main__":
    sys.exit(main())
