"""Who computes what, as the measured speeds say."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.membership.balance import Balance, Pace, share_out

speeds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8)


def workers(count: int) -> list[str]:
    return [f"w{n}" for n in range(count)]


def balance(seconds: Sequence[float]) -> Balance:
    """Of workers whose speeds are known; 0: not yet."""
    ids = workers(len(seconds))
    return Balance(ids, Pace({w: s for w, s in zip(ids, seconds, strict=True) if s}, noise=0.01))


# ---- the assignment of a step ------------------------------------------------------------------


@st.composite
def done_before(draw: st.DrawFn) -> tuple[int, list[float], list[list[int]]]:
    """(microbatches, seconds per rank, which microbatches each rank has already)."""
    count, seconds = draw(st.integers(1, 40)), draw(speeds)
    holder = draw(st.lists(st.integers(-1, len(seconds) - 1), min_size=count, max_size=count))
    return count, seconds, [[j for j in range(count) if holder[j] == r] for r in range(len(seconds))]


@given(done_before())
def test_every_microbatch_is_computed_by_exactly_one_member(
    case: tuple[int, list[float], list[list[int]]],
) -> None:
    count, seconds, done = case
    dealt = balance(seconds).deal(count, done)
    assert sorted(j for share in (*dealt, *done) for j in share) == list(range(count))
    missing = [j for share in dealt for j in share]
    assert missing == sorted(missing), "contiguous runs of what is missing, by rank"


@given(done_before(), st.sampled_from([1, 2, 4]))
def test_a_unit_is_computed_by_one_member_alone(
    case: tuple[int, list[float], list[list[int]]], unit: int
) -> None:
    count, seconds, kept = case
    units = -(-count // unit)
    done = [[j for u in d if u < units for j in range(u * unit, min((u + 1) * unit, count))] for d in kept]
    dealt = balance(seconds).deal(count, done, unit)
    assert sorted(j for share in (*dealt, *done) for j in share) == list(range(count))
    of = {j: rank for rank, share in enumerate(dealt) for j in share}
    assert all(of.get(j) == of.get(j - j % unit) for j in range(count))


@given(st.integers(1, 8), st.integers(1, 40))
def test_workers_of_equal_speed_or_none_known_get_nearly_equal_runs(members: int, count: int) -> None:
    for seconds in (0.0, 0.3):
        sizes = [len(share) for share in balance([seconds] * members).deal(count)]
        assert sum(sizes) == count
        assert max(sizes) - min(sizes) <= 1


@given(speeds, st.integers(1, 40))
def test_no_other_assignment_is_done_sooner(seconds: list[float], count: int) -> None:
    shares = share_out(seconds, count)
    end = max(n * s for n, s in zip(shares, seconds, strict=True))
    # Any other assignment that ends before `end` gives nobody so many that it takes that long: not enough.
    sooner = [max(n for n in range(count + 1) if n == 0 or n * s < end) for s in seconds]
    assert sum(sooner) < count


def test_after_a_death_what_is_missing_goes_to_whoever_is_done_with_it_first() -> None:
    """What they had already costs them nothing any more."""
    done = [[0, 1, 2, 3], [4, 5], []]
    assert [len(s) for s in balance([1.0, 1.0, 1.0]).deal(12, done)] == [2, 2, 2]
    assert [len(s) for s in balance([1.0, 1.0, 4.0]).deal(12, done)] == [3, 3, 0]


def test_a_joiner_is_taken_to_be_as_fast_as_the_worker_in_the_middle() -> None:
    assert [len(s) for s in balance([1.0, 1.0, 3.0, 0.0]).deal(20)] == [6, 6, 2, 6]


# ---- over many steps ---------------------------------------------------------------------------

Cost = Callable[[random.Random], float]


def even(rng: random.Random) -> float:
    return 1.0


def uneven(rng: random.Random) -> float:
    return 10.0 if rng.random() < 0.1 else 1.0


def train(
    members: int,
    count: int,
    steps: int,
    slow: Callable[[int, int], float] = lambda step, rank: 1.0,
    cost: Cost = even,
    seed: int = 0,
    noise: float = 0.1,
) -> list[list[int]]:
    """The shares of each step, dealt and measured as the members do it. slow(step, rank): times."""
    rng, ids = random.Random(seed), workers(members)
    everyone = [Balance(ids, Pace()) for _ in range(2)]
    history = []
    for step in range(steps):
        dealt, *others = (b.deal(count) for b in everyone)
        assert all(o == dealt for o in others)
        costs = [0.01 * cost(rng) * (1 + noise * abs(rng.gauss(0, 1))) for _ in range(count)]
        seconds = {
            ids[r]: [len(s), slow(step, r) * sum(costs[j] for j in s)] for r, s in enumerate(dealt) if s
        }
        record = json.loads(json.dumps({"workers": ids, "seconds": seconds}))
        for member in everyone:
            member.observe(record)
        history.append([len(s) for s in dealt])
    return history


def changes(history: list[list[int]]) -> int:
    return sum(a != b for a, b in pairwise(history))


def test_a_worker_slowed_to_a_third_gets_a_third_of_the_others_work_and_gets_it_back() -> None:
    history = train(3, 21, 160, lambda step, rank: 3.0 if rank == 1 and 40 <= step < 100 else 1.0)
    assert history[39] == [7, 7, 7]
    assert history[50] == [9, 3, 9]
    assert 6 <= history[-1][1] <= 7
    assert changes(history) <= 12


@pytest.mark.parametrize("seed", range(5))
def test_calm_workers_keep_their_microbatches(seed: int) -> None:
    assert changes(train(3, 16, 300, seed=seed)) <= 3


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("members", "count"), [(2, 16), (3, 16), (8, 32)])
def test_samples_of_very_different_cost_do_not_send_everyone_other_microbatches(
    members: int, count: int, seed: int
) -> None:
    """A tenth of them, at random, costs ten times as much."""
    history = train(members, count, 300, cost=uneven, seed=seed)
    assert changes(history) <= 20
    assert max(abs(n - count / members) for shares in history for n in shares) <= count / members / 2 + 1
    for rank in range(members):
        assert sum(shares[rank] for shares in history) == pytest.approx(300 * count / members, rel=0.2)


@pytest.mark.parametrize("seed", range(5))
def test_a_slow_worker_is_found_among_samples_of_very_different_cost(seed: int) -> None:
    slow = train(3, 16, 300, lambda step, rank: 3.0 if rank == 2 else 1.0, cost=uneven, seed=seed)
    assert 2 <= sum(shares[2] for shares in slow[100:]) / 200 <= 3


def test_a_worker_too_slow_for_anything_is_tried_again_now_and_then_and_comes_back() -> None:
    history = train(3, 8, 800, lambda step, rank: 20.0 if rank == 0 and 20 <= step < 400 else 1.0)
    idle = [shares[0] == 0 for shares in history]
    assert sum(idle[40:400]) > 340
    assert not all(idle[40:400]), "it is measured again, or nobody would learn that it recovered"
    assert sum(idle[700:]) == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_hiccup_costs_a_worker_its_microbatches_for_a_few_steps_only(seed: int) -> None:
    """Something stops it for a hundred times as long as a step takes, once."""
    history = train(3, 8, 80, lambda step, rank: 200.0 if step == 30 and rank == 1 else 1.0, seed=seed)
    assert all(shares[1] >= 1 for shares in history)
    assert all(shares[1] >= 2 for shares in history[40:])


def test_the_first_step_of_a_worker_says_nothing_of_its_speed() -> None:
    """Caches are cold, and the memory of its gradients is new."""
    history = train(2, 8, 10, lambda step, rank: 20.0 if step == 0 and rank == 0 else 1.0, noise=0.0)
    assert changes(history) == 0


# ---- between generations -----------------------------------------------------------------------


def test_the_members_of_a_new_generation_know_what_the_coordinator_knows() -> None:
    pace = Pace()
    for _ in range(30):
        pace.observe({"workers": workers(2), "seconds": {"w0": [4, 0.4], "w1": [4, 1.2]}})
    said: dict[str, Any] = json.loads(json.dumps(pace.to_json(["w1", "w9", "w0"])))
    assert said["seconds"] == [pytest.approx(0.3, rel=0.01), 0, pytest.approx(0.1, rel=0.01)]
    new = [Balance(["w1", "w9", "w0"], Pace.from_json(said, ["w1", "w9", "w0"])) for _ in range(2)]
    assert [len(s) for s in new[0].deal(14)] == [2, 6, 6]
    assert new[0].deal(14) == new[1].deal(14)


def test_workers_that_are_gone_are_forgotten() -> None:
    pace = Pace()
    for ids in (["w0", "w1"], ["w0", "w1"], ["w0", "w2"], ["w0", "w2"]):
        pace.observe({"workers": ids, "seconds": {w: [1, 0.1] for w in ids}})
    assert set(pace.estimates) == {"w0", "w2"}


@given(st.lists(st.lists(st.floats(0, 1e9), min_size=3, max_size=3), max_size=20))
def test_whatever_the_clocks_say_everything_is_dealt(times: list[list[float]]) -> None:
    one = Balance(workers(3), Pace())
    for seconds in times:
        record = {"workers": workers(3), "seconds": {f"w{r}": [2, s] for r, s in enumerate(seconds)}}
        one.observe(record)
        assert [j for share in one.deal(7) for j in share] == list(range(7))
