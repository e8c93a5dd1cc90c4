"""A server's copy of the training under the asynchronous parameter server: what a push does to it.

    w ← w − rate(u) / max(1, τ) · rule(g),   τ: how many versions the push is behind

The division is staleness-aware asynchronous SGD (Zhang, Gupta, Lian and Liu, IJCAI 2016, equation 6). Delay
compensation (Zheng et al., ICML 2017, equation 10) first replaces the mean gradient g by
g + λ g ⊙ g ⊙ (w − w_base), a first-order guess of what the gradient would be at w; w_base are the parameters
that g was computed from, which the worker sends along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elastrain.trainers.exchange.reduction import square_norm
from elastrain.trainers.membership.messages import Json, Range
from elastrain.trainers.numerics.cursor import Cursor, Verdict, exact_sum, merge
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.memory import blank
from elastrain.trainers.numerics.tree import root, root_node
from elastrain.trainers.spec import JobSpec
from elastrain.trainers.spec.strategies import ParameterServer
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.lines import Hub
from elastrain.trainers.task import Task as UserTask
from elastrain.trainers.training.replica import Replica


class ServedReplica(Replica):
    """`order` is what was applied; a record's push lies on the hub's shelf until it is."""

    def __init__(
        self, spec: JobSpec, task: UserTask, model: FlatModel, train_size: int, val_size: int, hub: Hub
    ) -> None:
        super().__init__(spec, task, model, train_size, val_size)
        self.hub = hub
        self.order: list[Task] = []
        self.kept: list[Range] = []  # blocks of a push's part, in order
        self._slower = 1.0  # the rate is divided by it

    def forget(self) -> None:
        super().forget()
        self.order = []

    def rate(self, after: Cursor) -> float:
        return super().rate(after) / self._slower

    def apply(self, record: Json) -> Verdict:
        """As all members do, with the push that the record names in place of sums."""
        task = Task(*record["task"])
        with self.hub.changed:
            head, body = self.hub.shelf.take(task)
        self._slower = record["slower"]
        self._lay_out(head, body, self.verdict(record))
        verdict = super().apply(record)
        self.order.append(task)
        return verdict

    def look(self, record: Json) -> None:
        """`reduced` is what the record's push brings, for norms to be measured before it is applied."""
        with self.hub.changed:
            head, body = self.hub.shelf.parts[Task(*record["task"])]
        self._slower = record["slower"]
        self._lay_out(head, body.clone(), self.verdict(record))

    def _lay_out(self, head: Json, body: Tensor, verdict: Verdict) -> None:
        """The parts of the body, as `Push.part` put them together."""
        bank, space = self.model.buffers, self.model.space
        sums = _cut(body, 0, bank.flat_size(), torch.float64)
        at = 8 * bank.flat_size()
        self.new_buffers = (sums, bank.unpack_others(body[at : at + bank.others_size()])) if bank else None
        at += bank.others_size()
        size = sum(space.length(c) for c in self.kept)
        count = self.rule.lanes
        lanes = [_cut(body, at + 4 * size * n, size, torch.float32) for n in range(count)]
        base = _cut(body, at + 4 * size * count, size, torch.float32) if head["base"] else None
        self.reduced, at = {}, 0
        for chunk in self.kept:
            here = slice(at, at + space.length(chunk))
            if base is not None and verdict.applied:
                gap = self.model.params[space.elements(chunk)] - base[here]
                compensate(lanes[0][here], gap, verdict.factor * self.spec.strategy.compensation)  # type: ignore[union-attr]
            rows = [lane[here].view(1, -1) for lane in lanes]
            self.reduced[chunk] = rows[0] if count == 1 else torch.cat(rows)
            at = here.stop


def compensate(grad: Tensor, gap: Tensor, strength: float) -> None:
    """grad ← grad + strength · grad² · gap, in place. All are (n,) f32. grad is a sum and not a mean: what
    multiplies it later on is in `strength` once, since it is squared here."""
    grad.addcmul_(grad.square(), gap, value=strength)


@dataclass(frozen=True)
class Push:
    """A step that one worker has computed whole, on its way to the servers."""

    model: FlatModel
    head: Json
    sums: Tensor  # of the float buffers, f64
    others: dict[str, Tensor]  # buffers that are not floats
    vectors: Sequence[Tensor]  # lane by lane; with compensation also the parameters it was computed from

    @classmethod
    def of(cls, replica: Replica, task: Task) -> Push:
        partial, model, strategy = replica.partial, replica.model, replica.spec.strategy
        assert partial is not None and isinstance(strategy, ParameterServer)
        lanes = list(partial.gradients.read(root_node(partial.count)).view(replica.rule.lanes, -1))
        wide = blank(model.space.block, torch.float64)
        norms = [square_norm(part, wide) for part in torch.split(lanes[0], model.space.block)]
        none = torch.empty(0, dtype=torch.float64)
        floats = root(partial.buffers.parts, partial.count) if model.buffers.floats else none
        compensated = strategy.compensation > 0
        head: Json = {
            "kind": "push",
            "task": task,
            "sent": 0,  # bytes, to all servers
            "base": compensated,
            "norm_sq": exact_sum(norms),
            "used": f"{partial.used:x}",
            "microbatches": list(partial.rows.values()),
        }
        return cls(model, head, floats, partial.others, [*lanes, model.params] if compensated else lanes)

    def part(self, kept: Sequence[Range]) -> list[Tensor]:
        """For a server that keeps these blocks: buffers, then of each vector its blocks."""
        blocks = [vector[self.model.space.elements(c)] for vector in self.vectors for c in kept]
        return [self.sums, self.model.buffers.pack_others(self.others), *blocks]


def record_of(head: Json, task: Task, whose: str, step: int, staleness: int, scaled: bool) -> Json:
    """The commit record of a push: that of a step which one worker computed. step: the one that it makes.
    scaled: is the rate divided by the staleness?"""
    entry = {**head, "step": step, "log": 0, "norms": [head["norm_sq"]]}
    slower = max(1, staleness) if scaled else 1
    return {**merge([entry], [whose]), "task": task, "staleness": staleness, "slower": slower}


def _cut(body: Tensor, at: int, length: int, dtype: torch.dtype) -> Tensor:
    """(length,) of a type, from byte `at` on."""
    size = torch.empty(0, dtype=dtype).element_size()
    return body[at : at + size * length].view(dtype)
