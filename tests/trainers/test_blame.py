"""Whose fault it is, decided from what is known."""

from __future__ import annotations

import pytest

from elastrain.trainers.membership.blame import Blame
from elastrain.trainers.membership.messages import Fault


def fault(
    step: int | None = 3, microbatch: int | None = 1, phase: str = "compute", at_once: bool = False
) -> Fault:
    return Fault(phase, "ValueError: bad", "", step, microbatch, at_once)


def test_the_same_place_on_two_workers_is_the_users() -> None:
    blame = Blame()
    assert not blame.raised("w0", fault(), alone=False)
    assert not blame.raised("w0", fault(), alone=False), "the same worker twice proves nothing about the code"
    assert blame.raised("w1", fault(), alone=False)


@pytest.mark.parametrize("other", [fault(step=4), fault(microbatch=2), fault(phase="evaluate")])
def test_another_place_is_another_matter(other: Fault) -> None:
    blame = Blame()
    assert not blame.raised("w0", fault(), alone=False)
    assert not blame.raised("w1", other, alone=False)


def test_the_only_worker_may_try_twice() -> None:
    blame = Blame()
    assert not blame.raised("w0", fault(), alone=True)
    assert blame.raised("w0", fault(), alone=True)


def test_two_failed_starts_are_the_users_whoever_made_them() -> None:
    blame = Blame()
    assert not blame.raised("w0", fault(None, None, "start"), alone=False)
    assert blame.raised("w1", fault(None, None, "start"), alone=False)


@pytest.mark.parametrize("certain", [fault(at_once=True), fault(phase="verdict")])
def test_some_need_no_second_look(certain: Fault) -> None:
    assert Blame().raised("w0", certain, alone=False)


def test_processes_that_vanish_at_one_step_in_three_generations_in_a_row() -> None:
    blame = Blame()
    assert blame.vanish("w0", (3, 1), generation=1) is None
    assert blame.vanish("w1", (3, 1), generation=1) is None, "at the same moment: one incident"
    assert blame.vanish("w1", (3, 0), generation=2) is None
    text = blame.vanish("w2", (3, 1), generation=5)
    assert text is not None
    assert "at step 3 (w0 in microbatch 1, w1 in microbatch 0, w2 in microbatch 1)" in text


def test_a_step_between_makes_it_a_new_story() -> None:
    blame = Blame()
    for generation, step in enumerate((3, 3, 4, 4, 3, 3)):
        assert blame.vanish("w0", (step, 0), generation) is None
