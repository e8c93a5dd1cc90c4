"""No wait is without an owner: docs/waits.md lists them, and what it says of them is so."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from elastrain.trainers import driver
from elastrain.trainers.coordination import attempt, coordinator, opener
from elastrain.trainers.membership import stall
from elastrain.trainers.membership.policy import Policy

ROOT = Path(__file__).resolve().parents[1]
TRAINERS = ROOT / "trainers" / "elastrain" / "trainers"
DOCS = (ROOT / "docs" / "waits.md").read_text()
POLICY = Policy(1, 1)

# Calls that return only when something happens, without a limit of their own: who makes it happen.
ENDLESS = {
    # the coordinator's words; without any, the lifeline's
    (
        "training/session.py",
        "self._changed.wait_for(lambda: self._opening is not None or self._gone is not None)",
    ),
    ("training/session.py", "self._changed.wait_for(lambda: self._gone is not None)"),
    # a shard, whose lead ends it
    ("split/follower.py", "threading.Event().wait()"),
    # polled: each raises when the generation is over
    ("exchange/coded.py", "self.residuals.wait()"),
    ("exchange/powersgd.py", "self.residuals.wait()"),
    # threads with nothing else to do, that nobody waits for
    ("training/sigterm.py", "heard.get()"),
    ("checkpoints/snapshots.py", "self._queue.get()"),
    ("strategies/lines.py", "outgoing.get()"),
    ("reporting/reporter.py", "self._more.wait()"),
    # whatever its worker or server does: its end is what it is there for
    ("launching/ray_worker.py", "process.wait()"),
    ("launching/ray_server.py", "ray.get(actor.run.remote(str(self._files.folder), self.group, server))"),
    # of something that ends: errands with limits of their own, a claim that is given up, what has ended
    ("launching/ray_launcher.py", "self._thread.join()"),
    ("driver.py", "asking.result()"),
    ("coordination/attempt.py", "ticker.result()"),
    ("coordination/attempt.py", "over.result()"),
    # within asyncio.wait_for
    ("reporting/reporter.py", "self._drained.wait()"),
    ("driver.py", "self._over.wait()"),
}


def endless(source: str) -> set[str]:
    """Calls that block, or are awaited, and name no limit."""
    found = set()
    for call in (n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or any(k.arg == "timeout" for k in call.keywords):
            continue
        blocks = call.func.attr in ("wait", "join", "get", "result", "acquire") and not call.args
        waits_for = call.func.attr == "wait_for" and len(call.args) == 1
        of_ray = ast.unparse(call.func) in ("ray.get", "ray.wait")
        if (blocks and not call.keywords) or waits_for or of_ray:
            found.add(ast.unparse(call))
    return found


def test_every_wait_that_has_no_limit_of_its_own_has_somebody_who_ends_it() -> None:
    found = {
        (str(path.relative_to(TRAINERS)), call)
        for path in TRAINERS.rglob("*.py")
        for call in endless(path.read_text())
    }
    assert found == ENDLESS, "a new one: say above who ends it, and in docs/waits.md; or give it a limit"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("done.wait()", 1),
        ("done.wait(5.0)", 0),
        ("done.wait(timeout=5.0)", 0),
        ("changed.wait_for(ready)", 1),
        ("changed.wait_for(ready, 0.05)", 0),
        ("names.get('a')", 0),
        ("ray.get(answer)", 1),
        ("ray.get(answer, timeout=1.0)", 0),
        ("', '.join(names)", 0),
        ("thread.join()", 1),
    ],
)
def test_a_wait_without_a_limit_is_seen(source: str, found: int) -> None:
    assert len(endless(source)) == found


def row(start: str) -> str:
    """Of one of the tables."""
    (found,) = re.findall(rf"^\| {re.escape(start)}.*$", DOCS, re.MULTILINE)
    return str(found)


def constant(room: str, name: str) -> float:
    """Of a file that imports torch, or Ray, which takes seconds."""
    (found,) = re.findall(rf"^{name} = ([\d.]+)", (TRAINERS / room).read_text(), re.MULTILINE)
    return float(found)


AGENT_S = sum(constant("launching/ray_launcher.py", name) for name in ("UPDATES_WAIT_S", "AGENT_SILENT_S"))


@pytest.mark.parametrize(
    ("start", "limits"),
    [
        ("the next opening", [constant("training/lifeline.py", "SILENCE_S")]),
        ("its own end", [constant("training/lifeline.py", "EXIT_S")]),
        ("the coordinator's welcome", [constant("training/session.py", "CONNECT_S")]),
        ("rank 0's key-value store", [constant("exchange/collectives.py", "STORE_S")]),
        ("a checkpoint that it loads", [constant("checkpoints/restore.py", "PATIENCE_S")]),
        ("room for the next upload", [constant("checkpoints/snapshots.py", "ROOM_S")]),
        ("its last uploads", [constant("worker.py", "FLUSH_S")]),
        ("a server that is not in its generation yet", [constant("strategies/lines.py", "HELLO_S")]),
        ("a member that is silent", [POLICY.heartbeat_s, POLICY.silence]),
        ("a member that beats, but is stuck", [POLICY.stall_s, POLICY.stall_steps]),
        ("everybody: all wait", [POLICY.link_s, stall.PROBED_S]),
        ("everybody, though all reach all", [POLICY.hang_s]),
        ("workers that start", [POLICY.start_timeout_s]),
        ("enough workers", [POLICY.wait_s]),
        ("a worker that was let go", [POLICY.leave_s]),
        ("the newest checkpoint", [opener.PATIENCE_S]),
        ("a connected worker's first word", [coordinator.FIRST_WORD_S]),
        ("a node with room for a group", [constant("launching/ray_launcher.py", "START_TIMEOUT_S")]),
        ("an agent's answer", [AGENT_S]),
        ("agents that close", [constant("launching/ray_launcher.py", "CLOSE_TIMEOUT_S")]),
        ("workers, at the attempt's end", [attempt.END_S]),
        ("the service (claim, last facts)", [driver.LAST_FACTS_S]),
        ("storage for the outcome", [driver.STORAGE_PATIENCE_S]),
    ],
)
def test_the_times_that_the_list_names_are_those_of_the_code(start: str, limits: list[Any]) -> None:
    named = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", row(start))]
    assert set(map(float, limits)) <= set(named), row(start)
