"""Groups on Ray: chooses a node for each, and lets the agent of that node run it.

    start(group) -> waiting -> placed on a node -> its agent runs it -> ended, told once by poll()

Calls return at once. One thread places groups and makes agents; one per agent asks it for what happened.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import ray
from elastrain.trainers.launching.agent import KNOBS, Agent
from elastrain.trainers.launching.launcher import GroupEnded, GroupStart
from elastrain.trainers.launching.placement import Need, choose_node
from elastrain.trainers.launching.ray_nodes import Drains, living_nodes
from elastrain.trainers.launching.ray_sweep import receipt, sweep_nodes
from elastrain.trainers.launching.sweep import TAG
from elastrain.trainers.membership.messages import Notice

log = logging.getLogger(__name__)

UPDATES_WAIT_S = 10.0
AGENT_SILENT_S = 120.0  # then an agent counts as lost, though Ray believes that it lives
PLACE_EVERY_S = 0.5
DRAINS_EVERY_S = 1.0
START_TIMEOUT_S = 120.0  # for a node with room, where the cluster may have to make one
CLOSE_TIMEOUT_S = 20.0

Fact = dict[str, Any]


@dataclass
class _Group:
    start: GroupStart
    asked_at: float  # monotonic
    node: str | None = None
    ended: bool = False


@dataclass
class _Agent:
    actor: Any
    node: str
    listener: threading.Thread = field(init=False)
    seen: int = 0  # the last of its updates that was heard
    closing: bool = False  # nobody asks it for updates any more
    lost: bool = False  # it takes no orders any more
    swept: bool = True  # False: what it left on its node may still be there


class RayLauncher:
    """Launcher on the Ray cluster that this process is connected to."""

    def __init__(
        self,
        job: str,
        attempt: int,
        *,
        title: str = "job",
        tag: str,
        resources: Mapping[str, float],
        labels: Mapping[str, str],
        storage_url: str,
        storage_options: Mapping[str, str],
        said: Callable[[Fact], None],
        named: Callable[[Fact], None] | None = None,
    ) -> None:
        """title: the job's name, for people who look at Ray. tag: in the environment of all that is started,
        see sweep.py. resources: of each worker, in Ray's names. said: takes log facts, from threads of the
        launcher. named: likewise, which of Ray's actors holds which worker (see `Agent.updates`)."""
        self._job, self._attempt, self._title, self._tag = job, attempt, title, tag
        self._resources, self._labels = dict(resources), dict(labels)
        self._storage = (storage_url, dict(storage_options))
        self._said, self._named = said, named or (lambda fact: None)
        self._lock = threading.Lock()
        self._groups: dict[str, _Group] = {}
        self._agents: dict[str, _Agent] = {}
        self._drains, self._looked_at = Drains(), 0.0
        self._news: list[GroupEnded | Notice] = []
        self._errands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True, name="launcher")
        self._thread.start()
        self._searched: list[dict[str, Any]] = []  # {node, pids, left, seconds}: nodes that were swept
        self._unsearched: list[str] = []

    # -- the four verbs

    def start(self, group: GroupStart) -> None:
        """Begin to start a group; returns at once."""
        with self._lock:
            self._groups[group.group] = _Group(group, time.monotonic())
        self._errands.put(self._place_waiting)

    def stop(self, group: str, *, kill: bool) -> None:
        """End a group. Without `kill` only what has not begun is ended."""
        self._errands.put(lambda: self._stop(group, kill))

    def poll(self) -> list[GroupEnded | Notice]:
        """Groups that ended since the last call, each one once, and workers whose node is being drained."""
        with self._lock:
            news, self._news = self._news, []
            return news

    def close(self) -> dict[str, Any]:
        """End every process that was started, on every node; returns when they are gone, with the receipt."""
        began = time.monotonic()
        self._errands.put(None)
        self._thread.join()
        agents = list(self._agents.values())
        for agent in agents:
            agent.closing = True
        closing = [(agent, agent.actor.close.remote()) for agent in agents if not agent.lost]
        deadline = began + CLOSE_TIMEOUT_S
        for agent, answer in closing:
            try:
                said = ray.get(answer, timeout=max(0.1, deadline - time.monotonic()))
                agent.listener.join(1.0)
                self._hear(agent, said.pop("updates"))
                self._searched.append(said)
            except (RayError, TimeoutError) as error:
                log.warning("the agent of node %s did not close: %s", agent.node, _headline(error))
                agent.lost = True
        for agent in agents:
            ray.kill(agent.actor)  # and with it whatever Ray Train runs it still owns
        self._sweep([agent.node for agent in agents if agent.lost])
        return receipt(self._searched, self._unsearched, time.monotonic() - began)

    # -- placing, in the launcher's thread

    def _work(self) -> None:
        while True:
            try:
                errand = self._errands.get(timeout=PLACE_EVERY_S)
            except queue.Empty:
                errand = self._place_waiting
            if errand is None:
                return
            try:
                self._look_for_drains()
                errand()
            except Exception:
                log.exception("the launcher could not do an errand; it goes on")

    def _look_for_drains(self) -> None:
        if time.monotonic() - self._looked_at < DRAINS_EVERY_S:
            return
        self._looked_at = time.monotonic()
        with self._lock:
            here = [g for g in self._groups.values() if g.node is not None and not g.ended]
        notices = self._drains.look([(w, str(g.node)) for g in here for w in _ids(g.start)])
        with self._lock:
            self._news += notices

    def _place_waiting(self) -> None:
        with self._lock:
            waiting = [group for group in self._groups.values() if group.node is None and not group.ended]
        if not waiting:
            return
        closed = {agent.node for agent in self._agents.values() if not agent.swept} | self._drains.nodes
        nodes = [node for node in living_nodes() if node.id not in closed]
        for group in waiting:
            need = Need(group.start.needs(self._resources), len(group.start.workers), self._labels)
            node = choose_node(need, nodes, self._placed(), self._avoided(group.start))
            if node is not None:
                self._run(group, node)
            elif time.monotonic() - group.asked_at > START_TIMEOUT_S:
                short = f"no node has room for {need} ({len(nodes)} nodes, waited {START_TIMEOUT_S:.0f} s)"
                self._end(group.start.group, dict.fromkeys(_ids(group.start), short))

    def _placed(self) -> list[tuple[str, Mapping[str, float]]]:
        with self._lock:
            return [
                (group.node, Need(group.start.needs(self._resources), len(group.start.workers)).total)
                for group in self._groups.values()
                if group.node is not None and not group.ended
            ]

    def _avoided(self, start: GroupStart) -> list[str]:
        return [*start.avoid_nodes, *(agent.node for agent in self._agents.values() if agent.lost)]

    def _run(self, group: _Group, node: str) -> None:
        agent = self._agents.get(node)
        if agent is None or agent.lost:
            agent = self._agents[node] = self._make_agent(node)
        with self._lock:
            group.node = node
        agent.actor.start.remote(asdict(group.start), group.start.needs(self._resources))

    def _make_agent(self, node: str) -> _Agent:
        environment = {
            **KNOBS,
            "RAY_ADDRESS": ray.get_runtime_context().gcs_address,  # a helper of Ray Train looks only there
            TAG: self._tag,
        }
        actor = (
            ray.remote(Agent)
            .options(
                name=f"{self._title}-{self._job}-{self._attempt}-agent-{node[:8]}-{len(self._agents)}",
                num_cpus=0,
                max_restarts=0,
                max_task_retries=-1,  # as long as it lives; its methods may be repeated
                max_concurrency=16,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
                runtime_env={"env_vars": environment},
            )
            .remote(self._title, self._job, self._attempt, *self._storage)
        )
        agent = _Agent(actor, node)
        agent.listener = threading.Thread(
            target=self._listen, args=(agent,), daemon=True, name=f"agent {node[:8]}"
        )
        agent.listener.start()
        return agent

    def _stop(self, name: str, kill: bool) -> None:
        group = self._groups.get(name)
        if group is None or group.ended:
            return
        if group.node is None:
            self._end(name, {})
        else:
            self._agents[group.node].actor.stop.remote(name, kill)

    # -- what agents say, in a thread for each

    def _listen(self, agent: _Agent) -> None:
        while not agent.closing:
            try:
                asked = agent.actor.updates.remote(agent.seen, UPDATES_WAIT_S)
                updates = ray.get(asked, timeout=UPDATES_WAIT_S + AGENT_SILENT_S)
            except ActorUnavailableError:
                time.sleep(1.0)  # the network, perhaps: Ray will say if it is dead
                continue
            except RayError as error:
                self._lost(agent, error)
                return
            self._hear(agent, updates)

    def _hear(self, agent: _Agent, updates: list[dict[str, Any]]) -> None:
        for update in updates:
            number = update.pop("number")
            if number <= agent.seen:
                continue
            agent.seen = number
            if update["kind"] == "ended":
                self._end(update["group"], update["causes"])
            elif update["kind"] == "actor":
                self._named(update)
            else:
                self._said(update)

    def _lost(self, agent: _Agent, error: RayError) -> None:
        """An agent's death means the node's: its groups are over, and nothing of them may be left."""
        agent.swept, agent.lost = False, True
        if agent.closing:
            return
        self._sweep([agent.node])
        gone = agent.node not in {node.id for node in living_nodes()}
        cause = "node lost" if gone else f"the agent of its node was lost: {_headline(error)}"
        log.warning("node %s: %s", agent.node, cause)
        with self._lock:
            groups = [g for g in self._groups.values() if g.node == agent.node and not g.ended]
        for group in groups:
            self._end(group.start.group, dict.fromkeys(_ids(group.start), cause))
        agent.swept = True

    def _end(self, name: str, causes: Mapping[str, str]) -> None:
        with self._lock:
            group = self._groups[name]
            if not group.ended:
                group.ended = True
                self._news.append(GroupEnded(name, causes))

    def _sweep(self, nodes: list[str]) -> None:
        """End what is left on nodes that are alive but whose agent is gone."""
        alive = {node.id for node in living_nodes()}
        searched, self._unsearched = sweep_nodes(self._tag, alive.intersection(nodes), workers_only=True)
        self._searched += searched


def _ids(start: GroupStart) -> list[str]:
    return [worker.worker for worker in start.workers]


def _headline(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
