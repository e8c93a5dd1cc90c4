"""Measuring several systems in rounds, so that whatever drifts on the machine meets all of them alike."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rig.report import rounded
from rig.run import Run, wait_quiet
from rig.systems import System

USED_MIB, MIB = 1024, bytes(2**20)

Row = dict[str, Any]  # figures; None where it could not be measured
Measure = Callable[[Run], Row]


@dataclass
class Case:
    """A system in a setting, and how it is measured. The key of its rows."""

    system: System
    measure: Measure
    setting: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    limit_s: float = 300.0
    once: bool = False  # measured in one round only: a figure to show, not to be judged

    def __post_init__(self) -> None:
        self.name = self.name or self.system.name


@dataclass
class Results:
    """Rows by case, those of calm runs if there are any, and what went wrong on the way."""

    rows: dict[str, list[Row]]
    remarks: list[str]

    def __getitem__(self, name: str) -> list[Row]:
        return self.rows.get(name, [])


def options(description: str | None) -> argparse.ArgumentParser:
    """What every script of the bench takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs: a few minutes")
    parser.add_argument("--rounds", type=int, help="how often each case is measured")
    parser.add_argument(
        "--only",
        default="",
        help="cases, by how their names begin, with commas; a whole name with $ after it",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results", help="for plots")
    parser.add_argument("--calm", type=float, default=0.35, help="cores that others may use in a run")
    parser.add_argument(
        "--extra", type=int, default=2, help="runs more per case, for those that were not calm"
    )
    parser.add_argument("--quiet-s", type=float, default=20.0, help="wait so long for an idle machine")
    return parser


def measure(cases: list[Case], chosen: argparse.Namespace, rounds: int) -> Results:
    """Each case `rounds` times, in an order that turns; prints each row. A failed run is a remark."""
    cases = _chosen(cases, chosen.only)
    rounds = chosen.rounds or rounds
    rows: dict[str, list[Row]] = {case.name: [] for case in cases}
    remarks: list[str] = []
    wanted = {case.name: 1 if case.once else rounds for case in cases}
    tries = {name: count + chosen.extra for name, count in wanted.items()}
    for number in range(rounds + chosen.extra):
        turn = number % max(1, len(cases))
        for case in cases[turn:] + cases[:turn]:
            if len(calm(rows[case.name], chosen.calm)) >= wanted[case.name] or not tries[case.name]:
                continue
            tries[case.name] -= 1
            use_memory()
            wait_quiet(chosen.quiet_s)
            try:
                row = {"round": number, **_one(case)}
            except Exception as error:
                remarks.append(f"{case.name}: a run failed: {type(error).__name__}: {error}")
                print(f"# {remarks[-1]}", file=sys.stderr, flush=True)
                continue
            rows[case.name].append(row)
            print(f"# {case.name}: {json.dumps(rounded(row))}", flush=True)
    return _settled(rows, chosen.calm, remarks)


def use_memory() -> None:
    """Write a file and delete it. A virtual machine gets memory from its host when it uses it first:
    a checkpoint of 77 MB that goes into such pages takes ten times as long as on one that has run a while."""
    with tempfile.TemporaryFile() as file:
        for _ in range(USED_MIB):
            file.write(MIB)


def calm(rows: list[Row], limit: float) -> list[Row]:
    return [row for row in rows if row["others"] <= limit]


def _settled(rows: dict[str, list[Row]], limit: float, remarks: list[str]) -> Results:
    kept = {}
    for name, found in rows.items():
        kept[name] = calm(found, limit) or found
        if found and not calm(found, limit):
            least = min(row["others"] for row in found)
            remarks.append(f"{name}: no calm run: other processes used {least} cores at least.")
    return Results(kept, remarks)


def _one(case: Case) -> Row:
    setting = {"workers": 2, "ckpt_every": 0, **case.system.setting, **case.setting}
    with Run(case.name, case.limit_s, **setting) as run:
        case.system.start(run)
        return case.measure(run)


def _chosen(cases: list[Case], only: str) -> list[Case]:
    if not only:
        return cases
    names = [name.strip() for name in only.split(",")]
    return [case for case in cases if any(f"{case.name}$".startswith(name) for name in names)]
