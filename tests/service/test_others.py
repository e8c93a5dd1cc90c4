"""What is used by others than our jobs, though Ray and the drivers tell of it at different times."""

from elastrain.service.jobs import Reason
from elastrain.service.scheduling import Ask, Node, Stage, Wait, plan
from elastrain.service.scheduling.facts import others_of


def seen(**used: float) -> list[dict[str, object]]:
    return [
        {"id": id, "alive": True, "resources": {"CPU": 8.0}, "used": {"CPU": cpu}} for id, cpu in used.items()
    ]


def job(workers: int, *places: str) -> Ask:
    held = {"held": workers, "holds": workers, "places": places}
    return Ask("j", "j", 1, 8, 1, {"CPU": 1.0}, stage=Stage.RUNNING, **held)  # type: ignore[arg-type]


def test_what_our_workers_use_is_not_others() -> None:
    assert others_of(seen(a=2, b=3), [job(2, "a", "a")], {}, {}) == {"a": {}, "b": {"CPU": 3.0}}


def test_workers_that_nobody_has_told_of_yet_are_not_others_either() -> None:
    assert others_of(seen(a=2, b=2), [job(4)], {}, {}) == {"a": {}, "b": {}}
    assert others_of(seen(a=3, b=3), [job(4)], {}, {}) == {"a": {"CPU": 1.0}, "b": {"CPU": 1.0}}
    assert others_of(seen(a=3), [job(2)], {"CPU": 1.0}, {}) == {"a": {}}, "nor is a driver"


def test_workers_that_are_gone_hide_nobody() -> None:
    assert others_of(seen(a=1, b=2), [job(2, "a", "a")], {}, {}) == {"a": {}, "b": {"CPU": 1.0}}


def test_what_a_job_has_just_given_back_is_not_others() -> None:
    assert others_of(seen(a=3), [], {}, {"CPU": 2.0}) == {"a": {"CPU": 1.0}}


def test_a_job_for_which_others_leave_no_room_waits_and_is_not_said_to_be_too_large() -> None:
    crowded = Node("a", {"CPU": 2.0}, others={"CPU": 2.0})
    waits = plan([Ask("j", "j", 2, 2, 1, {"CPU": 1.0})], [crowded]).answers["j"]
    assert isinstance(waits, Wait) and (waits.reason, waits.short_of) == (Reason.NO_CAPACITY, 2)
