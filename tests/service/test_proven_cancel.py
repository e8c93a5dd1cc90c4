"""Cancelled is written with a receipt: everything was searched, or it says that this could not be done."""

import json
from typing import Any

import pytest

from elastrain.service import reconciler
from elastrain.service.auth import Actor
from elastrain.service.decide import SWEEP_S, Action
from elastrain.service.errors import Conflict, Forbidden, Gone
from elastrain.service.sweeps import AT_MOST
from world import ADMIN, Driver, World

# what is decided here does not depend on the database; test_cancel.py goes the same ways on both
pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
MEMBER = Actor("t-member", "maria", "member", "default")


def prints(*nodes: dict[str, Any], unsearched: tuple[str, ...] = ()) -> str:
    """The log of a search."""
    said = {"nodes": [{"left": [], "pids": [], "seconds": 0.1} | node for node in nodes]}
    return "2026-11-30 INFO\nELASTRAIN-RECEIPT " + json.dumps(
        said | {"unsearched": unsearched, "seconds": 0.3}
    )


def worker_on(driver: Driver, node: str) -> None:
    driver.post({"kind": "worker", "id": "w1", "group": "g1", "node": node, "pid": 40, "state": "active"})


def killed_while_cancelling(world: World, node: str = "n1") -> str:
    """The driver is gone, and has said nothing."""
    id, driver = world.running()
    worker_on(driver, node)
    world.cancel(id)
    driver.exits("FAILED", "killed by signal 9")
    return id


def test_a_driver_that_vouched_for_its_processes_is_believed_once_it_is_gone(world: World) -> None:
    id, driver = world.running()
    worker_on(driver, "n1")
    world.cancel(id)
    node = {"node": "n1", "pids": [41], "left": [], "seconds": 0.2}
    receipt = {"nodes": [node], "unsearched": [], "seconds": 0.4}
    driver.post({"kind": "outcome", **driver.writes_outcome("cancelled", receipt=receipt)})
    world.round()
    assert (world.status(id), world.job(id)["receipt"]) == ("cancelling", None)
    driver.exits()
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["receipt"]["proven"]) == ("cancelled", "user_request", True)
    assert job["receipt"]["nodes"] == [{"node": "n1", "pids": [41], "seconds": 0.2}]
    (event,) = world.events(id, "attempt.receipt")
    assert event["message"] == (
        "Every process of attempt 1 is gone: 1 node searched, 1 process left behind and ended (0.4 s)"
    )
    assert world.ray.searches == []


def test_a_driver_that_could_not_search_everywhere_is_followed_by_a_search(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    receipt = {"nodes": [], "unsearched": ["n1"], "seconds": 20.0}
    driver.post({"kind": "outcome", **driver.writes_outcome("cancelled", receipt=receipt)})
    driver.exits()
    world.round()
    assert (world.status(id), len(world.ray.searches)) == ("cancelling", 1)
    world.round()
    assert world.status(id) == "cancelled"


def test_what_a_killed_driver_left_is_searched_for_before_anything_is_called_cancelled(world: World) -> None:
    id = killed_while_cancelling(world)
    world.ray.finds = [prints({"node": "n1", "pids": [41, 42]})]
    world.round()
    assert (world.status(id), world.job(id)["receipt"]) == ("cancelling", None)
    (search,) = world.ray.searches
    installation = world.ray.launches[0].submission_id.partition("-")[0]
    assert search.submission_id == f"{installation}-{id}-1-sweep-1"
    assert search.entrypoint.endswith(f"-m elastrain.trainers.launching.ray_sweep {installation}/{id}/1")
    assert search.env == {} and world.ray.launches[0].env["ELASTRAIN_ATTEMPT"] == f"{installation}/{id}/1"
    world.round()
    job = world.job(id)
    assert (job["status"], job["receipt"]["proven"]) == ("cancelled", True)
    assert [node["pids"] for node in job["receipt"]["nodes"]] == [[41, 42]]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (prints({"node": "n1"}, unsearched=("n2",)), "node n2 did not answer"),
        (prints({"node": "n1", "left": [7]}), "on node n1 the system does not let go of process 7"),
        ("Traceback (most recent call last)", "the search itself failed"),
        ("ELASTRAIN-RECEIPT {", "the search itself failed"),
    ],
)
def test_a_search_with_open_points_is_repeated_and_the_job_says_why(
    world: World, first: str, said: str
) -> None:
    id = killed_while_cancelling(world)
    world.ray.finds = [first]
    world.round()
    world.round()
    assert world.status(id) == "cancelling" and said in world.job(id)["message"]
    world.round(30)
    world.round()
    assert (world.status(id), world.job(id)["message"], len(world.ray.searches)) == ("cancelled", None, 2)


def test_a_search_that_hangs_is_stopped_and_begun_anew(world: World) -> None:
    id = killed_while_cancelling(world)
    world.round()
    search = world.ray.searches[0].submission_id
    world.ray.set(search, "RUNNING")
    world.ray.printed.clear()
    world.round(SWEEP_S / 2)
    assert world.ray.stops == [] and world.status(id) == "cancelling"
    world.round(SWEEP_S)
    assert world.ray.stops == [search]
    world.round(30)
    world.round()
    assert (world.status(id), len(world.ray.searches)) == ("cancelled", 2)


def test_a_cancel_waits_for_its_proof_as_long_as_it_takes(world: World) -> None:
    id = killed_while_cancelling(world)
    world.ray.finds = ["nothing"] * 3 * AT_MOST
    for _ in range(6 * AT_MOST):
        world.round(60)
    assert world.status(id) == "cancelling"
    world.round(60)
    world.round(60)
    assert world.status(id) == "cancelled"


def test_a_node_that_left_the_cluster_leaves_the_receipt_unproven(world: World) -> None:
    id = killed_while_cancelling(world, node="n9")
    world.round()
    world.round()
    receipt = world.job(id)["receipt"]
    assert (world.status(id), receipt["proven"], receipt["unsearched"]) == ("cancelled", False, ["n9"])


def test_a_driver_that_was_not_let_in_has_left_nothing_to_search_for(world: World) -> None:
    id = world.submit()
    world.round()
    world.cancel(id)
    world.round()
    world.round()
    receipt = world.job(id)["receipt"]
    assert (world.status(id), receipt["proven"], world.ray.searches) == ("cancelled", True, [])
    assert "had started nothing" in receipt["message"]


def test_a_job_whose_driver_was_killed_goes_on_while_what_it_left_is_searched_for(world: World) -> None:
    id, driver = world.running()
    worker_on(driver, "n1")
    driver.exits("FAILED", "killed by signal 9")
    world.ray.finds = [prints({"node": "n1", "pids": [41]})]
    world.round()
    assert (world.job(id)["attempt"], len(world.ray.launches)) == (2, 2)
    world.round()
    world.round()
    assert [event["data"]["nodes"][0]["pids"] for event in world.events(id, "attempt.receipt")] == [[41]]
    second = world.driver(id)
    second.claim()
    second.ends("succeeded")
    world.round()
    assert (world.status(id), len(world.ray.searches)) == ("succeeded", 1)


def test_a_search_for_a_job_that_goes_on_is_given_up_after_some_tries(world: World) -> None:
    id, driver = world.running()
    worker_on(driver, "n1")
    driver.exits("FAILED")
    world.ray.finds = [prints({"node": "n2"}, unsearched=("n1",))] * 2 * AT_MOST
    for _ in range(3 * AT_MOST):
        world.round(60)
    assert len(world.ray.searches) == AT_MOST
    (event,) = world.events(id, "attempt.receipt")
    assert not event["data"]["proven"] and event["data"]["unsearched"] == ["n1"]


def test_a_cancel_that_comes_between_the_look_and_the_writing_waits_for_the_search(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, _ = world.running()
    for _ in range(2):  # after the second loss it waits before it goes on
        driver = world.driver(id)
        driver.claim()
        driver.exits("FAILED")
        world.round()
    world.ray.finds = ["nothing"]
    world.ask("pause", id)

    def decide(*seen: Any) -> Any:
        decision = reconciler_decide(*seen)
        if decision.action is Action.FINISH:
            world.cancel(id)
        return decision

    reconciler_decide = reconciler.decide
    with monkeypatch.context() as patch:
        patch.setattr(reconciler, "decide", decide)
        world.round()
    assert world.status(id) == "cancelling"
    for _ in range(4):
        world.round(60)
    assert world.status(id) == "cancelled"


def test_a_driver_that_the_list_left_out_is_not_taken_for_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, driver = world.running()
    world.cancel(id)
    with monkeypatch.context() as patch:
        patch.setattr(world.ray, "jobs", list)
        world.round()
        world.round()
    assert world.status(id) == "cancelling"
    driver.ends("cancelled")
    world.round()
    assert world.status(id) == "cancelled"


def test_a_dozen_jobs_that_are_submitted_and_cancelled_leave_nothing_behind(world: World) -> None:
    for number in range(12):
        id = world.submit()
        if number % 3:
            world.round(0.2)
        if number % 3 == 2 and world.status(id) == "starting":
            world.driver(id).claim()
        world.cancel(id)
        world.round(0.2)
    for _ in range(10):
        world.round(5)
    assert world.control.counts()["cancelled"] == 12
    assert all(known.status != "RUNNING" for known in world.ray.known.values())
    last, _ = world.running(workers={"min": 2, "max": 2})
    assert world.status(last) == "running"


# -- where nothing can be proven


def test_a_cancel_whose_cluster_is_gone_ends_unproven(world: World) -> None:
    id, driver = world.running()
    worker_on(driver, "n1")
    world.cancel(id)
    world.ray.trouble = "the connection was refused"
    world.round(300)
    assert world.status(id) == "cancelling"
    world.ray.begin_anew("session_2")
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"]) == ("cancelled", "cluster_lost")
    assert (job["receipt"]["proven"], job["receipt"]["reason"]) == (False, "cluster_lost")
    assert job["receipt"]["unsearched"] == ["n1"] and "session_1" in job["receipt"]["message"]
    assert world.ray.searches == []


def test_a_search_whose_cluster_goes_meanwhile_ends_unproven(world: World) -> None:
    id = killed_while_cancelling(world)
    world.round()
    world.ray.begin_anew("session_2")
    world.round()
    assert (world.status(id), world.job(id)["reason"]) == ("cancelled", "cluster_lost")


def test_an_admin_may_end_what_no_cluster_can_prove_any_more(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    world.ray.trouble = "the connection was refused"
    world.round()
    with pytest.raises(Forbidden):
        world.control.cancel(id, actor=MEMBER, force=True)
    assert world.control.cancel(id, actor=ADMIN, force=True)["status"] == "cancelling"
    world.round()
    job = world.job(id)
    assert (job["status"], job["reason"], job["receipt"]["proven"]) == ("cancelled", "cluster_lost", False)
    assert "admin took it as gone" in job["receipt"]["message"]
    with pytest.raises(Gone):
        driver.post({"kind": "event", "type": "x", "message": "still here"})
    world.ray.trouble = None
    world.round()
    assert world.ray.stops == [driver.launch.submission_id], "it was still there after all"
    assert world.control.cancel(id, actor=ADMIN, force=True)["status"] == "cancelled"


def test_a_driver_that_vouched_for_the_others_is_itself_not_proven_gone_by_force(world: World) -> None:
    id, driver = world.running()
    world.cancel(id)
    driver.post({"kind": "outcome", **driver.writes_outcome("cancelled")})
    world.ray.trouble = "the connection was refused"
    world.control.cancel(id, actor=ADMIN, force=True)
    world.round()
    assert (world.status(id), world.job(id)["receipt"]["proven"]) == ("cancelled", False)


def test_force_ends_a_running_job_and_a_search_too(world: World) -> None:
    id, _ = world.running(workers={"min": 1, "max": 1})
    other, driver = world.running(workers={"min": 1, "max": 1})
    world.cancel(other)
    driver.exits()
    world.ray.finds = ["nothing"]
    world.round()
    world.round()
    for each in (id, other):
        world.control.cancel(each, actor=ADMIN, force=True)
    world.round()
    assert [world.status(each) for each in (id, other)] == ["cancelled", "cancelled"]


def test_force_does_not_overrule_a_success_that_was_recorded(world: World) -> None:
    id, driver = world.running()
    driver.writes_outcome("succeeded")
    world.ray.trouble = "the connection was refused"
    world.control.cancel(id, actor=ADMIN, force=True)
    world.round()
    assert world.status(id) == "succeeded"
    with pytest.raises(Conflict):
        world.control.cancel(id, actor=ADMIN, force=True)
