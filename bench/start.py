"""How long from `submit` to the first finished step: elastrain's embedded service against bare Ray.

    python bench/start.py [--rounds 3] [--workers 2]

Both run on the same Ray head, on the same machine, in turn: a bare Ray Job that starts one bare Ray Train
run of the same model, and a job submitted over REST. The figures are medians; the last line is one JSON
object {"ours_s", "bare_s", "ratio"}. The aim is a ratio of at most 1.5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import httpx

from elastrain.api.cli import demo_server
from elastrain.client import Client

HERE = Path(__file__).parent
SPEC = HERE.parent / "examples" / "digits.yaml"
LIMIT_S = 120.0

T = TypeVar("T")


def ours(client: Client, workers: int) -> float:
    """Seconds from the submit to the moment at which step 1 was committed, as the job's own metrics say."""
    began = time.time()
    job = client.submit(SPEC, overrides=[f"workers={{min: 1, max: {workers}}}"])
    until(lambda: job.metrics(["loss"]).get("loss") or job.refresh().status == "failed")
    points = job.metrics(["loss"]).get("loss")
    if not points:
        raise SystemExit(f"the job failed: {job.data['message']}")
    job.cancel().wait(60)
    return datetime.fromisoformat(points[0][2]).timestamp() - began


def bare(ray: httpx.Client, workers: int) -> float:
    """Seconds from the call of Ray's Jobs API to the moment at which rank 0 had done its first step."""
    with tempfile.TemporaryDirectory(prefix="elastrain-bare-") as folder:
        began = time.time()
        entrypoint = f"{sys.executable} {HERE / 'bare_run.py'} {workers} {folder}"
        reply = ray.post("/api/jobs/", json={"entrypoint": entrypoint}, timeout=60).raise_for_status()
        job = f"/api/jobs/{reply.json()['submission_id']}"
        first = Path(folder, "first_step")
        until(lambda: ended(ray, job))
        if not first.exists():
            raise SystemExit(f"the bare run failed:\n{ray.get(f'{job}/logs').json()['logs'][-3000:]}")
        return float(first.read_text()) - began


def ended(ray: httpx.Client, job: str) -> bool:
    status = ray.get(job).raise_for_status().json()["status"]
    return status in ("SUCCEEDED", "FAILED", "STOPPED")


def until(look: Callable[[], T | None]) -> T:
    """Look until there is something to see. Ends the program after two minutes."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"nothing happened in {LIMIT_S:.0f} s")
        time.sleep(0.1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    our_times: list[float] = []
    bare_times: list[float] = []
    with demo_server.running() as server:
        server.wait_ready()
        client = server.client()
        address, token = ray_of(server.home)
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=address, headers=headers, trust_env=False) as ray:
            for number in range(1, options.rounds + 1):
                bare_times.append(bare(ray, options.workers))
                print(f"round {number}: bare Ray Job and Train run  {bare_times[-1]:6.2f} s", flush=True)
                our_times.append(ours(client, options.workers))
                print(f"round {number}: elastrain                   {our_times[-1]:6.2f} s", flush=True)
    ours_s, bare_s = statistics.median(our_times), statistics.median(bare_times)
    print(
        json.dumps(
            {"ours_s": round(ours_s, 2), "bare_s": round(bare_s, 2), "ratio": round(ours_s / bare_s, 3)}
        )
    )


def ray_of(home: Path) -> tuple[str, str]:
    """Address and token of the embedded Ray's Jobs API."""
    base = int(json.loads((home / "ray.json").read_text())["base"])
    return f"http://127.0.0.1:{base + 1}", (home / "ray-token").read_text().strip()


if __name__ == "__main__":
    main()
