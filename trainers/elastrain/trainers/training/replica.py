"""One worker's copy of the training: the whole model, and the optimizer state of the chunks it keeps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from elastrain.trainers.exchange import residuals
from elastrain.trainers.exchange.compression import codec
from elastrain.trainers.exchange.downward import BEHIND, Downward
from elastrain.trainers.membership.messages import Json, Range, Report
from elastrain.trainers.numerics.chunks import Filling, Ownership
from elastrain.trainers.numerics.cursor import Counts, Cursor, Verdict, advance
from elastrain.trainers.numerics.data import EvalPlan
from elastrain.trainers.numerics.factors import Layout, Q
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.moments import AdamOfMoments
from elastrain.trainers.numerics.optimizers import Rule, rule
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.numerics.rounds import plan_of, scale_of, verdict_of
from elastrain.trainers.numerics.schedules import learning_rate
from elastrain.trainers.numerics.states import ChunkStates
from elastrain.trainers.numerics.tree import unit_size
from elastrain.trainers.spec import AdamSpec, AdamWSpec, JobSpec
from elastrain.trainers.spec.strategies import LocalSGD, PowerSGD
from elastrain.trainers.split.meeting import meet
from elastrain.trainers.strategies.outer import RoundRule
from elastrain.trainers.task import Task
from elastrain.trainers.training.samples import seed_everything


def make_module(task: Task, seed: int) -> nn.Module:
    """The Task's model, its generators seeded from the job's seed."""
    seed_everything(seed, "model")
    model: object = task.model()
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"{type(task).__name__}.model must return a torch nn.Module, got {type(model).__name__}"
        )
    return model


def update_rule(spec: JobSpec) -> Rule:
    """What the update of a step is, and how many lanes it takes."""
    adam = spec.optimizer if isinstance(spec.optimizer, AdamSpec | AdamWSpec) else None
    if spec.aggregate == "moments" and adam is not None:
        return AdamOfMoments(adam)
    if isinstance(spec.strategy, LocalSGD):
        return RoundRule(rule(spec.optimizer), spec.strategy.outer)
    return rule(spec.optimizer)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Several threads cut a chunk at places that depend on its length."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Replica:
    """Everything that a report speaks of. `forget` makes it a joiner again."""

    def __init__(self, spec: JobSpec, task: Task, model: FlatModel, train_size: int, val_size: int) -> None:
        self.spec, self.task, self.model = spec, task, model
        self.shards = model.shards  # the processes among which the model is split
        self.plan = plan_of(spec, train_size)
        self.eval_plan = EvalPlan(val_size, spec.batch.size, spec.batch.microbatch) if val_size else None
        self.rule = update_rule(spec)
        self.unit = unit_size(spec.microbatches, spec.wire_nodes) if spec.wire_nodes else 1  # microbatches
        packing = codec(spec.compression, model.space.block)
        self.ceiling = self.unit if packing is not None else None  # of what is added up here (partials.py)
        kind = packing.feedback if packing is not None else None
        left_out = residuals.slots(spec.microbatches, self.unit, kind) if kind is not None else []
        self.down = Downward.of(spec, model.space, model.params)
        behind = [BEHIND] if self.down is not None else []
        self.states = ChunkStates(model.space, self.rule, [*left_out, *behind])
        inner = self.rule.inner.slots if isinstance(self.rule, RoundRule) else ()
        # optimizer state that everybody has whole, as the parameters: slot -> (size,) f32
        self.gathered = {slot: self.rule.init(slot, model.params) for slot in inner}
        self.scale = scale_of(self.plan.batch)
        self.cursor: Cursor | None = None  # None: nothing is held
        self.record: Json | None = None
        self.whole = False
        self.layout = 0  # the generation whose layout `states` has; 0: no one's
        self.partial: Partial | None = None
        self.filling = Filling(model.space)
        self.each_once: bool | None = None  # does each gradient come once per backward? None: not seen yet
        self.reduced: dict[Range, Tensor] = {}  # held chunk -> its sums (lanes, elements) f32
        self.mixed: Tensor | None = None  # gossip: the average with the neighbours, where the update begins
        self.apart: float | None = None  # gossip: how far from the neighbours, squared
        self.next_states: dict[Range, dict[str, Tensor]] = {}  # held chunk -> what slots are after the commit
        self.common: dict[str, Tensor]  # what all replicas have alike beside parameters and buffers
        self.next_common: dict[str, Tensor] = {}  # of it after the commit
        self.new_buffers: tuple[Tensor, dict[str, Tensor]] | None = None
        self.common = self._common_of_seed()
        self.touched = False  # the parameters are no longer those that the seed gives
        self.order: list[Any] | None = None  # of an asynchronous run: (step, version it was computed from)

    @property
    def step(self) -> int:
        return self.cursor.step if self.cursor is not None else -1

    @property
    def count(self) -> int:
        """Microbatches of the step that comes next."""
        return self.plan.count(self.step)

    def at_hand(self) -> Partial:
        """What there is of this step already."""
        if self.partial is None:
            space, lanes = self.model.space, self.rule.lanes
            self.partial = Partial.of(self.count, space, self.filling, self.ceiling, lanes)
        return self.partial

    def forget(self) -> None:
        self.cursor, self.record, self.whole, self.partial = None, None, False, None
        self.states.pieces, self.reduced, self.new_buffers = {}, {}, None
        self.next_states, self.next_common, self.mixed = {}, {}, None
        self.layout = 0

    def report(self, generation: int, why: str, detail: str = "") -> Report:
        if self.shards.count > 1:
            meet(self)
        if self.cursor is None:
            return Report(generation, why, -1, detail=detail)  # type: ignore[arg-type]
        partial = self.partial
        if partial is not None:
            partial.keep_whole(self.unit)
        done = tuple(sorted({*partial.rows, *partial.under_way})) if partial is not None else ()
        return Report(
            generation,
            why,  # type: ignore[arg-type]
            self.step,
            cursor=self.cursor.to_json(),
            record=self.record,
            held=tuple(self.states.ranges()),
            layout=self.layout,
            whole=self.whole,
            done=done,
            detail=detail,
        )

    # ---- the update -------------------------------------------------------------------------

    def verdict(self, record: Json) -> Verdict:
        return verdict_of(self.spec, self.plan, record)

    def moved(self, cursor: Cursor, record: Json, verdict: Verdict) -> Cursor:
        """Where the record leads to from `cursor`."""
        return advance(cursor, record, verdict, len(self.model.parameters), self.spec.loss_spike)

    def rate(self, after: Cursor) -> float:
        """Of the update that leads to `after`."""
        return learning_rate(self.spec, after.updates - 1, self.plan.total_steps, after.rollbacks)

    def apply(self, record: Json) -> Verdict:
        """Move from `step` to `step + 1` as the record says: every chunk that is held, and the buffers.

        Local and without waiting, so a failure elsewhere finds it done or not begun.
        """
        assert self.cursor is not None and record["step"] == self.step
        verdict = self.verdict(record)
        after, used = self.moved(self.cursor, record, verdict), int(record["used"], 16)
        if self.down is not None:
            self.down.begin(verdict.applied)
        if verdict.applied:
            if self.mixed is not None:
                self.model.params.copy_(self.mixed)
            unused = self.unused(used) if self.down is not None or self.next_states else []
            with one_thread():
                for chunk, sums in self.reduced.items():
                    step = partial(self.update, chunk, sums, verdict, used, after)
                    if self.down is None:
                        step()
                    else:
                        stays = self.model.space.inside(chunk, unused)
                        self.down.update(chunk, self.states.read(chunk)[BEHIND.name], stays, step)
            self._take_next_states(unused)
            for name, value in self.next_common.items():
                self.common[name].copy_(value)
            if self.new_buffers is not None:
                total, others = self.new_buffers
                self.model.buffers.commit(total / record["weight"], others)
        self.model.buffers.reset()
        self.touched, self.whole = True, False  # whole again once the others' chunks are gathered
        self.cursor, self.record = after, record
        self.partial, self.reduced, self.new_buffers = None, {}, None
        self.next_states, self.next_common, self.mixed = {}, {}, None
        return verdict

    def _take_next_states(self, unused: list[slice]) -> None:
        """But of a parameter that no microbatch used, whose state stays as it is: nothing is updated."""
        for chunk, state in self.next_states.items():
            kept, stays = self.states.read(chunk), self.model.space.inside(chunk, unused)
            for name, value in state.items():
                here = [self.states.slots[name].window(p.start, p.stop) for p in stays]
                before = [kept[name][h].clone() for h in here]
                kept[name].copy_(value)
                for part, old in zip(here, before, strict=True):
                    kept[name][part] = old

    def unused(self, used: int) -> list[slice]:
        """Elements of parameters, padding included, whose bit in `used` is not set."""
        pieces, size = self.model.space.pieces, self.model.space.size
        ends = [*(p.start for p in pieces[1:]), size]
        rest = [slice(p.start, end) for p, end in zip(pieces, ends, strict=True) if not used >> p.index & 1]
        return [part for part in rest if part.start < part.stop]

    def update(self, chunk: Range, sums: Tensor, verdict: Verdict, used: int, after: Cursor) -> None:
        """The rule on one chunk, in runs of elements whose parameters have the same count and decay."""
        rate = self.rate(after)
        limit = None if isinstance(self.rule, RoundRule) else self.spec.clip_value  # there of inner gradients
        origin = self.model.space.elements(chunk).start
        state = self.states.read(chunk)
        for window, count, decay in self.runs(chunk, used, after.counts):
            part = slice(window.start - origin, window.stop - origin)
            means = sums[:, part].mul_(verdict.factor)
            if len(means) > 1 and verdict.clip < 1.0:
                means[1:].mul_(verdict.clip)  # squares, once more
            if limit is not None:  # one lane: the squares of moments cannot be clipped
                means.clamp_(-limit, limit)
            self.rule.update(
                self.model.params[window],
                means if len(means) > 1 else means[0],
                {s: state[s][part] for s in self.rule.slots},
                count,
                rate,
                decay,
            )

    def runs(self, chunk: Range, used: int, counts: Counts) -> list[tuple[slice, int, float]]:
        """Elements of a chunk whose parameters are updated, in runs of the same count and weight decay."""
        space, spec = self.model.space, self.spec.optimizer
        window = space.elements(chunk)
        runs: list[tuple[slice, int, float]] = []
        pieces = space.pieces
        for at, piece in enumerate(pieces):
            end = pieces[at + 1].start if at + 1 < len(pieces) else space.size  # padding goes along
            start, stop = max(piece.start, window.start), min(end, window.stop)
            if start >= stop or not used >> piece.index & 1:
                continue
            decays = spec.weight_decay_1d or len(piece.shape) > 1
            key = (counts.of(piece.index), spec.weight_decay if decays else 0.0)
            if runs and runs[-1][0].stop == start and runs[-1][1:] == key:
                runs[-1] = (slice(runs[-1][0].start, stop), *key)
            else:
                runs.append((slice(start, stop), *key))
        return runs

    def spread(self) -> None:
        """State that everybody has whole: what is kept here goes to its place in it."""
        for blocks, state in self.states.pieces.items() if self.gathered else ():
            for slot, whole in self.gathered.items():
                whole[self.model.space.elements(blocks)] = state[slot]

    # ---- beginnings -------------------------------------------------------------------------

    def reinitialise(self) -> None:
        """Parameters and buffers as the seed gives them, once more."""
        if self.touched:
            fresh = FlatModel(make_module(self.task, self.spec.seed))
            self.model.take_over(fresh)
            for name, base in self.model.buffers.base.items():
                base.copy_(fresh.buffers.base[name])
            self.model.buffers.reset()
            self.touched = False

    def _common_of_seed(self) -> dict[str, Tensor]:
        spec = self.spec.compression
        if not isinstance(spec, PowerSGD):
            return {}
        return {Q: Layout.of(self.model.space, spec.rank).first_q(self.spec.seed)}

    def begin(self, ownership: Ownership, rank: int) -> None:
        """At step 0, with fresh optimizer state for what is to be kept."""
        self.cursor, self.record, self.whole = Cursor(), None, True
        self.common = self._common_of_seed()
        for slot, whole in self.gathered.items():
            whole.copy_(self.rule.init(slot, whole))
        self.states.begin(ownership.held(rank))
