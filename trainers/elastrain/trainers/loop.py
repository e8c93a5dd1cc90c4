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
from elastrain.trainers.exchange.handover import catch_up
from elastrain.trainers.exchange.parking import parking
from elastrain.trainers.membership.balance import begins_with
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
from elastrain.trainers.training.evaluate import evaluate_step
from elastrain.trainers.training.faults import UserFault, blamed_on_user
from elastrain.trainers.training.formed import Generation
from elastrain.trainers.training.judge import condemn, doubtful, judge
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
            self.shards.leave(opening.generation)
            if self.shards.count > 1 and (fault := one_sided(error)) is not None:
                self.session.give_up(opening.generation, fault)
            return ended(error, self.replica, self.session, self.snapshots, opening.generation)
        finally:
            if self.group is not None:
                self.group.park()
            self.group = None

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
            self.way.hand_over(self.replica, opening, group, ownership, partial(self._ahead, generation))
        assert self.replica.step == opening.step, f"at {self.replica.step}, was to be at {opening.step}"
        self.session.send("sealed", generation=opening.generation, step=self.replica.step)
        parking.clear()
        return generation

    def _ahead(self, generation: Generation) -> bool:
        """While chunks change hands, who has the parameters begins the step: one microbatch of it (or a part
        of one), if it has more to compute than any joiner, which waits for it. What user code raises it
        raises once more in the step, and is told then: whoever is removed for it may hold now what nobody
        else has."""
        opening, rank = generation.opening, generation.group.rank
        if opening.hold or self.shards.count > 1 or self.replica.step >= self.replica.plan.total_steps:
            return False
        whole = [worker in opening.whole for worker in opening.workers]
        first = begins_with(self._has(generation), whole, rank, self.replica.at_hand().rows)
        try:
            self._compute(generation, first, once=True)
            return bool(first)
        except UserFault:
            return False

    # ---- one step ---------------------------------------------------------------------------

    def step(self, generation: Generation) -> None:
        """Gradients, reduce, commit, update, gather."""
        replica, has = self.replica, self._has(generation)
        rows, rank = replica.at_hand().rows, generation.group.rank
        reduction = generation.reduce(has)
        self._compute(generation, [j for j in has[rank] if j not in rows], reduction.passed_on)
        reduction.finish()
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

    def _compute(
        self,
        generation: Generation,
        microbatches: list[int],
        passed_on: PassedOn | None = None,
        once: bool = False,
    ) -> None:
        """passed_on: is told which sums are final with the last microbatch, while its backward goes on. once:
        where a microbatch has several parts, only the next one."""
        at = self.replica.step
        for microbatch in microbatches:
            told, done = (passed_on if microbatch == microbatches[-1] else None), False
            while not done:
                self.shards.go_on(lambda: self.session.check(generation.number))
                self.session.began(at, microbatch)
                with blamed_on_user("compute", at, microbatch):
                    done = self.compute(self.replica, self.reader, at, microbatch, told) or once

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
        if replica.step % digests.EVERY == 0 or self._checkpoint_due(last):
            self._compare(generation)
        if self._evaluation_due(last):
            self._sound(generation)
            self._evaluate(generation)
            kinds |= self._commands(generation)
            if "regroup" in kinds:
                raise Boundary
        generation.owed |= "checkpoint" in kinds
        asked = generation.owed and not doubtful(replica)
        if self._checkpoint_due(last) or asked or "finish" in kinds:
            self._snapshot(generation, again=generation.owed)
            generation.owed = False
        if last or "finish" in kinds:
            self._idle(generation)

    def _compare(self, generation: Generation) -> None:
        """Have owners and buddies the same bits? Asked once at a boundary."""
        if generation.compared != self.replica.step and generation.group.world > 1 and self.way.twice:
            generation.compared = self.replica.step
            workers = generation.opening.workers
            digests.compare(self.replica, generation.group, generation.ownership, workers, self.agreed)
            self.agreed = self.replica.step

    def _sound(self, generation: Generation) -> None:
        """Is everything finite that is about to be measured or saved? Asked once at a boundary."""
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

    def _evaluation_due(self, last: bool) -> bool:
        replica, evaluate = self.replica, self.replica.spec.evaluate
        assert replica.cursor is not None
        if replica.eval_plan is None or replica.step == 0 or replica.cursor.evaluated_step == replica.step:
            return False
        every = evaluate.every_steps
        return (last and evaluate.at_end) or (every is not None and replica.step % every == 0)

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

    def _checkpoint_due(self, last: bool) -> bool:
        every, at = self.replica.spec.checkpoint.every_steps, self.replica.step
        now = every is not None and at % every == 0 and not doubtful(self.replica)
        return at > 0 and (last or now)

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
