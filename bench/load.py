"""The service under load: 10,000 queued jobs and 200 running, and how it takes what comes.

    python bench/load.py [--quick] [--postgres [--workers N]] [--only "requests,day"] [--out FOLDER]

`costs`: what a submit, a page, a batch of facts and a round take of the processor, in one process that nobody
waits for (rig/costs.py), and how many cores the load below is then.
`requests`: the service's own process, asked over HTTP. The cluster and its drivers are fakes in a process of
their own (rig/cluster.py) that say what real ones say, 200 batches of facts a second. Submits come 100 a
second and pages of the list 20 a second, each at its time, whatever became of those before (rig/arrivals.py).
`round`: one round of the reconciler over the same store, in processor time, with nothing new and with a job
that has ended. `drivers`: what an idle driver takes of memory, on a real Ray. `day`: a day of reconciler
rounds in simulated time, one each 5 s (memory is kept by rounds and jobs, not by seconds between them), jobs
coming and going; whatever grows after the first hours is kept by mistake. --quick: 8 hours, one each 30 s.

A latency of a machine that others use says little; each span is repeated until a calm one was seen, or
`falls_short` says that none was. Processor times suffer less. SQLite unless --postgres.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rig import idle_drivers
from rig.analysis import Target
from rig.report import curves, finish, table
from rig.run import busy_s
from rig.serving import HERE, Serving, search_path, serving, until

Json = dict[str, Any]
RUNNING, QUEUED = 200, 10_000
SUBMITS, LISTS = 100.0, 20.0  # a second
SUBMIT_MS, LIST_MS, ROUND_MS = 50.0, 100.0, 500.0
SERVICE_MB, DRIVER_MB, GROWTH_MB = 400.0, 200.0, 1.0
BATCHES = float(RUNNING)  # of facts, a second
CORES = 0.7  # for all of that, so that whoever comes is answered at once
PARTS = ("costs", "requests", "round", "drivers", "day")
SETTLED_H = 3  # the first hours of the day fill what may be filled


@contextmanager
def database(postgres: bool) -> Iterator[str | None]:
    """URL of an empty one, None for SQLite in the service's own folder."""
    if not postgres:
        yield None
        return
    sys.path.append(str(HERE.parent / "tests"))
    import databases

    with databases.running() as server:
        if server is None:
            raise SystemExit(databases.MISSING)
        yield server.empty()


# ---- costs -------------------------------------------------------------------------------------


def costs(chosen: argparse.Namespace) -> Json:
    command = [sys.executable, "-m", "rig.costs", "300" if chosen.quick else "1500"]
    environment = {**os.environ, "PYTHONPATH": search_path()}
    ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    found: Json = json.loads(ran.stdout.splitlines()[-1])
    each = {"submit": SUBMITS, "page": LISTS, "facts": BATCHES}
    found["cores"] = sum(rate * found[what] for what, rate in each.items()) / 1e3
    print(f"costs: {found}", flush=True)
    return found


# ---- requests and rounds -----------------------------------------------------------------------


def under_load(chosen: argparse.Namespace) -> Json:
    with (
        tempfile.TemporaryDirectory(prefix="load-") as folder,
        database(chosen.postgres) as url,
        serving(Path(folder), url, RUNNING, QUEUED, chosen.workers) as served,
    ):
        began = time.monotonic()
        until(lambda: served.counts().get("running", 0) >= RUNNING, f"{RUNNING} running jobs")
        found: Json = {"started_s": time.monotonic() - began}
        time.sleep(3.0)
        found["rss_before_mb"] = served.rss_mb()
        if "requests" in chosen.only:
            found |= requests(served, chosen)
        found["rss_after_mb"] = served.rss_mb()
        found["counts"] = served.counts()
        served.stop_service()
        if "round" in chosen.only:
            found |= rounds(served, 5 if chosen.quick else 20)
        return found


def requests(served: Serving, chosen: argparse.Namespace) -> Json:
    span_s, tries = (8.0, 1) if chosen.quick else (60.0, 5)
    served.arrive("submit", 20.0, 2.0, "warm")
    served.arrive("list", 5.0, 2.0, "warm")
    found: Json = {}
    for what, rate in (("submit", SUBMITS), ("list", LISTS), ("/v1/me", LISTS)):
        spans: list[Json] = []
        while len(spans) < tries and not any(span["others"] < chosen.calm for span in spans):
            spans.append(span_of(served, what, rate, span_s, f"{len(spans)}"))
            print(f"{what}: {describe(spans[-1])}", flush=True)
        found[what] = min(spans, key=lambda span: span["p99_ms"])
    return found


def span_of(served: Serving, what: str, rate: float, span_s: float, run: str) -> Json:
    """One span, in which two jobs end as well, so that the scheduler has something to do."""
    served.cluster()
    served.let_end(1)
    before, began, own = busy_s(), time.monotonic(), served.own_s()
    seen = served.arrive(what, rate, span_s, run)
    took = time.monotonic() - began
    told = served.cluster()
    latencies = sorted(latency * 1e3 for latency in seen["latencies_s"])
    posts = sorted(post * 1e3 for post in told["posts_s"]) or [0.0]
    return {
        "p50_ms": part(latencies, 0.5),
        "p99_ms": part(latencies, 0.99),
        "max_ms": latencies[-1],
        "statuses": seen["statuses"],
        "late_p99_ms": part(sorted(seen["late_s"]), 0.99) * 1e3,
        "lag_p99_ms": part(sorted(seen["lags_s"]), 0.99) * 1e3,
        "own_cores": seen["own_s"] / seen["wall_s"],
        "service_cores": seen["cpu_s"] / seen["wall_s"],
        "posts_per_s": len(told["posts_s"]) / took,
        "post_p99_ms": part(posts, 0.99),
        "troubles": told["troubles"][:3],
        "others": max(0.0, (busy_s() - before) - (served.own_s() - own)) / took,
    }


def part(values: list[float], share: float) -> float:
    """The quantile of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))]


def describe(span: Json) -> str:
    said = f"p50 {span['p50_ms']:.1f} ms, p99 {span['p99_ms']:.1f} ms, longest {span['max_ms']:.0f} ms"
    also = f"service {span['service_cores']:.2f} cores, others {span['others']:.2f}, who asks"
    also += f" {span['own_cores']:.2f} (late p99 {span['late_p99_ms']:.1f} ms, lag {span['lag_p99_ms']:.1f})"
    facts = f"{span['posts_per_s']:.0f} batches of facts/s, p99 {span['post_p99_ms']:.0f} ms"
    return f"{said}; {facts}; {also}; {span['statuses']} {span['troubles'] or ''}"


def rounds(served: Serving, times: int) -> Json:
    """Rounds over the store that the load has left, in a process of its own."""
    command = [sys.executable, "-m", "rig.round", str(times), served.cluster_url]
    ran = subprocess.run(command, env=served.process_env(), stdout=subprocess.PIPE, check=True, text=True)
    found: Json = json.loads(ran.stdout.splitlines()[-1])
    print(f"round: {found}", flush=True)
    return {"round": found}


# ---- a day -------------------------------------------------------------------------------------


def day(chosen: argparse.Namespace) -> Json:
    hours, step_s = (8, 30.0) if chosen.quick else (24, 5.0)
    with tempfile.TemporaryDirectory(prefix="load-day-") as folder:
        command = [sys.executable, "-m", "rig.day", folder, str(hours), str(step_s)]
        ran = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, check=True, text=True)
    found: Json = json.loads(ran.stdout.splitlines()[-1])
    settled = [row for row in found["rows"] if row["hour"] > SETTLED_H]
    slope = statistics.linear_regression([r["hour"] for r in settled], [r["rss_mb"] for r in settled]).slope
    objects = statistics.linear_regression(
        [r["hour"] for r in settled], [r["objects"] for r in settled]
    ).slope
    return {**found, "mb_per_hour": slope, "objects_per_hour": objects}


# ---- the whole ---------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short span of each, a third of the day")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL that is started for it")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes of the service; several take --postgres"
    )
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=str(PARTS))
    parser.add_argument("--calm", type=float, default=0.35, help="cores that others may use in a span")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    chosen = parser.parse_args()
    found: Json = {}
    if "costs" in chosen.only:
        found["costs"] = costs(chosen)
    if {"requests", "round"} & set(chosen.only):
        found |= under_load(chosen)
    if "drivers" in chosen.only:
        found["drivers"] = idle_drivers.measure()
        print(f"drivers: {found['drivers']}", flush=True)
    if "day" in chosen.only:
        found["day"] = day(chosen)
    return report(found, chosen)


def report(found: Json, chosen: argparse.Namespace) -> int:
    kinds = {"submit": f"submits, {SUBMITS:.0f}/s", "list": f"pages, {LISTS:.0f}/s", "/v1/me": "whose token"}
    names = ("p50_ms", "p99_ms", "max_ms", "posts_per_s", "post_p99_ms", "service_cores", "others")
    heads = ("requests", "p50 ms", "p99 ms", "longest", "facts/s", "their p99", "cores", "others' cores")
    spans = [[kinds[kind], *(found[kind][name] for name in names)] for kind in kinds if kind in found]
    print(table(heads, spans))
    targets = [
        *(_request_targets(found) if "submit" in found else []),
        *(_round_targets(found) if "round" in found else []),
    ]
    if "costs" in found:
        said = f"{SUBMITS:.0f} submits, {LISTS:.0f} pages and {BATCHES:.0f} batches of facts a second"
        targets.append(Target(f"cores for {said}", found["costs"]["cores"], CORES))
    if "rss_after_mb" in found:
        targets.append(Target("the service's memory under load, MB", found["rss_after_mb"], SERVICE_MB))
    if "drivers" in found:
        targets.append(Target("MB that a driver takes", found["drivers"]["driver_mb"], DRIVER_MB))
    if "day" in found:
        rows = found["day"].pop("rows")
        curves(chosen.out / "load.svg", "A day of rounds", "hours", "MB", _curve(rows))
        target = Target("MB by which the service grows in an hour", found["day"]["mb_per_hour"], GROWTH_MB)
        targets.append(target)
    remarks = [
        f"{kinds[kind]}: no calm span: other processes used {found[kind]['others']:.2f} cores."
        for kind in kinds
        if kind in found and found[kind]["others"] >= chosen.calm
    ]
    figures = {"store": "postgresql" if chosen.postgres else "sqlite", "queued": QUEUED, "running": RUNNING}
    return finish({**figures, **found}, targets, remarks)


def _request_targets(found: Json) -> list[Target]:
    refused = sum(
        count
        for kind in ("submit", "list")
        for status, count in found[kind]["statuses"].items()
        if status not in ("200", "201")
    )
    return [
        Target(f"p99 of submits at {SUBMITS:.0f} a second, ms", found["submit"]["p99_ms"], SUBMIT_MS),
        Target(f"p99 of pages of the list at {LISTS:.0f} a second, ms", found["list"]["p99_ms"], LIST_MS),
        Target("requests that were not answered with success", float(refused), 0.0),
    ]


def _round_targets(found: Json) -> list[Target]:
    said = f"ms of processor time of a round with {QUEUED} queued jobs"
    return [Target(said, found["round"][kind]["cpu_ms"], ROUND_MS) for kind in ("calm", "moved")]


def _curve(rows: list[Json]) -> dict[str, dict[float, float | None]]:
    return {"resident memory": {row["hour"]: row["rss_mb"] for row in rows}}


if __name__ == "__main__":
    sys.exit(main())
