"""A worker under the asynchronous parameter server: pull a version, compute a step from it, push, again.

    hello to all servers ─▶ [ task and parameters ─▶ microbatches ─▶ push to all ─▶ all have it: arrived ] ...

It keeps nothing that anybody needs. What it has in hand outlives a generation: it says so in its hello, and
goes on with the same microbatch if the task is still its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from torch import Tensor

from elastrain.trainers.loop import Trainer
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.flat import packed_size, unpacked
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.lines import Closed, Inbox, Line, connect
from elastrain.trainers.strategies.served import Push
from elastrain.trainers.strategies.shelf import Delivery
from elastrain.trainers.training import step
from elastrain.trainers.training.ended import Boundary
from elastrain.trainers.training.faults import blamed_on_user

Frame = tuple[int, Json, Tensor]  # (rank, head, body)


@dataclass
class Servers:
    """The servers of one generation, as one worker reaches them."""

    generation: int
    ownership: Ownership
    lines: list[Line] = field(default_factory=list)  # by rank
    inbox: Inbox = field(default_factory=Inbox)  # (rank, head, body); head None: that server is gone
    early: list[Frame] = field(default_factory=list)  # came by one line before what was waited for by another
    finished: int = 0  # waits that came to an end

    def meet(self, opening: Opening, hello: Json) -> None:
        """Raises Closed."""
        for rank in self.ownership.keepers:
            self.lines.append(connect(opening.members[rank]["address"], hello))
            threading.Thread(
                target=self._read, args=(rank, self.lines[rank]), daemon=True, name="read"
            ).start()

    def _read(self, rank: int, line: Line) -> None:
        try:
            while True:
                self.inbox.put((rank, *line.receive()))
        except Closed:
            self.inbox.put((rank, None, None))

    def leave(self) -> None:
        for line in self.lines:
            line.close()


class PushingWorker(Trainer):
    """`task` is what it has in hand; its gradients so far are in the replica's partial sums."""

    task: Task | None = None

    def train(self, opening: Opening) -> NoReturn:
        """One generation. Ends by an exception."""
        self.replica.touched = True
        servers = Servers(opening.generation, Ownership.of(self.replica.model.space, opening.domains()))
        hello = {
            "worker": self.session.worker,
            "key": self.session.start.key,
            "generation": opening.generation,
            "task": self.task,
        }
        try:
            servers.meet(opening, hello)
            self.session.send("sealed", generation=opening.generation, step=opening.step)
            self._agree(servers)
            if self.task is None:
                self._pull(servers)
            while True:
                self._compute_step(servers.generation)
                self._push(servers)
                self._pull(servers)  # until it is here, the push is ours to repeat, should other servers come
        except Closed as error:  # it died, or left the generation: who of them, is for the coordinator to say
            raise Boundary from error
        finally:
            servers.leave()

    # ---- hearing ----------------------------------------------------------------------------

    def _hear(self, servers: Servers, kind: str) -> Frame:
        """The next frame of a kind; others wait for their turn, since the lines of several servers keep no
        order among each other. Raises Closed, Halted, Dismissed."""
        for at, (_, head, _) in enumerate(servers.early):
            if head["kind"] == kind:
                return servers.early.pop(at)
        while True:
            rank, head, body = servers.inbox.take(
                lambda: self.session.check(servers.generation),
                lambda: self.session.waits(servers.generation, servers.finished),
            )
            servers.finished += 1
            if head is None:
                raise Closed(f"server {rank} is gone")
            if head["kind"] == kind:
                return rank, head, body
            if head["kind"] == "rest":
                self.session.send("idle", generation=servers.generation, step=head["step"])
            else:
                servers.early.append((rank, head, body))

    def _agree(self, servers: Servers) -> None:
        """Is what was in hand still ours to do?"""
        _, head, _ = self._hear(servers, "welcome")
        if not head["keep"]:
            self._drop()

    def _pull(self, servers: Servers) -> None:
        """Wait for a task, and for the parameters of its version from all servers."""
        came: dict[int, tuple[Json, Tensor]] = {}
        while len(came) < len(servers.lines):
            rank, head, body = self._hear(servers, "task")
            came[rank] = (head, body)
        model, space = self.replica.model, self.replica.model.space
        for rank, (head, body) in came.items():
            at = self._take_buffers(body) if head["buffers"] else 0
            values = body[at:].view(torch.float32)
            at = 0
            for chunk in servers.ownership.owned(rank):
                model.params[space.elements(chunk)] = values[at : at + space.length(chunk)]
                at += space.length(chunk)
            self.task = Task(*head["task"])
        assert self.task is not None
        count = self.replica.plan.count(self.task.step)
        self.replica.partial = Partial.of(count, space, self.replica.filling, lanes=self.replica.rule.lanes)

    def _take_buffers(self, body: Tensor) -> int:
        """Buffers as of this version; returns how many bytes they are."""
        bank = self.replica.model.buffers
        for name, value in unpacked(body, bank.base).items():
            bank.base[name].copy_(value)
        bank.reset()
        return packed_size(bank.base.values())

    def _drop(self) -> None:
        self.task, self.replica.partial = None, None

    # ---- computing, and saying --------------------------------------------------------------

    def _compute_step(self, generation: int) -> None:
        """Every microbatch of the step that is not computed yet."""
        assert self.task is not None and self.replica.partial is not None
        at, partial = self.task.step, self.replica.partial
        for microbatch in (j for j in range(partial.count) if j not in partial.rows):
            self.session.check(generation)
            self.session.began(at, microbatch)
            with blamed_on_user("compute", at, microbatch):
                step.compute(self.replica, self.reader, at, microbatch)

    def _push(self, servers: Servers) -> None:
        """To all servers; once all of them have it, the first is told."""
        task = self.task
        assert task is not None
        push = Push.of(self.replica, task)
        head, parts = push.head, list[tuple[Line, list[Tensor]]]()
        for rank, line in enumerate(servers.lines):
            body = push.part(servers.ownership.held(rank))
            head["sent"] += sum(part.numel() * part.element_size() for part in body)
            parts.append((line, body))
        for line, body in parts:
            line.send(head, body)
        delivery = Delivery(task, {str(rank) for rank in range(len(servers.lines))})
        whole = False
        while not whole:
            rank, said, _ = self._hear(servers, "stored")
            whole = delivery.acknowledged(str(rank), Task(*said["task"]))
        servers.lines[0].send({"kind": "arrived", "step": task.step})
