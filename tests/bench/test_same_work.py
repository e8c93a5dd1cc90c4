"""The bench compares like with like: elastrain's Task is the peers' problem."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.harness import run
from peers.ours import job_spec
from peers.task import Rows
from rig import workload as w
from rig.rounds import calm
from rig.run import Run


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other on a busy machine take minutes."""
    before = torch.get_num_threads()
    w.one_thread()
    yield
    torch.set_num_threads(before)


def test_sample_i_is_row_i_of_the_peers_steps() -> None:
    rows, steps = Rows(3), [w.text(step) for step in range(3)]
    assert len(rows) == 3 * w.BATCH
    assert all((rows[i][1] == steps[i // w.BATCH][i % w.BATCH]).all() for i in (0, 5, 12, 35, 13))


def test_the_shares_of_a_step_are_all_of_its_rows_once() -> None:
    shares = [w.share(4, rank, 3) for rank in range(3)]
    found = sorted(tuple(row.tolist()) for share in shares for row in share)
    assert found == sorted(tuple(row.tolist()) for row in w.text(4))


@pytest.mark.engine
@pytest.mark.usefixtures("one_thread")
def test_two_of_our_workers_and_plain_torch_train_alike(tmp_path: Path) -> None:
    more = {"steps": 6, "env": {"BENCH_RUN": str(tmp_path)}}
    setting = {"microbatch": 6, "ckpt_every": 0, "spec": more}
    ours = run(tmp_path, job_spec(setting).model_dump(mode="json"), 2).metric("loss")
    model = w.model()
    adam = w.adam(model)
    for step in range(6):
        loss = model(w.text(step))
        adam.zero_grad()
        loss.backward()
        adam.step()
        assert ours[step + 1] == pytest.approx(loss.item(), rel=1e-4), f"step {step + 1}"


def test_a_run_that_others_disturbed_does_not_count() -> None:
    assert calm([{"others": 0.1}, {"others": 0.9}], limit=0.35) == [{"others": 0.1}]


def test_a_run_ends_with_every_process_that_it_started() -> None:
    with Run("test") as one:
        child = one.start("sh", "-c", "sleep 60 & sleep 60")
        one.wait(lambda: len(one.pids()) >= 3, "two sleeping")
        folder = one.folder
    assert child.poll() is not None and one.pids() == [] and not folder.exists()
