"""Each example of another way to train is a job on Ray that loses a worker, and ends as if it had not."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.house import ROOT, House, Watched, active, digests, eventually, kill_pid
from engine.harness import run as run_here

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

STEPS = 200
ROUNDS = 60  # each is five steps; or steps of eight microbatches in eight pieces each
# what else is asked of an example, so that every kind of server and moments are seen on Ray as well
BOUNDED_MOMENTS = [
    "strategy.staleness=1",
    "aggregate=moments",
    "optimizer={name: adam, lr: 2.0e-3}",
]
SERVED = ["strategy={name: parameter_server, staleness: 0, servers: 2}"]
EXAMPLES: list[tuple[str, int, list[str]]] = [
    ("diloco", ROUNDS, []),
    ("gossip", STEPS, []),
    ("parameter_server_async", STEPS, []),
    ("parameter_server_async", STEPS, BOUNDED_MOMENTS),
    ("compression-topk", STEPS, SERVED),
    ("split", STEPS, []),
    ("pipeline", ROUNDS, []),
]
WITHOUT_RAY = "in engine/test_every_way.py, without Ray"
ELSEWHERE = {
    "digits": "in test_kills.py",
    "job": "own_task, in test_jobs.py",
    "moments": f"asked of parameter_server_async above; over all_reduce {WITHOUT_RAY}",
    "local_sgd": WITHOUT_RAY,
    "parameter_server": f"asked of compression-topk above; uncompressed {WITHOUT_RAY}, and in ray/",
    "compression-bf16": WITHOUT_RAY,
    "compression-fp16": WITHOUT_RAY,
    "compression-int8": WITHOUT_RAY,
    "compression-powersgd": WITHOUT_RAY,
    "gossip-torus": "the ring of gossip above; as a graph in trainers/test_gossip.py",
    "gossip-exponential": "the ring of gossip above; as a graph in trainers/test_gossip.py",
    "parameter_server_bounded": f"asked of parameter_server_async above; {WITHOUT_RAY}",
    "split-tensor": "own_task, in engine/test_split.py",
    "stability": "in engine/test_stability.py, without Ray",
}
# whose result depends on who computes what, as docs/algorithms.md says
OTHERWISE = ("gossip", "parameter_server_async")


def test_no_example_is_forgotten() -> None:
    here = {name for name, _, _ in EXAMPLES}
    assert {path.stem for path in (ROOT / "examples").rglob("*.yaml")} == here | ELSEWHERE.keys()


@pytest.mark.parametrize(("name", "steps", "more"), EXAMPLES)
def test_an_example_lost_a_worker_and_trained_on_to_the_bits_of_an_undisturbed_run(
    house: House, tmp_path: Path, name: str, steps: int, more: list[str]
) -> None:
    overrides = ["epochs=null", f"steps={steps}", "resources.cpu=0.5", *more]  # all of it fits on two cores
    overrides += ["workers.min=2", "workers.max=2"]  # none begins before the other
    job = house.client.submit(ROOT / "examples" / f"{name}.yaml", overrides=overrides)
    run = Watched(job)

    def crew() -> dict[str, int]:
        found = {worker: pid for worker, pid in active(job).items() if worker.startswith("w")}
        return found if len(found) == 2 else {}

    both = eventually(crew, 240)
    job.scale(1, 2)  # and the other goes on by itself
    run.at_step(20, 240)
    victim = max(both)
    kill_pid(both[victim])
    run.ended(300)
    assert job.status == "succeeded", job.data["message"]
    assert job.data["counters"]["attempts"] == 1 and run.record.lost(steps) == 0
    assert [event["data"]["worker"] for event in run.record.of_type("worker.lost")] == [victim]
    if more is BOUNDED_MOMENTS:
        staleness = [value for _, value, _ in job.metrics(["staleness"])["staleness"]]
        assert len(staleness) == steps and set(staleness) <= {0.0, 1.0}
    elif name == "parameter_server_async":
        assert job.data["spec"]["strategy"]["staleness"] is None
    if name not in OTHERWISE:
        spec = {**job.data["spec"], "workers": {**job.data["spec"]["workers"], "min": 1}}
        alone = run_here(tmp_path, spec | ({"strategy": {"name": "all_reduce"}} if more is SERVED else {}))
        assert digests(job) == {"step": steps, "params_digest": alone.digests[0]}
