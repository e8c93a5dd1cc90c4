"""A server's copy of the training under the asynchronous parameter server: what a push does to it.

    w ← w − rate(u) / max(1, τ) · rule(g),   τ: how many versions the push is behind

The division is staleness-aware asynchronous SGD (Zhang, Gupta, Lian and Liu, IJCAI 2016, equation 6). Delay
compensation (Zheng et al., ICML 2017, equation 10) first replaces the mean gradient g by
g + λ g ⊙ g ⊙ (w − w_base), a first-order guess of what the gradient would be at w; w_base are the parameters
that g was computed from, which the worker sends along.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastrain.trainers.cursor import Cursor, Verdict
from elastrain.trainers.flat import FlatModel
from elastrain.trainers.messages import Json, Range
from elastrain.trainers.replica import Replica
from elastrain.trainers.spec import JobSpec
from elastrain.trainers.strategies.ledger import Task
from elastrain.trainers.strategies.lines import Hub
from elastrain.trainers.task import Task as UserTask


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

    def _lay_out(self, head: Json, body: Tensor, verdict: Verdict) -> None:
        """The parts of the body, as `sections_of` put them together."""
        bank, space = self.model.buffers, self.model.space
        sums = _cut(body, 0, bank.flat_size(), torch.float64)
        at = 8 * bank.flat_size()
        self.new_buffers = (sums, bank.unpack_others(body[at : at + bank.others_size()])) if bank else None
        at += bank.others_size()
        size = sum(space.length(c) for c in self.kept)
        grads = _cut(body, at, size, torch.float32)
        base = _cut(body, at + 4 * size, size, torch.float32) if head["base"] else None
        self.reduced, at = {}, 0
        for chunk in self.kept:
            here = slice(at, at + space.length(chunk))
            if base is not None and verdict.applied:
                gap = self.model.params[space.elements(chunk)] - base[here]
                compensate(grads[here], gap, verdict.factor * self.spec.strategy.compensation)  # type: ignore[union-attr]
            self.reduced[chunk] = grads[here].view(1, -1)
            at = here.stop


def compensate(grad: Tensor, gap: Tensor, strength: float) -> None:
    """grad ← grad + strength · grad² · gap, in place. All are (n,) f32. grad is a sum and not a mean: what
    multiplies it later on is in `strength` once, since it is squared here."""
    grad.addcmul_(grad.square(), gap, value=strength)


def sections_of(
    model: FlatModel, sums: Tensor, others: dict[str, Tensor], vectors: list[Tensor], kept: list[Range]
) -> list[Tensor]:
    """What a worker sends of one push to one server: buffers, then of each vector the blocks it keeps."""
    blocks = [vector[model.space.elements(c)] for vector in vectors for c in kept]
    return [sums, model.buffers.pack_others(others), *blocks]


def _cut(body: Tensor, at: int, length: int, dtype: torch.dtype) -> Tensor:
    """(length,) of a type, from byte `at` on."""
    size = torch.empty(0, dtype=dtype).element_size()
    return body[at : at + size * length].view(dtype)
