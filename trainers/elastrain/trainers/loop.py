"""The training loop of one worker, told from top to bottom.

a generation is opened ─▶ form it ─▶ [ do what is due at this boundary ─▶ one step ] over and over
      ▲                                     │ halted, a peer is gone, an exception, a boundary
      └──────────── report what is held ◀───┘
"""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from elastrain.trainers.checkpoints import restore
from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.exchange import collectives, digests
from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.handover import Handover, catch_up
from elastrain.trainers.exchange.parking import parking
from elastrain.trainers.exchange.reduction import Reduction
from elastrain.trainers.membership.messages import Json, Report
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership
from elastrain.trainers.numerics.partials import PassedOn
from elastrain.trainers.split.staged import computing
from elastrain.trainers.strategies import local_sgd
from elastrain.trainers.strategies.choice import way_of
from elastrain.trainers.strategies.outer import RoundRule
from elastrain.trainers.training import soundness, watch
from elastrain.trainers.training.ended import Boundary, ended, one_sided
from elastrain.trainers.training.evaluate import evaluate_step, evaluation_due
from elastrain.trainers.training.faults import UserFault, blamed_on_user
from elastrain.trainers.training.formed import Generation
from elastrain.trainers.training.judge import checkpoint_due, condemn, doubtful, judge
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.samples import SampleReader
from elastrain.trainers.training.session import Dismissed, Session


class Trainer:
    """One worker in the loop. `run` returns when the coordinator dismisses it."""

    def __init__(
        self, replica: Replica, reader: SampleReader, session: Session, snapshots: Snapshots
    ) -> None:
        self.replica, self.reader, self.session, self.snapshots = replica, reader, session, snapshots
        self.shards = replica.shards
        self.compute = local_sgd.compute if isinstance(replica.rule, RoundRule) else computing(replica)
        self.way = way_of(replica.spec)  # what the strategy does in a way of its own (all_reduce.py)
        self.group: Group | None = None  # of the generation that forms or trains
        self.moving: Handover | None = None  # until all have what they keep
        self.agreed = -1  # step at which owners and buddies had the same bits for the last time

    def facts(self) -> Json:
        """What the coordinator wants to know of the job before it begins."""
        return {
            "blocks": self.replica.model.space.blocks,
            "parameters": len(self.replica.model.parameters),
            "layers": [[layer.name, layer.size, f"{layer.mask:x}"] for layer in watch.named(self.replica)],
            "train_size": self.reader.size("train"),
            "val_size": self.reader.size("val"),
        }

    def run(self) -> None:
        """Live through generation after generation; ends by Dismissed."""
        while True:
            opening = self.session.next_opening()
            report = self._live(opening)
            self.session.report(report)

    def _live(self, opening: Opening) -> Report:
        """Train in one generation until it is over; the report says with what."""
        self.shards.enter(opening.generation)
        try:
            self.train(opening)
        except Dismissed:
            raise
        except Exception as error:
            if self.moving is not None:
                self.moving.take_what_has_come()
            self.shards.leave(opening.generation)
            if self.shards.count > 1 and (fault := one_sided(error)) is not None:
                self.session.give_up(opening.generation, fault)
            return ended(error, self.replica, self.session, self.snapshots, opening.generation)
        finally:
            if self.group is not None:
                self.group.park()
            self.group = self.moving = None

    def train(self, opening: Opening) -> NoReturn:
        """Step after step, until the generation ends: by an exception."""
        generation = self.form(opening)
        while True:
            self.boundary(generation)
            self.step(generation)

    # ---- forming a generation ---------------------------------------------------------------

    def form(self, opening: Opening) -> Generation:
        """Meet the other members, get to the same step, and take over what is ours to keep."""
        rank = opening.rank_of(self.session.worker)
        ownership = Ownership.of(self.replica.model.space, opening.domains())
        if opening.restore is not None:
            self.replica.forget()
        else:
            catch_up(self.replica, opening)
        # kept from its first moment on: one that is destroyed with an exchange pending may block for good
        group = self.group = collectives.build(
            self.session.host,
            opening.members[0]["address"],
            opening.generation,
            rank,
            ownership.world,
            lambda: self.session.check(opening.generation),
            lambda finished: self.session.waits(opening.generation, finished),
            shards=self.shards,
        )
        exchange = self.way.exchange(self.replica, group, ownership, opening.workers)
        done = [opening.done.get(w, []) for w in opening.workers]
        reduce = self.way.reducer(self.replica, group, ownership)
        generation = Generation(opening, group, ownership, exchange, reduce, opening.balance(), done)
        if opening.restore is not None:
            alive = partial(self.session.works, opening.generation)
            kept = self.way.keeps(ownership, rank)
            restore.load(self.replica, self.session.storage, opening.restore, *kept, alive)
            self.agreed = self.replica.step
            group.barrier()
            self.replica.layout = opening.generation if self.way.twice else 0
        else:
            self.moving = self.way.hand_over(self.replica, opening, group, ownership)
        assert self.replica.step == opening.step, f"at {self.replica.step}, was to be at {opening.step}"
        self._seal(generation, wait=self.moving is None or self.shards.count > 1)
        return generation

    def _seal(self, generation: Generation, wait: bool = True) -> None:
        """Say so, once all have what they are to keep in this generation."""
        if generation.sealed or not (self.moving is None or self.moving.over(wait)):
            return
        generation.sealed, self.moving = True, None
        self.session.send("sealed", generation=generation.number, step=self.replica.step)
        parking.clear()

    # ---- one step ---------------------------------------------------------------------------

    def step(self, generation: Generation) -> None:
        """Gradients, reduce, commit, update, gather."""
        replica, has, rank = self.replica, self._has(generation), generation.group.rank
        replica.at_hand()
        reduction = self._begin_reduce(generation, has)
        self._compute(generation, has[rank], reduction.passed_on)
        reduction.finish()
        self._seal(generation)
        record = generation.exchange.commit(self.session.log_number, reduction.norms)
        verdict = replica.apply(record)
        reduction.committed(verdict.applied)
        generation.done = [[] for _ in has]
        generation.balance.observe(record)
        generation.log = record["log"]
        if rank in (0, generation.ownership.buddy[0]):  # one of them may be lost with it
            self.session.committed(generation.number, replica.step, record)
        arrive = generation.exchange.start_gather()
        if generation.group.world > 2:  # meanwhile
            self.reader.prefetch(replica.plan, replica.step, has[rank])
        arrive()
        self.shards.gather(None)  # all have everything of theirs

    def _has(self, generation: Generation) -> list[list[int]]:
        """The microbatches of this step that each rank will have: what it kept, and what it is to compute."""
        dealt = generation.balance.deal(self.replica.count, generation.done, self.replica.unit)
        return [[*done, *new] for done, new in zip(generation.done, dealt, strict=True)]

    def _begin_reduce(self, generation: Generation, has: list[list[int]]) -> Reduction:
        """While chunks still travel nothing is launched before they are here: all exchange in one order."""
        if self.moving is not None and self.replica.states.more:  # of which the reduce itself needs some
            self._compute(generation, has[generation.group.rank])
            self._seal(generation)
        reduction = generation.reduce(has)
        if self.moving is not None:
            reduction.may_begin = self.moving.here
        return reduction

    def _compute(
        self, generation: Generation, microbatches: list[int], passed_on: PassedOn | None = None
    ) -> None:
        """Those that are not done yet. passed_on: is told which sums are final, while the last backward goes
        on."""
        at, rows = self.replica.step, self.replica.at_hand().rows
        left = [j for j in microbatches if j not in rows]
        for microbatch in left:
            told, done = (passed_on if microbatch == left[-1] else None), False
            while not done:
                self.shards.go_on(lambda: self.session.check(generation.number))
                self._seal(generation, wait=False)
                self.session.began(at, microbatch)
                try:
                    with blamed_on_user("compute", at, microbatch):
                        done = self.compute(self.replica, self.reader, at, microbatch, told)
                except UserFault:  # whoever is removed for it may hold what nobody else has yet
                    self._seal(generation)
                    raise

    # ---- at a boundary ----------------------------------------------------------------------

    def boundary(self, generation: Generation) -> None:
        """Everything that is due at this step: re-form, evaluate, checkpoint, end; in this order."""
        replica = self.replica
        last = replica.step >= replica.plan.total_steps
        judge(replica, last)
        kinds = self._commands(generation)
        if "regroup" in kinds:
            raise Boundary
        if generation.opening.hold:
            self._snapshot(generation, again=False)
            self._idle(generation)
        if replica.step % digests.EVERY == 0 or checkpoint_due(replica, last):
            self._compare(generation)
        if evaluation_due(replica, last):
            self._sound(generation)
            self._evaluate(generation)
            kinds |= self._commands(generation)
            if "regroup" in kinds:
                raise Boundary
        generation.owed |= "checkpoint" in kinds
        asked = generation.owed and not doubtful(replica)
        if checkpoint_due(replica, last) or asked or "finish" in kinds:
            self._snapshot(generation, again=generation.owed)
            generation.owed = False
        if last or "finish" in kinds:
            self._idle(generation)

    def _compare(self, generation: Generation) -> None:
        """Have owners and buddies the same bits? Asked once at a boundary."""
        self._seal(generation)
        if generation.compared != self.replica.step and generation.group.world > 1 and self.way.twice:
            generation.compared = self.replica.step
            workers = generation.opening.workers
            digests.compare(self.replica, generation.group, generation.ownership, workers, self.agreed)
            self.agreed = self.replica.step

    def _sound(self, generation: Generation) -> None:
        """Is everything finite that is about to be measured or saved? Asked once at a boundary."""
        self._seal(generation)
        if generation.sound != self.replica.step:
            kept = self.way.keeps(generation.ownership, generation.group.rank)
            mine = soundness.unsound(self.replica, *kept)
            mine = [name for names in self.shards.gather(mine) for name in names]
            if found := [name for names in generation.group.gather_json(mine) for name in names]:
                condemn(self.replica, found)
            generation.sound = self.replica.step

    def _commands(self, generation: Generation) -> set[str]:
        """The kinds of commands that take effect now: those whose number the last commit carried."""
        kinds = self._peek(generation)
        generation.handled = max(generation.handled, generation.log)
        return kinds

    def _evaluate(self, generation: Generation) -> None:
        """Steps without an update. Each one ends in a commit, where commands are seen as well."""
        replica, group = self.replica, generation.group
        assert replica.cursor is not None and replica.eval_plan is not None
        with self.way.in_common(replica, group, generation.ownership, self.session):
            while replica.cursor.evaluated_step != replica.step:
                shares = generation.balance.deal(replica.eval_plan.count(replica.cursor.position))
                log = evaluate_step(replica, self.reader, self.session, group, generation.number, shares)
                generation.log = max(generation.log, log)
                if "regroup" in self._peek(generation):
                    break  # the next generation goes on with it
        tells = group.rank in (0, generation.ownership.buddy[0])  # as of commits: one of them may be lost
        if tells and replica.cursor.evaluated_step == replica.step:
            self.session.evaluated(generation.number, replica)

    def _peek(self, generation: Generation) -> set[str]:
        return self.session.commands(generation.number, generation.handled, generation.log)

    def _snapshot(self, generation: Generation, again: bool) -> None:
        at = self.replica.step
        if at <= generation.opening.saved_step or (at in generation.snapshots and not again):
            return
        self._sound(generation)
        self._compare(generation)  # what is in a checkpoint was the same twice
        generation.snapshots.add(at)
        with self.way.in_common(self.replica, generation.group, generation.ownership, self.session):
            self.snapshots.take(self.replica, generation.ownership, generation.group.rank, generation.number)

    def _idle(self, generation: Generation) -> None:
        """Nothing is left to do here. Wait to be dismissed; take another snapshot if one is asked for."""
        self._seal(generation)
        self.session.send("idle", generation=generation.number, step=self.replica.step)
        while True:
            self.shards.agree(lambda: self.session.check(generation.number))
            number = self.session.wait_command(generation.handled)
            if number is None:
                continue
            kinds = self.session.commands(generation.number, generation.handled, number)
            generation.handled = number
            if "checkpoint" in kinds:
                self._snapshot(generation, again=True)
