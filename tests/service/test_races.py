"""Pause, resume, retry and checkpoint, each against what may happen at the same moment."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from elastrain.service.errors import Conflict, Forbidden
from elastrain.service.jobs import Desired, Status
from elastrain.service.store import jobs, keys
from world import ADMIN, World


def statuses(world: World, id: str) -> list[str]:
    return [item["status"] for item in world.job(id)["transitions"]]


def restarted(world: World, id: str) -> Any:
    """The driver of the attempt that follows, running."""
    world.round()
    world.round()
    driver = world.driver(id)
    driver.claim()
    driver.post({"kind": "progress", "status": "running", "step": 0})
    return driver


# -- pause and resume


def test_a_paused_job_gives_everything_back_and_is_resumed_under_its_id(world: World) -> None:
    id, driver = world.running()
    assert world.ask("pause", id)["status"] == "pausing"
    assert driver.desired()["desired"] == "pause"
    driver.saves(40)
    driver.ends("paused", step=40)
    world.round()
    job = world.job(id)
    assert (job["status"], job["workers"]["target"], world.control.open_attempts()) == ("paused", 0, [])
    world.round(100_000)
    assert world.status(id) == "paused"
    job = world.ask("resume", id)
    assert (job["status"], job["reason"], job["desired"]) == ("queued", "resumed", "run")
    assert restarted(world, id).attempt == 2
    assert world.job(id)["counters"]["retries_left"] == 3


@pytest.mark.parametrize(("recorded", "end"), [(False, "paused"), (True, "succeeded")])
def test_a_driver_that_never_comes_to_an_end_of_its_pause_is_ended_by_ray_and_nothing_is_guessed(
    world: World, recorded: bool, end: str
) -> None:
    id, driver = world.running()
    driver.saves(40)
    world.ask("pause", id)
    world.round(world.settings.pause_grace_s - 10)
    assert world.ray.stops == []
    if recorded:  # and then it hangs, before anybody hears of it
        driver.writes_outcome("succeeded")
    world.round(20)
    world.round()
    assert world.ray.stops == [driver.launch.submission_id]
    assert [item["data"]["attempt"] for item in world.events(id, "attempt.stopping")] == [1]
    assert "900 s of the request to pause" in world.events(id, "attempt.stopping")[0]["message"]
    world.round()
    assert (world.status(id), world.job(id)["workers"]["target"]) == (end, 0)
    assert world.job(id)["counters"]["retries_left"] == 3


def test_a_preempted_driver_that_hangs_gives_its_workers_back_after_the_deadline_of_a_pause(
    world: World,
) -> None:
    id, driver = world.running(workers={"min": 2, "max": 2})
    urgent = world.submit(priority=5, workers={"min": 2, "max": 2})
    world.round()
    assert (world.status(id), driver.desired()["desired"]) == ("pausing", "preempt")
    world.round(world.settings.pause_grace_s + 1)
    for _ in range(4):
        world.round()
    assert (world.status(id), world.job(id)["reason"]) == ("queued", "preempted")
    assert world.status(urgent) == "starting"


def test_a_job_that_is_paused_while_queued_never_starts(world: World) -> None:
    id = world.submit()
    assert world.ask("pause", id)["status"] == "paused"
    world.round()
    assert (world.status(id), world.ray.launches) == ("paused", [])
    world.ask("resume", id)
    world.round()
    assert world.status(id) == "starting"


def test_a_pause_that_comes_between_the_plan_and_its_writing_holds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastrain.service import placement

    id, plan = world.submit(), placement.plan

    def slow_plan(*given: Any) -> Any:
        answers = plan(*given)
        world.ask("pause", id)
        return answers

    monkeypatch.setattr(placement, "plan", slow_plan)
    world.round()
    assert (world.status(id), world.ray.launches) == ("paused", [])


def test_a_pause_on_the_last_step_leaves_the_success_that_was_recorded_first(world: World) -> None:
    id, driver = world.running()
    body = driver.writes_outcome("succeeded")
    assert world.ask("pause", id)["status"] == "pausing"
    driver.exits()
    world.round()
    assert world.status(id) == "succeeded"
    assert [item["data"]["asked"] for item in world.events(id, "job.request_overtaken")] == ["pause"]
    driver.post({"kind": "outcome", **body})
    with pytest.raises(Conflict) as late:
        world.ask("pause", id)
    assert late.value.extra["allowed_actions"] == ["clone", "delete"]


def test_races_of_pause_against_success_have_one_end_each(world: World) -> None:
    world.ray.cluster[0].resources["CPU"] = 40
    for _ in range(6):
        id, driver = world.running(workers={"min": 1, "max": 1})
        with ThreadPoolExecutor(2) as pool:
            paused = pool.submit(world.ask, "pause", id)
            pool.submit(driver.ends, "succeeded").result()
        world.round()
        assert statuses(world, id)[-1] == "succeeded"
        assert paused.exception() is None or isinstance(paused.exception(), Conflict)


def test_a_cancel_while_pausing_ends_in_cancelled_whatever_the_driver_did(world: World) -> None:
    id, driver = world.running()
    world.ask("pause", id)
    assert world.cancel(id)["status"] == "cancelling"
    with pytest.raises(Conflict):
        world.ask("pause", id)
    driver.ends("paused", step=40)
    world.round()
    world.round()
    assert statuses(world, id)[-3:] == ["pausing", "cancelling", "cancelled"]


def test_a_cancel_and_a_resume_of_a_paused_job_at_once_end_in_cancelled(world: World) -> None:
    for _ in range(4):
        id = world.submit()
        world.ask("pause", id)
        with ThreadPoolExecutor(2) as pool:
            resumed = pool.submit(world.ask, "resume", id)
            pool.submit(world.cancel, id).result()
        world.round()
        assert world.status(id) == "cancelled" and world.ray.launches == []
        assert resumed.exception() is None or isinstance(resumed.exception(), Conflict)


def test_a_resume_while_pausing_takes_the_pause_back_and_the_job_goes_on_from_its_checkpoint(
    world: World,
) -> None:
    id, driver = world.running()
    world.ask("pause", id)
    job = world.ask("resume", id)
    assert (job["status"], job["reason"]) == ("pausing", "resume_requested")
    assert world.ask("resume", id)["status"] == "pausing"
    driver.saves(40)
    driver.ends("paused", step=40)  # it had heard of the pause only
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("queued", "resumed")
    assert restarted(world, id).attempt == 2
    assert world.ask("resume", id)["status"] == "running"


def test_a_pause_after_a_resume_while_pausing_holds(world: World) -> None:
    id, driver = world.running()
    for action in ("pause", "resume", "pause"):
        world.ask(action, id)
    assert world.ask("resume", id)["desired"] == "preempt"
    assert world.ask("pause", id)["desired"] == "pause"
    driver.ends("preempted", step=40)
    world.round()
    assert (world.status(id), world.job(id)["desired"]) == ("paused", "pause")


def test_a_preempted_job_that_is_paused_meanwhile_does_not_come_back_by_itself(world: World) -> None:
    id, driver = world.running()
    world.control.preempt_all("the service stops")
    assert world.ask("pause", id)["desired"] == "pause"
    driver.ends("preempted", step=40)
    world.round()
    assert world.status(id) == "paused"


def test_a_service_that_stops_while_a_job_is_pausing_leaves_it_paused(world: World) -> None:
    id, driver = world.running()
    world.ask("pause", id)
    assert world.control.preempt_all("the service stops") == []
    driver.ends("paused", step=40)
    assert world.status(id) == "paused"


def test_a_driver_that_dies_while_pausing_leaves_the_job_paused_with_no_retry_used(world: World) -> None:
    id, driver = world.running()
    driver.saves(30)
    world.ask("pause", id)
    driver.exits("FAILED", "killed by signal 9")
    world.round()
    job = world.job(id)
    assert (job["status"], job["attempt"], job["counters"]["retries_left"]) == ("paused", 1, 3)


def test_a_pause_before_the_claim_refuses_the_driver(world: World) -> None:
    id = world.submit()
    world.round()
    driver = world.driver(id)
    world.ask("pause", id)
    with pytest.raises(Forbidden):
        driver.claim()
    world.round()
    world.round()
    assert (world.status(id), world.ray.stops) == ("paused", [driver.launch.submission_id])


def test_a_pause_between_two_attempts_opens_no_other(world: World) -> None:
    id, _ = world.running()
    for _ in range(2):  # the second loss waits before the third attempt
        world.driver(id).exits("FAILED")
        world.round()
    world.ask("pause", id)
    world.round(60)
    assert (world.status(id), world.job(id)["attempt"]) == ("paused", 2)


def test_a_pause_while_ray_is_away_is_done_by_the_driver_and_a_resume_waits_for_ray(world: World) -> None:
    id, driver = world.running()
    world.ray.trouble = "the connection was refused"
    world.ask("pause", id)
    assert driver.desired()["desired"] == "pause"
    world.round()
    assert world.status(id) == "pausing"
    driver.writes_outcome("paused", step=40)
    world.round(20)
    assert world.status(id) == "paused"
    world.ask("resume", id)
    world.round()
    assert world.status(id) == "queued"
    world.ray.trouble = None
    driver.exits()
    assert restarted(world, id).attempt == 2


def test_a_pause_of_a_driver_that_has_not_started_waits_until_ray_is_back(world: World) -> None:
    id = world.submit()
    world.round()
    world.ray.trouble = "the connection was refused"
    world.ask("pause", id)
    world.round(300)
    assert world.status(id) == "pausing"
    world.ray.trouble = None
    world.round()
    world.round()
    assert world.status(id) == "paused"


def test_a_resumed_job_does_not_start_before_its_last_driver_has_left(world: World) -> None:
    id, driver = world.running()
    world.ask("pause", id)
    driver.post({"kind": "outcome", **driver.writes_outcome("paused", step=40)})
    world.ask("resume", id)
    world.round()
    world.round()
    assert (world.status(id), len(world.ray.launches)) == ("queued", 1)
    driver.exits()
    assert restarted(world, id).attempt == 2


# -- retry


def failed(world: World, **changes: Any) -> tuple[str, Any]:
    id, driver = world.running(**changes)
    driver.saves(40)
    driver.ends("failed", failed_by="user", message="NameError: x")
    return id, driver


def test_a_failed_job_is_retried_under_its_id_with_all_its_retries(world: World) -> None:
    id, _ = failed(world)
    assert world.job(id)["finished_at"] is not None
    job = world.ask("retry", id)
    assert (job["status"], job["reason"], job["finished_at"], job["failed_by"]) == (
        "queued",
        "retried",
        None,
        None,
    )
    driver = restarted(world, id)
    assert (driver.attempt, world.job(id)["counters"]["retries_left"]) == (2, 3)
    driver.ends("succeeded")
    assert " ".join(statuses(world, id)[3:]) == "failed queued starting running succeeded"
    with pytest.raises(Conflict):
        world.ask("retry", id)


def test_a_job_that_has_lost_all_its_attempts_is_retried_at_once_and_has_them_all_again(world: World) -> None:
    id, _ = world.running(retries=1)
    for _ in range(2):
        world.driver(id).exits("FAILED")
        world.round()
    assert world.job(id)["reason"] == "retries_exhausted"
    world.ask("retry", id)
    world.round()
    assert (world.status(id), world.job(id)["counters"]["retries_left"]) == ("starting", 1)


def test_a_user_who_resumes_does_not_wait_for_the_time_that_a_driver_that_gave_up_has_to(
    world: World,
) -> None:
    id, driver = world.running()
    driver.ends("preempted", step=12, message="1 of at least 2 workers for 60 s")
    world.ask("pause", id)
    world.ask("resume", id)
    world.round()
    assert world.status(id) == "starting"


def test_two_retries_at_once_make_one_attempt(world: World) -> None:
    id, _ = failed(world)
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda _: world.ask("retry", id)["status"], range(2)))
    assert answers == ["queued", "queued"]
    assert restarted(world, id).attempt == 2
    assert statuses(world, id).count("queued") == 2
    assert world.ask("retry", id)["status"] == "running"


def test_a_retry_while_the_failed_driver_is_still_leaving_waits_for_it(world: World) -> None:
    id, driver = world.running()
    driver.post({"kind": "outcome", **driver.writes_outcome("failed", failed_by="user", message="x")})
    world.ask("retry", id)
    world.round()
    assert (world.status(id), len(world.ray.launches)) == ("queued", 1)
    driver.exits()
    assert restarted(world, id).attempt == 2


def test_a_cancelled_job_is_retried_from_where_it_was(world: World) -> None:
    id, driver = world.running()
    driver.saves(40)
    world.cancel(id)
    driver.ends("cancelled")
    world.round()
    assert world.ask("retry", id)["status"] == "queued"
    assert restarted(world, id).attempt == 2
    world.cancel(id)
    assert world.status(id) == "cancelling"


# -- checkpoint now


def test_a_checkpoint_is_asked_for_by_number_and_acknowledged_by_it(world: World) -> None:
    id, driver = world.running()
    assert world.ask("checkpoint", id)["checkpoint_requests"] == {"asked": 1, "done": 0}
    assert world.ask("checkpoint", id)["checkpoint_requests"] == {"asked": 2, "done": 0}
    assert driver.desired()["checkpoint_no"] == 2
    driver.post({"kind": "checkpoint_done", "number": 2, "step": 17})
    driver.post({"kind": "checkpoint_done", "number": 1, "step": 16})
    driver.post({"kind": "checkpoint_done", "number": 9, "step": 17})  # nobody asked for that
    assert world.job(id)["checkpoint_requests"] == {"asked": 2, "done": 2}
    (said,) = world.events(id, "checkpoint.done")
    assert said["data"] == {"number": 2, "step": 17, "attempt": 1}


def test_a_request_for_a_checkpoint_outlives_the_driver_that_did_not_fulfil_it(world: World) -> None:
    id, driver = world.running()
    world.ask("checkpoint", id)
    driver.exits("FAILED")
    world.round()
    second = world.driver(id)
    desired = second.claim()["desired"]
    assert (desired["checkpoint_no"], desired["checkpoint_done"]) == (1, 0)


# -- the same request again


@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_a_repeated_request_gets_the_same_answer_and_writes_nothing(world: World, action: str) -> None:
    id, _ = world.running()
    first = world.ask(action, id)
    assert world.ask(action, id) == first


def test_a_key_makes_a_repeated_request_the_same_request_also_after_a_restart(world: World) -> None:
    id, _ = world.running()
    first = world.ask("checkpoint", id, "k")
    world.restart()
    assert world.ask("checkpoint", id, "k") == first
    assert world.ask("checkpoint", id, "other")["checkpoint_requests"]["asked"] == 2
    world.ask("pause", id, "k")  # another route
    assert world.status(id) == "pausing"


def test_a_key_that_another_request_holds_is_a_conflict_and_nothing_is_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(*_: Any) -> None:
        raise keys.KeyTaken("k")

    id, _ = world.running()
    monkeypatch.setattr(keys, "add", held)
    with pytest.raises(Conflict, match="under way") as refused:
        world.ask("checkpoint", id, "k")
    assert refused.value.code == "idempotency_key_in_use"
    assert world.job(id)["checkpoint_requests"] == {"asked": 0, "done": 0}


def test_many_requests_with_one_key_at_once_are_one(world: World) -> None:
    id, _ = world.running()
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: world.ask("checkpoint", id, "k"), range(6)))
    assert [answer["checkpoint_requests"]["asked"] for answer in answers] == [1] * 6
    assert world.job(id)["checkpoint_requests"]["asked"] == 1


def test_a_request_that_was_refused_is_not_remembered_under_its_key(world: World) -> None:
    id = world.submit()
    with pytest.raises(Conflict):
        world.ask("resume", id, "k")
    world.ask("pause", id)
    assert world.ask("resume", id, "k")["status"] == "queued"


PLACES = [
    *((status, Desired.RUN) for status in Status if status not in (Status.PAUSING, Status.PAUSED)),
    (Status.PAUSING, Desired.PAUSE),
    (Status.PAUSING, Desired.PREEMPT),
    (Status.PAUSED, Desired.PAUSE),
]


@pytest.mark.parametrize(("status", "desired"), PLACES, ids=lambda value: str(value))
def test_what_is_listed_as_allowed_is_done_and_all_else_refused_or_where_the_job_is_going_already(
    world: World, status: Status, desired: Desired
) -> None:
    acts: dict[str, Callable[[str], Any]] = {
        **{
            action: partial(world.ask, action)
            for action in ("cancel", "pause", "resume", "retry", "checkpoint")
        },
        "scale": lambda id: world.control.patch(id, {"workers": {"min": 1, "max": 3}}, actor=ADMIN),
        "clone": lambda id: world.control.clone(id, {}, actor=ADMIN),
        "delete": lambda id: world.control.delete(id, actor=ADMIN),
    }
    for action, act in acts.items():
        id = world.submit()
        with world.store.write() as tx:
            jobs.change(tx, id, status=status, desired=desired)
        before = world.job(id)
        if action in before["allowed_actions"]:
            act(id)
            continue
        try:
            act(id)
        except Conflict as refused:
            assert refused.extra["allowed_actions"] == before["allowed_actions"]
        assert world.job(id) == before, action


IMPOSSIBLE: list[tuple[str, Callable[[World], str]]] = [
    ("resume", lambda world: world.submit()),
    ("retry", lambda world: world.submit()),
    ("checkpoint", lambda world: world.submit()),
    ("resume", lambda world: world.running()[0]),
    ("retry", lambda world: world.running()[0]),
    ("pause", lambda world: failed(world)[0]),
    ("cancel", lambda world: failed(world)[0]),
    ("checkpoint", lambda world: failed(world)[0]),
]


@pytest.mark.parametrize(("action", "made"), IMPOSSIBLE)
def test_what_is_impossible_now_is_refused_with_what_is_possible(
    world: World, action: str, made: Callable[[World], str]
) -> None:
    id = made(world)
    before = world.job(id)
    with pytest.raises(Conflict) as refused:
        world.ask(action, id)
    assert refused.value.extra["allowed_actions"] == before["allowed_actions"]
    assert action not in before["allowed_actions"]
    assert world.job(id) == before
