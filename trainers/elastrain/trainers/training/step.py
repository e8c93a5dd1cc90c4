"""One step in its parts: microbatch gradients, [reduce,] commit, gather (core: the elastic step).

A member enters the commit only with every sum that it owns or keeps for another in its memory (reduction.py);
so a commit record, once it exists anywhere, can be carried out by whoever survives.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from elastrain.trainers.exchange.collectives import AT_ONCE, Group, joined
from elastrain.trainers.membership.messages import Json, Range
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.cursor import exact_sum, int_or, merge
from elastrain.trainers.numerics.layers import due
from elastrain.trainers.numerics.moments import squares
from elastrain.trainers.numerics.partials import PassedOn
from elastrain.trainers.task import Loss, loss_of
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader, seed_everything
from elastrain.trainers.training.watch import measure


def compute(
    replica: Replica,
    reader: SampleReader,
    step: int,
    microbatch: int,
    passed_on: PassedOn | None = None,
) -> bool:
    """The gradient of one microbatch, added to what this worker has of the step. Returns True: it is done.

    passed_on: is told each bucket whose sums are final, while backward goes on with the next.
    """
    assert replica.partial is not None
    model, partial = replica.model, replica.partial
    started = time.perf_counter()
    indices = replica.plan.indices(step, microbatch)
    batch = reader.read("train", replica.plan.epoch(step), indices)
    loss = forward(replica, batch, step, microbatch)
    if not replica.shards.counts(len(indices)):
        loss = Loss(loss.sum * 0.0, 0.0)
    weight = float(loss.weight)  # user code may raise in it: not when the sums are half added to
    fill = squares(replica.scale, weight) if partial.gradients.lanes > 1 else None
    early = replica.each_once is True
    addend = partial.gradients.open(microbatch, early=early, passed_on=passed_on, fill=fill)
    try:
        with model.handing_over(addend.take):
            (loss.sum * replica.scale).backward()  # type: ignore[no-untyped-call]
    except BaseException:
        partial.forget(addend.abandon())
        raise
    replica.each_once = not addend.twice and replica.each_once is not False
    if model.buffers.floats:
        partial.buffers.add(microbatch, model.add_up(model.buffers.floats_now(weight)))
    addend.close()
    total, weight, used = in_all(replica, float(loss.sum.detach()), weight, addend.used)
    note(replica, microbatch, indices, total, weight, used, started)
    return True


def note(
    replica: Replica,
    microbatch: int,
    indices: NDArray[np.int64],
    total: float,
    weight: float,
    used: int,
    started: float,
) -> None:
    """A microbatch is done: its row of the commit record. total, weight: of its loss. used: bits of the
    parameters that have a gradient. started: by the performance counter."""
    partial, buffers = replica.partial, replica.model.buffers
    assert partial is not None
    partial.used |= used
    partial.others = buffers.others_now()
    ids = hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest()[:16]
    partial.rows[microbatch] = [
        microbatch,
        total,
        weight,
        round(time.perf_counter() - started, 6),
        ids,
        buffers.others_digest(),
    ]


def in_all(replica: Replica, loss: float, weight: float, used: int) -> tuple[float, float, int]:
    """The loss sum, the weight and the used parameters of a microbatch whose parts several processes compute.

    Raises ValueError if a buffer that is not a float has become another one here than there.
    """
    shards, buffers = replica.shards, replica.model.buffers
    if shards.count == 1:
        return loss, weight, used
    mine = [loss, weight] if shards.tells else [0.0, 0.0]
    said = shards.gather([*mine, used, buffers.others_digest()])
    losses, weights, uses, digests = zip(*said, strict=True)
    if len(set(digests)) > 1:
        raise ValueError(
            f"a buffer that is not a float differs between the processes of a worker (one of: "
            f"{', '.join(buffers.others)}). Such a buffer must not depend on the data: make it a float"
        )
    return exact_sum(losses), exact_sum(weights), int_or(uses)


def forward(replica: Replica, batch: Any, *place: int) -> Loss:
    """The loss of a batch, from the buffers as of the step. place: what seeds the generators."""
    model = replica.model
    model.ready((replica.shards.generation, replica.step))
    model.buffers.reset()
    model.module.train()
    seed_everything(replica.spec.seed, *place, *replica.shards.place)
    model.forget_gradients()
    with precision(replica):
        return loss_of(replica.task, model.module, batch)


@contextlib.contextmanager
def precision(replica: Replica) -> Iterator[None]:
    """bf16 is autocast over fp32 masters."""
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=replica.spec.precision == "bf16"):
        yield


class Exchange:
    """Commit and gather, for one generation."""

    def __init__(self, replica: Replica, group: Group, ownership: Ownership, workers: Sequence[str]) -> None:
        self.replica, self.group, self.ownership, self.workers = replica, group, ownership, workers
        self.rank, self.world = group.rank, group.world

    def commit(self, log: int, norms: list[float]) -> Json:
        """The one moment that decides. log: the newest command that this worker knows. norms: squared, of the
        summed gradient, per owned block."""
        partial, shards = self.replica.partial, self.replica.shards
        assert partial is not None
        if shards.count > 1:  # only now: all of them have what they keep
            norms = [exact_sum(block) for block in zip(*shards.gather(norms), strict=True)]
        inner = self.replica.plan.inner_steps(self.replica.step)
        entry = {
            "step": self.replica.step,
            "log": log,
            "norms": norms,
            "used": f"{partial.used:x}",
            "sent": self.group.take_sent(),
            "microbatches": list(partial.rows.values()),
            **({"inner": inner} if inner > 1 else {}),
        }
        if self.replica.apart is not None:
            entry["apart"] = self.replica.apart
        watch = self.replica.spec.watch
        if watch.norms != "none" and due(watch.every_steps, self.replica.step):
            record = merge(self.group.gather_json(entry), self.workers)
            entry["layers"] = measure(self.replica, self.ownership, self.rank, record)
        return merge(self.group.gather_json(entry), self.workers)

    def gather(self) -> None:
        """Everybody gets the chunks that it does not keep, from their owners: parameters, and what else of
        their state is common."""
        self._start_gather()()

    def start_gather(self) -> Callable[[], None]:
        """Everybody gets what this step has changed of the chunks that it does not keep. Begun now, finished
        by calling what is returned."""
        down = self.replica.down
        if down is None or self.ownership.shared:
            return self._start_gather()
        arrive = down.start(self.group, self.ownership)

        def finish() -> None:
            arrive()
            self.replica.whole = True

        return finish

    def _start_gather(self) -> Callable[[], None]:
        self.replica.spread()
        if self.ownership.shared:
            self.replica.whole = True
            return lambda: None
        buckets = iter(self.ownership.space.buckets())
        under_way = deque(map(self._hand_out, islice(buckets, AT_ONCE)))

        def finish() -> None:
            while under_way:
                under_way.popleft()()
                under_way.extend(map(self._hand_out, islice(buckets, 1)))
            self.replica.whole = True

        return finish

    def _hand_out(self, bucket: Range) -> Callable[[], None]:
        """The chunks of one bucket, from their owners to who does not keep them; as `start_gather`."""
        own, space, buddy = self.ownership, self.ownership.space, self.ownership.buddy[self.rank]
        vectors = [self.replica.model.params, *self.replica.gathered.values()]
        windows = [space.elements(own.chunk(bucket, r)) for r in range(self.world)]
        mine = joined([vector[windows[self.rank]] for vector in vectors])
        sends = [None if r in (self.rank, buddy) else mine for r in range(self.world)]
        kept = {self.rank, *own.kept_for(self.rank)}
        lengths = [0 if r in kept else w.stop - w.start for r, w in enumerate(windows)]
        arrival = self.group.start_exchange(sends, [len(vectors) * n for n in lengths], torch.float32)

        def arrive() -> None:
            for owner, data in enumerate(arrival()):
                length = lengths[owner]
                for at, vector in enumerate(vectors if length else ()):
                    vector[windows[owner]] = data[at * length : (at + 1) * length]

        return arrive
