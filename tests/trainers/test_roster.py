"""How many groups there should be, and which."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastrain.trainers.membership.roster import BACKOFF_S, Roster, State


def roster(groups: int, per_group: int = 1) -> Roster:
    made = Roster(per_group)
    for slot in range(groups):
        made.add_group(slot)
    return made


def test_workers_are_numbered_across_groups() -> None:
    assert [g.workers for g in roster(2, per_group=3).groups.values()] == [
        ("w0", "w1", "w2"),
        ("w3", "w4", "w5"),
    ]


def test_a_slot_whose_group_is_dying_gives_its_resources_back_first() -> None:
    made = roster(3)
    made.groups["g1"].stopping = True
    assert list(made.missing_slots(3, now=0.0)) == []
    made.groups["g1"].ended = True
    assert list(made.missing_slots(3, now=0.0)) == [1]


def test_a_slot_waits_until_its_time_has_come() -> None:
    made = roster(1)
    made.groups["g0"].ended = True
    assert made.charge(made.groups["g0"], "exit code 1", now=10.0) is False
    assert list(made.missing_slots(1, now=10.9)) == []
    assert list(made.missing_slots(1, now=11.0)) == [0]


def test_the_surplus_is_taken_from_the_highest_slots() -> None:
    made = roster(4)
    assert [g.id for g in made.surplus(2)] == ["g3", "g2"]
    made.groups["g3"].leaving = True
    assert [g.id for g in made.surplus(2)] == ["g2"]


def test_a_leaving_group_is_wanted_again_unless_its_slot_was_given_away() -> None:
    made = roster(2)
    made.groups["g1"].leaving = True
    assert [g.id for g in made.wanted_again(2)] == ["g1"]
    assert made.wanted_again(1) == []
    made.add_group(1)
    assert made.wanted_again(2) == []


def test_a_group_joins_only_as_a_whole() -> None:
    made = roster(1, per_group=2)
    for worker in made.workers.values():
        worker.connected = True
    made.workers["w0"].state = State.READY
    assert made.joiners(1) == []
    made.workers["w1"].state = State.READY
    assert [w.id for w in made.joiners(1)] == ["w0", "w1"]
    made.groups["g0"].leaving = True
    assert made.joiners(1) == []


@given(st.lists(st.booleans(), max_size=30))
def test_a_crash_loop_is_five_failures_without_a_committed_step_between(committed: list[bool]) -> None:
    made = Roster(1)
    in_a_row = 0
    for did in committed:
        group = made.add_group(0)
        group.committed, group.ended = did, True
        in_a_row = 0 if did else in_a_row + 1
        assert made.charge(group, "exit code 1", now=100.0) == (in_a_row >= 5)
        assert made.slots[0].not_before == 100.0 + BACKOFF_S[min(in_a_row, 4)]
        assert len(made.slots[0].causes) == in_a_row
        if in_a_row == 5:
            return


@given(st.integers(0, 6), st.integers(0, 6), st.sets(st.integers(0, 5)))
def test_the_target_is_met_exactly(groups: int, wanted: int, ended: set[int]) -> None:
    made = roster(groups)
    for number in ended & set(range(groups)):
        made.groups[f"g{number}"].ended = True
    for slot in list(made.missing_slots(wanted, now=0.0)):
        made.add_group(slot)
    for group in made.surplus(wanted):
        group.leaving = True
    assert len({g.slot for g in made.serving()}) == len(made.serving()) == wanted
