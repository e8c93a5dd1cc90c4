"""Workers die, freeze, and take others with them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine.harness import Run, freeze, kill, kill_all, probe, run, toy

pytestmark = pytest.mark.engine


def processes_of(run: Run) -> list[int]:
    """Pids of the attempt that still run."""
    pids = {w["pid"] for w in run.of_kind("worker") if w["pid"]}
    return [
        pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    ]


def test_two_of_four_died_at_the_same_moment_and_the_job_rolled_back_or_went_on(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", toy())
    both = run(tmp_path / "four", toy(), 4, (15, kill(0)), (15, kill(1)))
    assert both.outcome is not None and both.outcome.outcome == "succeeded"
    assert both.digests == alone.digests
    # w0's chunks were kept by w0 and its buddy w1: both are gone
    assert [e["data"] for e in both.events("rollback")] == [{"from": 15, "to": 10}]
    assert [f["epoch_no"] for f in both.of_kind("metric")][-1] == 1


def test_all_workers_died_and_new_ones_went_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", toy())
    again = run(tmp_path / "two", toy(), 2, (25, kill_all))
    assert again.digests == alone.digests
    assert again.events("checkpoint.restored")[0]["data"] == {"step": 20}
    rolled = again.steps()[again.steps().index(25) + 1 :]
    assert rolled == list(range(21, 41))


def test_all_workers_died_before_the_first_checkpoint_so_the_seed_gave_them_back(
    tmp_path: Path,
) -> None:
    alone = run(tmp_path / "one", toy(steps=12))
    again = run(tmp_path / "two", toy(steps=12), 2, (5, kill_all))
    assert again.digests == alone.digests
    assert again.events("rollback")[0]["data"] == {"from": 5, "to": 0}


def test_a_frozen_worker_is_removed_and_does_not_come_back(tmp_path: Path) -> None:
    alone = run(tmp_path / "one", toy())
    frozen = run(tmp_path / "three", toy(), 3, (10, freeze(1)))
    assert frozen.digests == alone.digests
    assert frozen.events("worker.lost")[0]["data"]["cause"] == "no heartbeat"
    assert frozen.steps() == list(range(1, 41))
    assert processes_of(frozen) == []


def test_a_worker_that_is_only_slow_is_not_removed(tmp_path: Path) -> None:
    rows = [1.0] * 8
    spec = probe(
        rows,
        task="Faulty",
        args={"sample": -1, "how": "none", "sleep_s": 1.5},
        batch={"size": 8, "microbatch": 4},
    )
    slow = run(tmp_path, spec, 2)
    assert not slow.events("worker.lost") and slow.steps() == [1]


@pytest.mark.parametrize(
    ("how", "cause"),
    [("vanish", "signal 9 (SIGKILL)"), ("segfault", "signal 11 (SIGSEGV)"), ("exit", "exit code 3")],
)
def test_how_a_process_ended_is_said_as_a_fact(tmp_path: Path, how: str, cause: str) -> None:
    args = {"sample": 2, "how": how, "once": str(tmp_path / "once")}
    died = run(tmp_path, probe([1.0] * 8, task="Faulty", args=args), 2)
    assert died.outcome is not None and died.outcome.outcome == "succeeded"
    assert [e["data"]["cause"] for e in died.events("worker.exited")] == [cause]
    assert not any("memory" in e["message"] for e in died.of_kind("event"))


def test_a_microbatch_that_takes_every_process_down_fails_the_job_by_name(tmp_path: Path) -> None:
    died = run(tmp_path, probe([1.0] * 8, task="Faulty", args={"sample": 5, "how": "vanish"}), 2)
    assert died.outcome is not None and (died.outcome.outcome, died.outcome.failed_by) == ("failed", "user")
    assert "3 times in a row at step 2" in (died.outcome.message or "")
    assert "microbatch 1" in (died.outcome.message or "")
    assert processes_of(died) == []


SUPERVISOR = """
import os, pathlib, signal, sys
from engine.harness import run, toy

if __name__ == "__main__":
    slow = toy(steps=1000, task_args={"sleep_s": 0.05})
    run(pathlib.Path(sys.argv[1]), slow, 1, (5, lambda _: os.kill(os.getpid(), signal.SIGKILL)))
"""


def test_the_supervisor_died_and_no_worker_outlived_it(tmp_path: Path) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text(SUPERVISOR)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    died = subprocess.run([sys.executable, str(script), str(tmp_path)], env=env, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL
    left = [p for p in psutil.process_iter() if _log_of(p) == str(tmp_path / "logs" / "w0.log")]
    psutil.wait_procs(left, timeout=10)
    assert [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []


def _log_of(process: psutil.Process) -> str | None:
    try:
        return str(Path(f"/proc/{process.pid}/fd/1").readlink())
    except OSError:
        return None
