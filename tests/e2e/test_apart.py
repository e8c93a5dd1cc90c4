"""Head, two nodes and the service on addresses of their own; lines between them are cut. The job goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.apart import Apart
from e2e.house import DIGITS, Watched, eventually
from engine.netns import Network, require_network

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CODE = Path(__file__).with_name("braked")
EPOCHS = 120
STEPS = 6 * EPOCHS


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    require_network()
    with Network() as network:
        made = Apart(tmp_path, network, nodes=2)
        try:
            yield made
        finally:
            made.close()


def test_a_node_and_then_the_service_are_cut_off_and_the_job_ends_as_if_nothing_had_been(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTRAIN_ALLOW_PLAINTEXT", "1")  # the network is ours
    brake = tmp_path / "brake"
    brake.touch()
    spec = {"brake": str(brake), "sleep_s": 0.05, "channels": 8, "hidden": 32}
    overrides = [
        *(f"epochs={EPOCHS}", "task=braked:Braked", f"task_args={spec}", "workers={min: 1, max: 2}"),
        *("batch.microbatch=64", "checkpoint.every_steps=200", "evaluate.every_steps=null"),
    ]
    client = apart.client()
    run = Watched(client.submit(DIGITS, working_dir=CODE, overrides=overrides))

    def placed() -> dict[str, str]:
        return {w["id"]: w["node"] for w in run.job.workers() if w["state"] == "active"}

    crew = eventually(lambda: (found := placed()) and len(found) == 2 and found, 150)
    assert len(set(crew.values())) == 2
    run.at_step(run.record.step + 5)

    apart.network.cut("n2")
    eventually(lambda: len(placed()) == 1, 90)
    (left,) = placed()
    run.at_step(run.record.step + 5)

    step = run.record.step
    apart.network.cut("service", "head")
    with pytest.raises(AssertionError):  # nobody hears of a step meanwhile
        run.at_step(step + 30, timeout_s=8)
    apart.network.mend("service", "head")
    run.at_step(step + 40)

    brake.unlink()
    job = run.ended(240)
    assert job.status == "succeeded", job.data["message"]
    assert job.data["counters"]["attempts"] == 1
    assert run.record.lost(STEPS) == 0
    assert left in crew
    lost = {event["data"]["worker"] for event in run.record.of_type("worker.lost")}
    assert set(crew) - {left} <= lost
