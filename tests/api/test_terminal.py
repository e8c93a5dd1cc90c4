"""Commands on a real terminal and as real processes: redrawing, ctrl-C, an end on request."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from serving import Life, Live

MAIN = "from elastrain.api.cli import main; main()"


class Terminal:
    """A command on a pseudo terminal; `seen` is all that it drew."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self.master = master
        self.seen = ""

    def until(self, text: str | None, timeout_s: float = 20.0) -> str:
        """Reads until `text` was drawn, or with None until the command has ended."""
        deadline = time.monotonic() + timeout_s
        while text is None or text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:  # Linux says so when the command has closed its end
                    break
            elif text is None and self.process.poll() is not None:
                break
        return self.seen


@contextmanager
def terminal(live: Live, token: str, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    environment = {
        **os.environ,
        "ELASTRAIN_URL": live.url,
        "ELASTRAIN_TOKEN": token,
        "TERM": "xterm-256color",
    }
    command = [sys.executable, "-c", MAIN, *arguments]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_on_a_terminal_progress_is_redrawn_and_events_scroll_by(live: Live, life: Life, token: str) -> None:
    life.runs()
    with terminal(live, token, "follow", life.job) as shown:
        for step in range(1, 20):
            life.step(step, loss=1.0 / step, samples_per_s=480.0, workers=2)
        shown.until("step 19/100  480 samples/s, 2 workers")
        assert "█" in shown.seen and "▁" in shown.seen
        life.event("worker.lost", "w1 was lost: signal 9", worker="w1")
        shown.until("w1 was lost")
        life.succeeds()
        shown.until("elastrain download")
        assert shown.process.wait(timeout=10) == 0


def test_ctrl_c_while_following_detaches_and_says_how_to_come_back(
    live: Live, life: Life, token: str
) -> None:
    life.runs()
    with terminal(live, token, "follow", life.job) as shown:
        shown.until("job.running")
        shown.process.send_signal(signal.SIGINT)
        shown.until(f"elastrain follow {life.job}")
        assert "Traceback" not in shown.seen
        assert shown.process.wait(timeout=10) == 130
    assert live.control.counts()["running"] == 1


def test_a_closed_pipe_ends_a_command_quietly(live: Live, life: Life, token: str) -> None:
    life.runs()
    life.prints("w0", b"line\n" * 200_000)
    environment = {**os.environ, "ELASTRAIN_URL": live.url, "ELASTRAIN_TOKEN": token}
    command = f"{sys.executable} -c '{MAIN}' logs {life.job} --worker 0 | head -1"
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("line\n", "")


def test_the_service_alone_runs_by_its_settings_and_ends_on_sigterm(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ELASTRAIN_")}
    environment |= {"ELASTRAIN_HOME": str(tmp_path), "ELASTRAIN_RAY_ADDRESS": "http://127.0.0.1:9"}
    with httpx.Client(trust_env=False) as http:
        port = free_port()
        command = [sys.executable, "-m", "elastrain.api.serve", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        try:
            ready = wait_for(http, f"http://127.0.0.1:{port}/readyz", process)
            assert "refused" in ready["checks"]["ray"]["detail"]
            token = (tmp_path / "token").read_text()
            me = http.get(f"http://127.0.0.1:{port}/v1/me", headers={"Authorization": f"Bearer {token}"})
            assert me.json()["role"] == "admin"
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=20)
            assert process.returncode == 0, said
            assert "Traceback" not in said
        finally:
            process.kill()
            process.communicate()


def test_a_wrong_setting_is_named_and_exits_2(tmp_path: Path) -> None:
    environment = {**os.environ, "ELASTRAIN_HOME": str(tmp_path), "ELASTRAIN_RAY_ADDRESS": "nowhere"}
    command = [sys.executable, "-m", "elastrain.api.serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "ELASTRAIN_RAY_ADDRESS='nowhere'" in done.stderr


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(
    http: httpx.Client, url: str, process: "subprocess.Popen[str]"
) -> dict[str, dict[str, dict[str, str]]]:
    for _ in range(300):
        assert process.poll() is None
        try:
            answer: dict[str, dict[str, dict[str, str]]] = json.loads(http.get(url).text)
            return answer
        except httpx.TransportError:
            time.sleep(0.1)
    pytest.fail("the service did not start")
