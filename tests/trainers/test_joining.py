"""A joiner whose generation breaks while it is handed things: what it may then call its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers import loop
from elastrain.trainers.exchange import collectives
from elastrain.trainers.exchange.collectives import Arrival, Broken, Group, Halted
from elastrain.trainers.exchange.handover import Handover, catch_up
from elastrain.trainers.loop import Trainer
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.cursor import Cursor
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.task import Loss
from elastrain.trainers.training import step
from elastrain.trainers.training.faults import UserFault
from elastrain.trainers.training.replica import Replica, make_module
from elastrain.trainers.training.samples import SampleReader
from engine.tasks.toy import Toy

BATCH, WORKERS = {"size": 64, "microbatch": 8}, {"min": 1, "max": 4}
SPEC = parse_spec(
    {"name": "toy", "task": "engine.tasks.toy:Toy", "steps": 9, "batch": BATCH, "workers": WORKERS}
)
MEMBERS = tuple({"worker": w, "group": w, "node": "n", "address": {}} for w in ("w0", "w1"))
EXCHANGES = 2 + len(SPEC.optimizer.betas)  # buffers, parameters, a moment each


class Breaking(Group):
    """A group of two that delivers zeros, and breaks at a chosen exchange."""

    def __init__(self, breaks_at: int) -> None:
        super().__init__(1, 2)
        self.left = breaks_at

    def start_exchange(
        self, sends: Any, sizes: Any, dtype: torch.dtype, into: Tensor | None = None
    ) -> Arrival:
        self.left -= 1
        return Broke() if self.left < 0 else Arrival(None, None, torch.zeros(sum(sizes), dtype=dtype), sizes)


class Broke(Arrival):
    def __init__(self) -> None:
        pass

    def ready(self) -> bool:
        return True

    def __call__(self) -> list[Tensor]:
        raise Broken("the other one is gone")


def joiner() -> tuple[Replica, Opening, Ownership]:
    """Not a step done, and an opening at step 5 of somebody who holds everything."""
    task = Toy()
    replica = Replica(SPEC, task, FlatModel(make_module(task, SPEC.seed)), 300, 100)
    held = {"w0": [(0, replica.model.space.blocks)]}
    opening = Opening(2, MEMBERS, 5, Cursor(step=5, updates=5).to_json(), None, held, ("w0",), {}, None, 0)
    catch_up(replica, opening)
    return replica, opening, Ownership.of(replica.model.space, opening.domains())


@pytest.mark.parametrize("breaks_at", range(EXCHANGES))
def test_a_joiner_without_all_it_needs_reports_that_it_holds_nothing(breaks_at: int) -> None:
    replica, opening, ownership = joiner()
    with pytest.raises(Broken):
        Handover(replica, opening, Breaking(breaks_at), ownership).over(wait=True)
    assert replica.report(2, "broken").held == ()


class Late(Breaking):
    """The state comes when it is told to."""

    here = False

    def start_exchange(
        self, sends: Any, sizes: Any, dtype: torch.dtype, into: Tensor | None = None
    ) -> Arrival:
        arrival = super().start_exchange(sends, sizes, dtype)
        arrival.ready = lambda: self.here  # type: ignore[method-assign]
        return arrival


def test_a_joiner_has_all_parameters_before_it_holds_any_state_and_can_compute_by_then() -> None:
    group = Late(EXCHANGES)
    replica, opening, ownership = joiner()
    handover = Handover(replica, opening, group, ownership)
    assert (replica.model.params == 0).all(), "what was sent, no longer the seed's"
    assert not handover.here() and not handover.over()
    assert (replica.report(2, "halted").whole, replica.report(2, "halted").held) == (True, ())
    group.here = True
    assert handover.here() and handover.over()
    assert replica.report(2, "halted").held == tuple(sorted(ownership.held(1)))


def test_a_generation_broke_and_what_had_come_by_then_is_held_all_the_same() -> None:
    """Its holder may be the one for whom it broke."""
    group = Late(EXCHANGES)
    replica, opening, ownership = joiner()
    handover = Handover(replica, opening, group, ownership)
    handover.take_what_has_come()
    assert replica.report(2, "broken").held == ()
    group.here = True
    handover.take_what_has_come()
    assert replica.report(2, "broken").held
    broken = Late(EXCHANGES - 1)
    replica, opening, ownership = joiner()
    handover, broken.here = Handover(replica, opening, broken, ownership), True
    handover.take_what_has_come()
    assert replica.report(2, "broken").held == (), "one of two slots is nothing"


def test_a_joiner_that_holds_a_chunk_has_the_buffers_already() -> None:
    replica, opening, ownership = joiner()
    Handover(replica, opening, Breaking(EXCHANGES), ownership).here(wait=True)
    assert replica.report(2, "halted").held
    assert (
        replica.model.buffers.base["1.running_var"] == 0
    ).all()  # what was sent, no longer the seed's ones


def test_what_a_layout_gave_is_said_by_its_number_until_something_else_is_held() -> None:
    replica, opening, ownership = joiner()
    assert Handover(replica, opening, Breaking(9), ownership).over(wait=True)
    report = replica.report(2, "halted")
    assert (report.layout, report.held) == (2, tuple(sorted(ownership.held(1))))

    class Broken(Breaking):
        def start_barrier(self) -> Arrival:
            raise collectives.Broken("after the chunks, before everyone has the new layout")

    more = replace(opening, generation=3, held={"w0": opening.held["w0"], "w1": []})
    with pytest.raises(collectives.Broken):
        Handover(replica, more, Broken(9), ownership).over(wait=True)
    assert replica.report(3, "broken").layout == 0
    replica.forget()
    assert replica.report(3, "broken").layout == 0


def test_a_job_that_begins_again_finds_the_seeds_parameters_on_a_joiner_too() -> None:
    replica, _, ownership = joiner()
    replica.model.params.fill_(3.0)  # what a survivor, gone since, had sent
    replica.forget()
    replica.reinitialise()
    replica.begin(ownership, 1)
    fresh = FlatModel(make_module(Toy(), SPEC.seed))
    assert torch.equal(replica.model.params, fresh.params)


class Deaf:
    """A session that hears and says nothing."""

    worker, host = "w1", "127.0.0.1"

    def check(self, generation: int) -> None:
        pass

    def began(self, step: int, microbatch: int) -> None:
        pass

    def send(self, kind: str, **fields: Any) -> None:
        pass


class Fragile(Toy):
    """Raises in the middle of a backward, once it is to."""

    fails = False

    def loss(self, model: nn.Module, batch: Any) -> Loss:
        if self.fails:
            cast(Any, model)[0].weight.register_hook(self.fail)
        return super().loss(model, batch)

    def fail(self, grad: Tensor) -> Tensor:
        if self.fails:
            raise RuntimeError("too little memory, for now")
        return grad


class Heard(Deaf):
    """What the worker says, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def send(self, kind: str, **fields: Any) -> None:
        self.said.append(kind)


def test_an_exception_while_chunks_travel_is_told_once_all_have_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever is removed for it may hold what nobody else has yet."""
    monkeypatch.setattr(
        "elastrain.trainers.numerics.chunks.BUCKET", 1024
    )  # so that a half of it is added already
    monkeypatch.setattr(loop.collectives, "build", lambda *_, **__: Late(breaks_at=99))
    task, nobody, session = Fragile(), cast(Any, None), cast(Any, Heard())
    replica = Replica(SPEC, task, FlatModel(make_module(task, SPEC.seed)), 300, 100)
    trainer = Trainer(replica, SampleReader(task, SPEC.seed), session, nobody)
    replica.begin(Ownership.of(replica.model.space, [Domain("w1", "w1", "n")]), 0)
    replica.partial = Partial.of(8, replica.model.space, replica.filling)
    for microbatch in (0, 5, 6):
        step.compute(replica, trainer.reader, 0, microbatch)
    held, done = {"w1": replica.states.ranges()}, {"w1": [0, 5, 6]}
    opening = Opening(2, MEMBERS, 0, Cursor().to_json(), None, held, ("w1",), done, None, 0)
    generation = trainer.form(opening)
    assert session.said == [], "the other one has nothing of its own yet"
    task.fails = True
    with pytest.raises(UserFault):
        trainer.step(generation)
    assert session.said == ["sealed"]
    assert sorted(replica.partial.rows) == [0, 6], "5 was lost with 4, to which it was being added"
    begun: list[int] = []

    def compute(_: object, microbatches: list[int], *more: object) -> None:
        begun.extend(j for j in microbatches if j not in replica.at_hand().rows)
        raise Halted

    monkeypatch.setattr(trainer, "_compute", compute)
    with pytest.raises(Halted):
        trainer.step(generation)
    assert sorted(begun) == [4, 5, 7]


def test_a_group_whose_forming_was_cut_short_is_left_behind_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's destructor waits for what is pending, and to a peer that was cut off that is for ever."""
    left: list[Group] = []
    monkeypatch.setattr(Breaking, "park", lambda group: left.append(group))
    monkeypatch.setattr(loop.collectives, "build", lambda *_, **__: Breaking(breaks_at=0))
    replica, opening, _ = joiner()
    nobody: Any = None
    session: Any = Deaf()
    report = Trainer(replica, nobody, session, nobody)._live(opening)
    assert report.why == "broken" and len(left) == 1
