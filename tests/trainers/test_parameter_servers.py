"""Whatever happens to workers and servers: every step counts once, in an order that can be repeated."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.strategies.ledger import Ledger, Replay, Task
from elastrain.trainers.strategies.shelf import Delivery, Shelf, everywhere
from trainers.simulated_servers import World, by_the_order

seeds = st.integers(0, 2**32)
sizes = st.integers(1, 3)
bounds = st.sampled_from([None, 1, 2, 3])


def world(seed: int, servers: int = 2, workers: int = 3, **more: object) -> World:
    return World(random.Random(seed), 25, servers, workers, **more).live()  # type: ignore[arg-type]


@given(seeds, sizes, st.integers(1, 4), bounds)
def test_whatever_dies_every_step_is_applied_once_and_nothing_acknowledged_is_lost(
    seed: int, servers: int, workers: int, bound: int | None
) -> None:
    end = world(seed, servers, workers, bound=bound)
    assert sorted(task.step for task in end.order) == list(range(25))
    for server in end.servers:
        assert server.order == end.order
        assert server.values == by_the_order(end.order, servers)


@given(seeds, st.integers(1, 4), st.integers(1, 4))
def test_no_step_was_computed_from_parameters_further_behind_than_the_bound(
    seed: int, workers: int, bound: int
) -> None:
    end = world(seed, workers=workers, bound=bound)
    assert max(end.staleness) <= bound


@given(seeds, st.integers(1, 4), st.integers(1, 4), bounds)
def test_the_order_of_one_run_gives_another_one_its_bits_with_other_workers_and_deaths(
    seed: int, workers: int, others: int, bound: int | None
) -> None:
    first = world(seed, workers=workers, bound=bound)
    again = world(seed + 1, workers=others, replay=first.order, faults=0.03, most=4)
    assert again.order == first.order
    assert again.servers[0].values == first.servers[0].values


def test_the_schedules_above_have_every_kind_of_fault() -> None:
    happened: dict[str, int] = {}
    for seed in range(30):
        for kind, times in world(seed).happened.items():
            happened[kind] = happened.get(kind, 0) + times
    wanted = {"worker", "everybody else", "server", "server amid a commit", "doubled word", "doubled push"}
    assert {kind for kind, times in happened.items() if times >= 20} >= wanted


def test_without_deaths_one_worker_works_through_the_plan_in_order() -> None:
    end = world(0, workers=1, faults=0.0)
    assert end.order == [Task(step, step) for step in range(25)]


def test_without_deaths_three_workers_are_stale_and_the_bound_holds_them_together() -> None:
    assert max(world(1, workers=3, faults=0.0).staleness) > 1
    assert max(world(1, workers=3, faults=0.0, bound=1).staleness) == 1


# ---- one word at a time ------------------------------------------------------------------------


def ledger(**more: object) -> Ledger:
    made = Ledger(10, [], **more)  # type: ignore[arg-type]
    for worker in ("a", "b"):
        made.join(worker)
    return made


def test_a_dead_workers_step_is_dealt_again_before_any_new_one() -> None:
    made = ledger()
    assert made.deal() == [("a", Task(0, 0)), ("b", Task(1, 0))]
    made.gone("a")
    made.join("c")
    assert made.deal() == [("c", Task(0, 0))]


def test_a_word_of_a_push_that_was_not_dealt_or_came_twice_counts_for_nothing() -> None:
    made = ledger()
    made.deal()
    assert not made.arrive("b", 0) and not made.arrive("x", 0)
    assert made.arrive("a", 0) and not made.arrive("a", 0)
    assert made.choose() == Task(0, 0)
    assert made.commit(Task(0, 0)) == 0 and made.choose() is None


def test_bounded_to_one_version_a_fast_worker_waits_for_the_slow_one() -> None:
    made = ledger(bound=1)
    made.deal()
    made.arrive("b", 1)
    made.commit(Task(1, 0))
    assert made.deal() == [], "a may be one version behind by now, and no more"
    made.arrive("a", 0)
    assert made.commit(Task(0, 0)) == 1
    assert made.deal() == [("a", Task(2, 2)), ("b", Task(3, 2))]


def test_a_step_whose_worker_died_holds_the_others_though_it_is_computed_from_a_newer_version() -> None:
    """No worker is more than k steps ahead of the slowest, however often that one dies."""
    made = ledger(bound=2)
    made.join("c")
    made.deal()
    for worker, step in (("b", 1), ("c", 2)):
        made.arrive(worker, step)
        made.commit(Task(step, 0))
    made.gone("a")
    made.join("d")
    assert made.deal() == [("b", Task(0, 2))]
    assert made.deal() == [], "step 3 is 3 steps ahead of step 0"


def test_a_step_in_hand_when_the_generation_changed_is_kept_unless_it_was_applied() -> None:
    made = Ledger(10, [Task(0, 0)])
    made.join("a", Task(0, 0))
    made.join("b", Task(1, 0))
    assert made.hands == {"a": None, "b": Task(1, 0)}
    assert made.deal() == [("a", Task(2, 1))]


def test_what_was_computed_from_a_version_that_was_rolled_back_is_computed_again() -> None:
    made = Ledger(10, [Task(0, 0)])
    made.stored([Task(2, 2)])
    made.join("a", Task(1, 3))
    assert made.deal() == [("a", Task(1, 1))] and made.choose() is None


def test_a_push_that_lies_everywhere_counts_though_its_worker_is_gone() -> None:
    made = Ledger(10, [])
    made.stored([Task(0, 0)])
    made.join("b")
    assert made.choose() == Task(0, 0)
    made.commit(Task(0, 0))
    assert made.deal() == [("b", Task(1, 1))]


def test_in_a_replay_whoever_is_free_takes_what_comes_next_and_an_early_push_waits_its_turn() -> None:
    order = [Task(1, 0), Task(0, 0), Task(2, 1)]
    made = Ledger(3, [], replay=Replay(order))
    made.join("a")
    assert made.deal() == [("a", Task(1, 0))]
    made.join("b")
    assert made.deal() == [("b", Task(0, 0))]
    made.arrive("b", 0)
    assert made.choose() is None, "step 1 is first"
    assert made.deal() == [], "version 1 is not there yet"
    made.arrive("a", 1)
    made.commit(Task(1, 0))
    assert made.choose() == Task(0, 0)
    assert made.deal() == [("a", Task(2, 1))]


def test_where_the_repeated_order_ends_pushes_count_as_they_arrive() -> None:
    """The order was saved amid the job: step 1 had not counted yet."""
    made = Ledger(4, [], replay=Replay([Task(0, 0), Task(2, 0)]))
    made.join("a")
    made.join("b")
    assert made.deal() == [("a", Task(0, 0)), ("b", Task(2, 0))]
    for worker, task in (("b", Task(2, 0)), ("a", Task(0, 0))):
        made.arrive(worker, task.step)
    assert made.choose() == Task(0, 0)
    made.commit(Task(0, 0))
    assert made.deal() == [], "all that is repeated is under way"
    made.commit(Task(2, 0))
    assert made.deal() == [("a", Task(1, 2)), ("b", Task(3, 2))]
    made.arrive("b", 3)
    assert made.choose() == Task(3, 2)


class Counted(list[Task]):
    """How often one of its entries was looked at."""

    looks = 0

    def __getitem__(self, at: Any) -> Any:
        assert isinstance(at, int), "no copies"
        self.looks += 1
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        raise AssertionError("from one end to the other, at every step")


@pytest.mark.parametrize("straggler", [False, True])
def test_a_step_of_a_long_replay_takes_no_longer_than_one_of_a_short_replay(straggler: bool) -> None:
    """What remained of the order was copied and searched at every step: 8 ms of one of 100,000."""
    order = [Task(step, max(0, step - 2)) for step in range(5000)]
    order[-1] = Task(4999, 0) if straggler else order[-1]
    replay = Replay(order)
    replay.order = counted = Counted(order)
    made = Ledger(5000, [], replay=replay)
    made.join("a")
    made.join("b")
    for version, task in enumerate(order[:50]):
        made.deal()
        for worker in ("a", "b"):
            if (hand := made.hands[worker]) is not None and hand.step != 4999:
                made.arrive(worker, hand.step)
        assert made.choose() == task
        made.commit(task)
        assert replay.needs(version, version)
        assert replay.needs(version, version + 3) == (straggler and version == 0)
        assert replay.ahead(task, version) and not replay.ahead(task, version + 1)
    assert counted.looks < 50 * 40


@given(st.integers())
def test_what_a_replay_says_of_an_order_is_what_a_look_through_it_says(seed: int) -> None:
    """Whoever is free gets the first task that is not over, not under way, and of a version that is there."""
    draw = random.Random(seed)
    order = [Task(step, draw.randint(0, step)) for step in range(draw.randint(1, 12))]
    replay, made = Replay(order), Ledger(len(order), [], replay=Replay(order))
    for worker in "abc":
        made.join(worker)
    while made.version < len(order):
        version, busy = made.version, set(made.under_way)
        left = [t for t in order[version:] if t not in busy and t.version <= version]
        free = [w for w, hand in made.hands.items() if hand is None]
        assert made.deal() == list(zip(free, left, strict=False))
        assert all(replay.ahead(t, version) == (t in order[version:]) for t in order)
        needed = {t.version for t in order[version:]}
        assert all(replay.needs(old, version) == (old in needed) for old in range(len(order)))
        worker, task = draw.choice([(w, t) for w, t in made.hands.items() if t is not None] or [("a", None)])
        if task is not None and draw.random() < 0.7:
            made.arrive(worker, task.step)
        elif task is not None:
            made.gone(worker)
            made.join(worker)
        while (chosen := made.choose()) is not None:
            made.commit(chosen)


def test_a_part_that_comes_twice_is_kept_once_and_other_servers_make_it_useless() -> None:
    shelf: Shelf[str] = Shelf()
    shelf.stay(("s0", "s1"))
    shelf.put(Task(0, 0), "first")
    shelf.put(Task(0, 0), "again")
    shelf.stay(("s0", "s1"))
    assert shelf.parts == {Task(0, 0): "first"}
    shelf.stay(("s0", "s2"))
    assert not shelf.parts


def test_only_what_every_server_has_was_delivered() -> None:
    a, b, c = Task(0, 0), Task(1, 0), Task(2, 0)
    assert everywhere([[b, a, c], [a, b]]) == [b, a]
    delivery = Delivery(a, {"s0", "s1"})
    assert not delivery.acknowledged("s0", a) and not delivery.acknowledged("s1", b)
    assert delivery.acknowledged("s1", a) and not delivery.acknowledged("s1", a)
