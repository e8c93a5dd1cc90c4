"""How much training is left when a worker is killed every 30 s, against an undisturbed run of the system.

    python bench/goodput.py [--quick]

Two workers, a checkpoint every 10 steps; replacements come by each system's own means. Goodput is the number
of new steps in the time of the kills, over what the same run does undisturbed in that time. What a kill costs
is looked for in the time after it, two thirds of the way to the next one, against the pace of all other time.
Starting a process takes CPU that training lacks on a small machine: a process that does the same work until
it could train, and then ends, shows that part by itself.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from rig.analysis import Target, mean_step, median, median_ratio, new_steps, ratio
from rig.report import bars, finish, table
from rig.rounds import Case, Measure, Results, Row, measure, options
from rig.run import Run, now
from rig.systems import Ours, RayTrain, System, Torchft, Torchrun

WORKERS = 2
SAVED = {"ckpt_every": 10}
OURS, SPARELESS, ON_RAY = "elastrain", "elastrain, no spare", "elastrain on Ray"


@dataclass(frozen=True)
class Schedule:
    """kills, one every `every_s`; `calm_s` of training before and after; then decoys, one every 5 s."""

    kills: int
    every_s: float
    calm_s: float
    decoys: int

    @property
    def felt_s(self) -> float:
        """For so long after a kill time may be lost to it."""
        return self.every_s * 2 / 3

    @property
    def limit_s(self) -> float:
        return 180.0 + self.kills * self.every_s + 2 * self.calm_s + 5.0 * self.decoys


LONG, QUICK = Schedule(3, 30.0, 25.0, 3), Schedule(4, 15.0, 12.0, 3)


def main() -> int:
    chosen = options(__doc__).parse_args()
    plan = QUICK if chosen.quick else LONG
    systems: list[System] = [Ours(spares=1), Torchft(), Torchrun()]
    if chosen.only or not chosen.quick:  # quick has them only when asked for
        systems += [Ours(SPARELESS), Ours(ON_RAY, ray=True), RayTrain()]
    shown = (SPARELESS, ON_RAY, "Ray Train")
    cases = [
        Case(s, disturbed(s, _plan_of(s, plan)), SAVED, limit_s=plan.limit_s, once=s.name in shown)
        for s in systems
    ]
    return report(measure(cases, chosen, 1 if chosen.quick else 2), chosen.out)


def _plan_of(system: System, plan: Schedule) -> Schedule:
    """No decoys on Ray: what it starts beside a worker cannot be started alone."""
    return replace(plan, decoys=0) if "Ray" in system.name else plan


def disturbed(system: System, plan: Schedule) -> Measure:
    """Calm, kills, calm, decoys: all in one run."""

    def look(run: Run) -> Row:
        run.wait_step(8, WORKERS)
        run.others()
        start = now() + plan.calm_s
        kills = [start + number * plan.every_s for number in range(plan.kills)]
        for number, when in enumerate(kills):
            sleep_until(when)
            kill_one(run, system, number)
        end = start + plan.kills * plan.every_s
        sleep_until(end)
        run.wait(lambda: all_back(run, end), "commit with all workers")
        back = now()
        sleep_until(back + plan.calm_s)
        calm = [(start - plan.calm_s, start), (back, back + plan.calm_s)]
        calm += [(when + plan.felt_s, when + plan.every_s) for when in kills]
        step_s = mean_step(run.commits(), calm)
        row = {
            "steps_per_s": 1 / step_s,
            "goodput": new_steps(run.commits(), start, end, step_s) * step_s / (end - start),
            "lost_s": fmean(lost(run, when, when + plan.felt_s, step_s) for when in kills),
            **aside(run, system, plan.decoys, step_s),
        }
        return {**row, "others": run.others()}

    return look


def all_back(run: Run, since: float) -> bool:
    newest = run.commits()[-1]
    return bool(newest["t"] > since and newest["world"] == WORKERS)


def lost(run: Run, start: float, end: float, step_s: float) -> float:
    """Seconds of training that are missing."""
    return end - start - new_steps(run.commits(), start, end, step_s) * step_s


def kill_one(run: Run, system: System, number: int) -> None:
    """A worker that takes part, of each rank in turn. A system that is still down is left alone."""
    workers = system.workers(run)
    if workers:
        try:
            run.kill(workers[number % len(workers)])
        except ProcessLookupError:
            print(f"# {run.name}: nobody there to kill", file=sys.stderr)


def aside(run: Run, system: System, count: int, step_s: float) -> Row:
    """What starting processes costs, without a kill."""
    if not count:
        return {"start_cpu_s": None, "start_lost_s": None}
    start = now()
    for number in range(count):
        sleep_until(start + 5.0 * number)
        system.decoy(run)
    sleep_until(start + 5.0 * count)
    run.wait(lambda: len(run.events("decoy")) >= count, "end of a start")
    end = now()
    starts = median(e["cpu_s"] for e in run.events("decoy"))
    return {"start_cpu_s": starts, "start_lost_s": lost(run, start, end, step_s) / count}


def sleep_until(when: float) -> None:
    time.sleep(max(0.0, when - now()))


def report(results: Results, out: Path) -> int:
    names = [name for name, rows in results.rows.items() if rows]

    def middle(name: str, key: str) -> float | None:
        return median(row.get(key) for row in results[name])

    def against(peer: str) -> float | None:
        return median_ratio(results[OURS], results[peer], "lost_s")

    columns = {
        "goodput": "goodput",
        "lost per kill, s": "lost_s",
        "a start alone costs, s": "start_lost_s",
        "CPU of a start, s": "start_cpu_s",
        "undisturbed steps/s": "steps_per_s",
    }
    print(table(["", *columns], [[name, *(middle(name, key) for key in columns.values())] for name in names]))
    print(f"{os.cpu_count()} cores")
    goodput = {name: middle(name, "goodput") for name in names}
    title = "A worker killed again and again: training that is left"
    bars(out / "goodput.svg", title, "of an undisturbed run", goodput)
    figures: dict[str, Any] = {
        "goodput": goodput,
        "lost_per_kill_s": {name: middle(name, "lost_s") for name in names},
        "start_lost_s": {name: middle(name, "start_lost_s") for name in names},
        "start_cpu_s": {name: middle(name, "start_cpu_s") for name in names},
        "lost_against_torchft": against("torchft"),
        "lost_against_torchrun": against("torchrun"),
        "on_ray_against_ray_train": ratio(middle(ON_RAY, "lost_s"), middle("Ray Train", "lost_s")),
    }
    targets = [
        Target("our goodput", goodput.get(OURS), 0.9, least=True),
        Target("time that we lose per kill against torchft", figures["lost_against_torchft"], 0.5),
        Target("time that we lose per kill against torchrun", figures["lost_against_torchrun"], 0.1),
    ]
    return finish(figures, targets, results.remarks)


if __name__ == "__main__":
    sys.exit(main())
