"""Owner and buddy do not keep the same bits: who goes, and where the job goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.exchange.digests import differences, digests
from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.suspicion import SHOWN, Difference, Disagreement, Suspicion, told
from elastrain.trainers.numerics.chunks import Domain, FlatSpace, Ownership
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.training.replica import Replica, make_module
from engine.tasks.toy import Toy
from trainers.stage import Stage, training
from trainers.test_joining import SPEC


def disagreement(step: int, *pairs: str, agreed: int = 0) -> Disagreement:
    """Pairs as "w0 w1": owner and buddy."""
    found = [Difference(*pair.split(), ((0, 4),)) for pair in pairs]
    return Disagreement(step, agreed, tuple(found))


# ---- finding it --------------------------------------------------------------------------------


def replica(members: int, rank: int) -> tuple[Replica, Ownership]:
    task = Toy()
    one = Replica(SPEC, task, FlatModel(make_module(task, SPEC.seed)), 300, 100)
    own = Ownership.of(one.model.space, [Domain(f"w{r}", f"w{r}", "n") for r in range(members)])
    one.begin(own, rank)
    for blocks, slots in one.states.pieces.items():
        for at, slot in enumerate(slots.values()):
            slot.copy_(torch.arange(len(slot)) * 0.01 + blocks[0] + at)
    return one, own


@pytest.mark.parametrize("members", [2, 3, 5])
def test_any_single_bit_that_flips_in_what_a_worker_keeps_is_found(members: int) -> None:
    rng, ids = random.Random(members), [f"w{r}" for r in range(members)]
    own = replica(members, 0)[1]
    said = [digests(replica(members, rank)[0], own, rank) for rank in range(members)]
    assert differences(said, own, ids) == []
    for _ in range(12):
        rank = rng.randrange(members)
        one, _ = replica(members, rank)
        blocks = rng.choice(own.held(rank))
        name = rng.choice(["param", *one.states.pieces[blocks]])
        whole = one.model.params[one.model.space.elements(blocks)]
        values = whole if name == "param" else one.states.pieces[blocks][name]
        values.view(torch.int32)[rng.randrange(len(values))] ^= 1 << rng.randrange(31)
        mine = digests(one, own, rank)
        found = differences([mine if r == rank else d for r, d in enumerate(said)], own, ids)
        assert [d.blocks for d in found] == [(blocks,)]
        assert f"w{rank}" in (found[0].owner, found[0].buddy)


def test_values_that_changed_places_between_slots_are_found() -> None:
    one, own = replica(2, 0)
    before = digests(one, own, 0)
    for slots in one.states.pieces.values():
        a, b = slots
        slots[a], slots[b] = slots[b], slots[a]
    assert all(x != y for x, y in zip(before, digests(one, own, 0), strict=True))


@given(st.integers(1, 9), st.data())
def test_only_owner_and_buddy_of_what_differs_are_named(members: int, data: st.DataObject) -> None:
    own = Ownership.of(FlatSpace((), 64 * 100, 64), [Domain(f"w{r}", f"g{r}", "n") for r in range(members)])
    said = [["0"] * len(own.held(r)) for r in range(members)]
    ids = [f"w{r}" for r in range(members)]
    assert differences(said, own, ids) == []
    rank = data.draw(st.integers(0, members - 1))
    at = data.draw(st.integers(0, len(said[rank]) - 1))
    said[rank][at] = "1"
    chunk = own.held(rank)[at]
    found = differences(said, own, ids)
    assert [d.blocks for d in found] == ([(chunk,)] if members > 1 else [])
    assert all(f"w{rank}" in (d.owner, d.buddy) for d in found)


# ---- who it is ---------------------------------------------------------------------------------


def blamed(*found: Disagreement) -> list[tuple[str, ...]]:
    suspicion = Suspicion()
    return [suspicion.blame(f) for f in found]


def test_of_two_copies_nobody_knows_which_is_wrong() -> None:
    assert blamed(disagreement(50, "w0 w1")) == [()]
    assert blamed(disagreement(50, "w0 w1", "w1 w0")) == [()]


def test_who_differs_again_from_another_one_is_removed() -> None:
    assert blamed(disagreement(50, "w0 w1"), disagreement(100, "w1 w2")) == [(), ("w1",)]
    assert blamed(disagreement(50, "w0 w1"), disagreement(100, "w2 w1")) == [(), ("w1",)]


def test_who_differs_from_two_at_once_is_removed() -> None:
    assert blamed(disagreement(50, "w0 w1", "w1 w2")) == [("w1",)]


def test_the_same_two_again_are_both_removed() -> None:
    assert blamed(disagreement(50, "w0 w1"), disagreement(100, "w1 w0")) == [(), ("w0", "w1")]


def test_others_the_next_time_are_no_repetition() -> None:
    assert blamed(disagreement(50, "w0 w1"), disagreement(100, "w2 w3")) == [(), ()]
    assert blamed(disagreement(50, "w0 w1", "w1 w2", "w2 w0")) == [()], "everybody differs from everybody"


def test_a_step_that_never_comes_out_alike_is_hopeless() -> None:
    suspicion = Suspicion()
    for step, hopeless in [(50, False), (100, False), (100, False), (90, True)]:
        suspicion.blame(disagreement(step, f"w{step} x{step}"))
        assert suspicion.hopeless is hopeless


def test_the_message_names_workers_nodes_blocks_and_steps() -> None:
    found = Disagreement(100, 50, (Difference("w0", "w1", ((0, 4), (8, 9))),))
    text = told(found, {"w0": "n0", "w1": "n1"}, ())
    assert text == (
        "the state at step 100 is not the same on w0 (n0) and w1 (n1) in blocks 0 to 3, 8 to 8; "
        "they agreed at step 50; two copies do not tell which one is wrong"
    )
    many = disagreement(9, *(f"w{n} w{n + 1}" for n in range(30)), agreed=-1)
    text = told(many, {}, ("w4", "w5"))
    assert f"and {30 - SHOWN} more; they were not compared before; it is not the first time" in text
    assert "w4 and w5 are removed" in text


def test_a_disagreement_travels_as_json() -> None:
    found = disagreement(50, "w0 w1", "w1 w2", agreed=40)
    assert Disagreement.from_json(json.loads(json.dumps(found.to_json()))) == found


# ---- what follows ------------------------------------------------------------------------------


def corrupt(stage: Stage, reporters: Sequence[str], *pairs: str) -> Stage:
    """These found it; what they held is forgotten."""
    found = disagreement(stage.machine.progress.step, *pairs)
    for worker in reporters:
        report = m.Report(stage.machine.generation.number, "corrupt", -1, corrupt=found)
        stage.feed(m.Reported(worker, report))
    return stage


def test_the_job_goes_back_to_the_newest_checkpoint_and_says_why() -> None:
    stage = training(3)
    stage.feed(m.CheckpointSaved(2))
    stage.saved = 2
    corrupt(stage, stage.members, "w0 w1")
    assert stage.opened.restore
    assert stage.opened.members == ("w0", "w1", "w2")
    [said] = stage.said("corruption")
    assert said["nodes"] == {"w0": "n0", "w1": "n1"}
    assert said["removed"] == []
    assert stage.said("rollback") == [{"from": 3, "to": 2}]
    [rollback] = [a for a in stage.all(m.Say) if a.type == "rollback"]
    assert "did not agree" in rollback.message
    assert not stage.said("worker.lost")


def test_one_who_saw_it_is_enough_though_the_others_hold_everything() -> None:
    stage = training(4)
    corrupt(stage, ["w2"], "w0 w1")
    assert stage.news(m.Halt)[0].workers == ("w0", "w1", "w3")
    stage.die("w2")
    stage.report()
    assert stage.opened.restore
    assert stage.opened.members == ("w0", "w1", "w3")
    stage.seal().commit().commit()
    stage.die("w0").report()
    assert not stage.opened.restore, "what they hold since then is trusted again"


def test_the_one_to_blame_is_replaced() -> None:
    stage = training(3)
    corrupt(stage, stage.members, "w0 w1").seal().commit()
    corrupt(stage, ["w0", "w1", "w2"], "w1 w2")
    assert stage.said("worker.lost") == [
        {"worker": "w1", "group": "g1", "cause": "its state differs from that of its peers"}
    ]
    assert stage.opened.members == ("w0", "w2")
    assert stage.opened.restore
    assert [a for a in stage.all(m.StopGroup) if a.kill] == [m.StopGroup("g1", True)]


def test_a_step_that_never_comes_out_alike_fails_the_job() -> None:
    stage = training(4)
    for pair in ("w0 w1", "w2 w3", "w0 w1"):
        assert stage.end is None
        corrupt(stage, stage.members, pair).seal()
    assert stage.end is not None
    assert (stage.end.outcome, stage.end.failed_by) == ("failed", "infrastructure")
    assert "is not the same on w0" in (stage.end.message or "")
