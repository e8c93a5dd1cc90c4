"""What the scheduler says happens: jobs shrink, leave and come back, and nothing is promised twice."""

import json
from dataclasses import replace

import pytest

from elastrain.service.ray_jobs import RayNode
from elastrain.service.scheduling.ceiling import parse_ceiling
from elastrain.service.store import plans
from elastrain.service.store.plans import First, PlanRow
from elastrain.trainers.spec import support as spec_support
from world import ADMIN, SPEC, Driver, World


def holds(driver: Driver, target: int, held: int, **more: object) -> None:
    """What a driver says of its workers."""
    driver.post(
        {"kind": "progress", "status": "running", "workers_target": target, "workers_held": held, **more}
    )


def target(world: World, id: str) -> int:
    return int(world.job(id)["workers"]["target"])


def test_a_job_shrinks_for_one_that_waits_which_starts_once_the_workers_are_gone(
    world: World,
) -> None:
    big, driver = world.running(workers={"min": 1, "max": 2})
    holds(driver, 2, 2)
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    assert (target(world, big), driver.desired()["workers"]["target"]) == (1, 1)
    told = world.events(big, "job.target")[-1]
    assert told["data"]["from"] == 2 and small in told["message"] and "1 CPU" in told["message"]
    waiting = world.job(small)
    assert waiting["queue"]["position"] == 1 and waiting["queue"]["short_of"] == {"workers": 1}
    assert waiting["queue"]["blocked_by"] == (
        f"It needs at least 1 worker with 1 CPU each; it starts once {big} (digits) gave back what it lacks"
    )
    world.round(30)
    for held in (2, 1):  # from before it heard of the new target: it may still start another
        holds(driver, 2, held)
        world.round()
        assert world.status(small) == "queued", "two workers are counted as held"
    holds(driver, 1, 1)
    world.round()
    assert world.status(small) == "starting"
    world.driver(small).claim()
    world.driver(small)
    assert target(world, big) == 1


def test_what_was_granted_later_counts_as_taken_too(world: World) -> None:
    world.ray.cluster[:] = [RayNode("n1", True, {"CPU": 1.0}, {})]
    big, driver = world.running(workers={"min": 1, "max": 2})
    world.ray.cluster.append(RayNode("n2", True, {"CPU": 1.0}, {}))
    world.round(10)
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    assert target(world, big) == 1
    world.round()
    assert world.status(small) == "queued", "the driver has not said what it has"
    holds(driver, 1, 1)
    world.round()
    assert world.status(small) == "starting"


def test_a_killed_service_still_knows_what_is_not_back(world: World) -> None:
    _, driver = world.running(workers={"min": 1, "max": 2})
    holds(driver, 2, 2)
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    world.restart()
    world.round()
    assert world.status(small) == "queued"
    holds(driver, 1, 1)
    world.round()
    assert world.status(small) == "starting"


def test_what_a_user_takes_away_is_not_free_before_it_is_back(world: World) -> None:
    big, driver = world.running(workers={"min": 1, "max": 2})
    small = world.submit(name="small", workers={"min": 1, "max": 1}, priority=-1)
    world.control.patch(big, {"workers": {"max": 1}}, actor=ADMIN)
    world.round()
    assert world.status(small) == "queued"
    holds(driver, 1, 1)
    world.round()
    assert world.status(small) == "starting"


def test_a_raised_minimum_waits_for_room_and_training_goes_on_meanwhile(world: World) -> None:
    id, driver = world.running(workers={"min": 1, "max": 2})
    world.control.patch(id, {"workers": {"min": 3, "max": 3}}, actor=ADMIN)
    world.round()
    assert driver.desired()["workers"] == {"min": 2, "max": 3, "target": 2}
    world.ray.cluster.append(RayNode("n2", True, {"CPU": 1.0}, {}))
    world.round(10)
    assert driver.desired()["workers"] == {"min": 3, "max": 3, "target": 3}


def test_a_preempted_job_is_saved_leaves_and_comes_back_without_a_retry(world: World) -> None:
    low, driver = world.running(workers={"min": 2, "max": 2})
    urgent = world.submit(name="urgent", priority=5, workers={"min": 2, "max": 2})
    world.round()
    assert (world.status(low), world.job(low)["reason"]) == ("pausing", "preempt_requested")
    assert driver.desired()["desired"] == "preempt" and urgent in world.job(low)["message"]
    assert low in world.job(urgent)["queue"]["blocked_by"]
    world.round(5)
    assert world.status(urgent) == "queued", "the workers are not back"
    driver.saves(40)
    driver.ends("preempted", step=40)
    world.round()
    assert world.status(urgent) == "starting"
    world.round()
    job = world.job(low)
    assert (job["status"], job["reason"]) == ("queued", "preempted")
    assert job["queue"]["position"] == 1 and "beside the jobs that run" in job["queue"]["blocked_by"]
    second = world.driver(urgent)
    second.claim()
    second.ends("succeeded")
    world.round()
    world.round()
    job = world.job(low)
    assert (job["status"], job["attempt"], job["counters"]["retries_left"]) == ("starting", 2, 3)


def test_a_job_that_was_preempted_before_it_had_a_driver_comes_back_too(world: World) -> None:
    world.ray.full = True
    low = world.submit(workers={"min": 2, "max": 2})
    world.round()
    assert world.status(low) == "starting"
    urgent = world.submit(name="urgent", priority=5, workers={"min": 2, "max": 2})
    for _ in range(4):
        world.round()
    assert (world.status(low), world.status(urgent)) == ("queued", "starting")


def test_a_job_that_was_shrunk_grows_again_but_not_at_once(world: World) -> None:
    big, driver = world.running(workers={"min": 1, "max": 2})
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    holds(driver, 1, 1)
    world.round()
    other = world.driver(small)
    other.claim()
    other.ends("succeeded")
    world.round(10)
    assert target(world, big) == 1
    world.round(60)
    assert target(world, big) == 2


def test_the_place_in_the_queue_and_whom_a_job_waits_behind_are_told_without_writing_to_all(
    world: World,
) -> None:
    world.running(workers={"min": 2, "max": 2})
    first = world.submit(name="first", workers={"min": 2, "max": 2})
    others = [world.submit(name=f"n{i}", workers={"min": 1, "max": 1}) for i in range(3)]
    assert [world.job(id)["queue"]["position"] for id in (first, *others)] == [1, 2, 3, 4], "not planned yet"
    world.round()
    items = world.control.queue(actor=ADMIN)["items"]
    assert [item["id"] for item in items] == [first, *others]
    assert [item["position"] for item in items] == [1, 2, 3, 4]
    for item in items:
        assert item["blocked_by"] == world.job(item["id"])["queue"]["blocked_by"]
    before = [world.job(id)["since"] for id in others]
    world.round()
    assert [world.job(id)["since"] for id in others] == before


def test_of_two_services_that_planned_from_the_same_facts_one_writes(world: World) -> None:
    with world.store.read() as tx:
        seen = plans.read(tx)
    assert seen == PlanRow(0, 0.0, [], None)
    with world.store.write() as tx:
        plans.take_turn(tx, 0, ["a"], None, 1.0)
    with pytest.raises(plans.NotOurTurn), world.store.write() as tx:
        plans.take_turn(tx, 0, ["b"], None, 1.0)
    with world.store.write() as tx:
        plans.take_turn(tx, 1, ["c"], First("x", "x (a)", "2 workers"), 2.0)
    with pytest.raises(plans.NotOurTurn), world.store.write() as tx:
        plans.take_turn(tx, 1, ["d"], None, 2.0)
    with world.store.read() as tx:
        assert plans.read(tx) == PlanRow(2, 2.0, ["c"], First("x", "x (a)", "2 workers"))


def test_while_the_service_drains_nobody_shrinks_or_is_preempted(world: World) -> None:
    big, _ = world.running(workers={"min": 1, "max": 2})
    world.reconciler.admitting = False
    world.submit(name="urgent", priority=5, workers={"min": 2, "max": 2})
    world.round()
    assert (world.status(big), target(world, big)) == ("running", 2)


def test_what_others_use_on_the_cluster_is_left_to_them(world: World) -> None:
    world.ray.cluster[:] = [RayNode("n1", True, {"CPU": 4.0}, {"CPU": 3.0})]
    id = world.submit(workers={"min": 1, "max": 4})
    world.round()
    assert target(world, id) == 1
    driver = world.driver(id)
    driver.claim()
    driver.post({"kind": "worker", "id": "w0", "group": "g0", "node": "n1", "state": "active"})
    world.ray.cluster[:] = [RayNode("n1", True, {"CPU": 4.0}, {"CPU": 2.0})]
    world.round(60)
    assert target(world, id) == 3, "one of the two that are used is its own"


def test_a_quota_of_gpus_holds_a_job_back_and_says_how_many_are_short(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spec_support, "NOT_YET", [])  # training with GPUs is a later version's
    world.ray.cluster = [RayNode("n1", True, {"CPU": 64.0, "GPU": 16.0}, {})]
    world.control.projects.change("default", {"quota": {"gpus": 6}}, ADMIN)
    asked = {"workers": {"min": 2, "max": 2}, "resources": {"gpu": 2}}
    first, second = world.submit(**asked), world.submit(**asked)
    cpus = world.submit(workers={"min": 4, "max": 4})
    world.round()
    assert [world.status(id) for id in (first, second, cpus)] == ["starting", "queued", "starting"]
    job, (item,) = world.job(second), world.control.queue(actor=ADMIN)["items"]
    assert job["reason"] == "over_quota" and "uses 4 of its 6 GPUs" in job["queue"]["blocked_by"]
    assert item["short_of"] == {"workers": 1, "gpus": 2}
    assert {name: item[name] for name in ("position", "blocked_by", "short_of")} == job["queue"]
    world.control.projects.change("default", {"quota": {"gpus": 8}}, ADMIN)
    world.round()
    assert world.status(second) == "starting"


def test_a_quota_holds_a_job_back_and_the_sentence_is_the_same_everywhere(world: World) -> None:
    world.control.projects.change("default", {"quota": {"workers": 1}}, ADMIN)
    id, _ = world.running(workers={"min": 1, "max": 2})
    assert target(world, id) == 1
    late = world.submit(name="late")
    world.round()
    job = world.job(late)
    said = "It needs at least 1 worker with 1 CPU each, and the project default uses 1 of its 1 workers"
    assert (job["reason"], job["queue"]["blocked_by"]) == ("over_quota", said)
    assert world.control.queue(actor=ADMIN)["items"][0]["blocked_by"] == said
    world.control.projects.change("default", {"quota": {"workers": None}}, ADMIN)
    world.round()
    assert world.status(late) == "starting"


def speeds(driver: Driver, workers: int, steps: range, speed: float) -> None:
    for step in steps:
        fact = {"kind": "progress", "status": "running", "step": step, "samples_per_s": speed}
        driver.post({**fact, "workers_active": workers, "workers_target": workers, "workers_held": workers})


def test_how_fast_a_job_is_with_how_many_is_measured_from_steps_behind_a_change_only(world: World) -> None:
    id, driver = world.running(workers={"min": 1, "max": 2})
    speeds(driver, 2, range(11), 500.0)
    assert world.job(id)["scaling"] == [], "the window began before the workers were there"
    speeds(driver, 2, range(11, 30), 180.0)
    assert world.job(id)["scaling"] == [[2, 180.0]]
    speeds(driver, 1, range(30, 41), 150.0)
    assert world.job(id)["scaling"] == [[2, 180.0]]
    speeds(driver, 1, range(41, 60), 100.0)
    assert world.job(id)["scaling"] == [[1, 100.0], [2, 180.0]]


def test_spare_workers_go_to_the_job_that_was_measured_to_gain_most(world: World) -> None:
    world.ray.cluster[:] = [RayNode("n1", True, {"CPU": 4.0}, {})]
    flat, slow = world.running(name="flat", workers={"min": 1, "max": 2})
    steep, fast = world.running(name="steep", workers={"min": 1, "max": 2})
    for driver, one, two in ((slow, 100.0, 105.0), (fast, 100.0, 195.0)):
        speeds(driver, 2, range(30), two)
        world.control.patch(driver.job, {"workers": {"max": 1}}, actor=ADMIN)
        speeds(driver, 1, range(30, 60), one)
    world.ray.cluster[:] = [RayNode("n1", True, {"CPU": 3.0}, {})]
    for id in (flat, steep):
        world.control.patch(id, {"workers": {"max": 4}}, actor=ADMIN)
    world.round(100)
    assert (target(world, flat), target(world, steep)) == (1, 2)


def test_nodes_that_the_autoscaler_could_add_are_counted_and_shown(world: World) -> None:
    shape = '[{"resources": {"CPU": 2}, "max": 2}]'
    world.settings = replace(world.settings, capacity_max=parse_ceiling(shape))
    world.restart()
    both = world.submit(workers={"min": 3, "max": 4})
    more = world.submit(workers={"min": 1, "max": 1})
    world.round()
    assert (world.status(both), target(world, both)) == ("starting", 3), (
        "one that is there, one that can come"
    )
    assert world.status(more) == "starting"
    assert world.control.cluster(actor=ADMIN)["capacity_max"] == [{"resources": {"CPU": 2.0}, "max": 2}]
    asked = {**SPEC, "workers": {"min": 4, "max": 4}, "batch": {"size": 64, "microbatch": 16}}
    waits = world.control.dry_run(asked, actor=ADMIN)["blocked_by"]
    assert "It needs at least 4 workers" in waits


def test_the_servers_of_a_job_are_counted_from_its_start_to_its_end(world: World) -> None:
    """Two cores: one worker, and two servers with half a core each."""
    served, driver = world.running(strategy={"name": "parameter_server", "servers": 2})
    assert target(world, served) == 1
    for name in ("s0", "s1", "w0"):
        driver.post({"kind": "worker", "id": name, "group": f"g{name}", "node": "n1", "state": "active"})
    holds(driver, 1, 1)
    small = world.submit(name="small", workers={"min": 1, "max": 1})
    world.round()
    waiting = world.job(small)
    assert waiting["status"] == "queued" and waiting["queue"]["short_of"] == {"workers": 1}
    (used,) = (
        u["running"] for u in world.control.projects.usage(ADMIN)["items"] if u["project"] == "default"
    )
    assert (used["workers"], used["cpus"]) == (3, 2.0)
    driver.ends("succeeded")
    world.round()
    world.round()
    assert world.status(small) == "starting"


def test_memory_and_custom_resources_are_counted_and_named(world: World) -> None:
    world.ray.cluster[:] = [
        RayNode("n1", True, {"CPU": 8.0, "memory": 4.0 * 2**30}, {}),
        RayNode("n2", True, {"CPU": 8.0, "memory": 4.0 * 2**30, "licence": 1.0}, {}),
    ]
    heavy = {"min": 1, "max": 4}, {"memory": "3Gi"}
    ids = [world.submit(name=f"n{i}", workers=heavy[0], resources=heavy[1]) for i in range(2)]
    licensed = [
        world.submit(name=f"l{i}", workers={"min": 1, "max": 1}, resources={"custom": {"licence": 1}})
        for i in range(2)
    ]
    world.round()
    assert [target(world, id) for id in ids] == [1, 1], "there are cores for four, and memory for one on each"
    assert [world.status(id) for id in licensed] == ["starting", "queued"]
    said = world.job(licensed[1])["queue"]
    assert "with 1 CPU, 1 licence each" in said["blocked_by"] and said["short_of"] == {"workers": 1}
    world.submit(name="huge", resources={"memory": "64Gi"})
    world.round()
    huge = world.control.list_jobs(actor=ADMIN)["items"][0]
    assert huge["reason"] == "does_not_fit" and "64 GiB of memory" in huge["message"]


def test_a_job_waits_for_a_node_with_the_label_that_it_asks_for_and_others_do_not(world: World) -> None:
    world.ray.cluster[:] = [
        RayNode("n1", True, {"CPU": 4.0}, {}, {"zone": "a"}),
        RayNode("n2", True, {"CPU": 2.0}, {}, {"zone": "b"}),
    ]
    in_b = {"workers": {"min": 1, "max": 4}, "resources": {"labels": {"zone": "b"}}}
    first, second = (world.submit(name=name, **in_b) for name in ("first", "second"))
    third = world.submit(name="third", **in_b)
    nowhere = world.submit(name="nowhere", resources={"labels": {"zone": "c"}})
    world.round()
    assert [target(world, id) for id in (first, second)] == [1, 1], "two cores are in that zone"
    assert "with 1 CPU, the label zone=b each" in world.job(third)["message"]
    assert world.job(nowhere)["reason"] == "does_not_fit"
    anywhere = world.submit(name="anywhere", workers={"min": 4, "max": 4})
    world.round()
    assert world.status(anywhere) == "starting", "nobody who waits for another node is in its way"
    world.ray.cluster.append(RayNode("n3", True, {"CPU": 1.0}, {}, {"zone": "c"}))
    world.round(10)
    assert world.status(nowhere) == "starting"


def test_no_sentence_names_a_job_of_another_project(world: World) -> None:
    """Neither to those who wait, nor to those who give something up; who owns both is told."""
    theirs, driver = world.running(name="theirs", project="vision", workers={"min": 1, "max": 2})
    holds(driver, 2, 2)
    mine = [world.submit(name=f"mine-{n}", workers={"min": 1 + n, "max": 1 + n}) for n in range(2)]
    mine.append(world.submit(name="third", project="sound", workers={"min": 1, "max": 1}))
    urgent = world.submit(name="urgent", workers={"min": 2, "max": 2}, priority=9)
    for _ in range(3):
        world.round()
    told = {
        id: json.dumps([world.job(id)["message"], world.job(id)["queue"], world.events(id)]) for id in mine
    }
    for id, said in told.items():
        others = {theirs} if world.job(id)["project"] == "default" else {theirs, *mine, urgent} - {id}
        assert [other for other in others if other in said] == []
        assert "theirs" not in said
    assert any("a job of another project" in said for said in told.values())
    assert urgent in told[mine[0]] + told[mine[1]], "whoever owns both is told"
    given = json.dumps(world.events(theirs))
    assert "another project" in given and urgent not in given and mine[0] not in given
    queue = {item["id"]: item["blocked_by"] for item in world.control.queue(actor=ADMIN)["items"]}
    assert queue == {id: (world.job(id)["queue"] or {}).get("blocked_by") for id in queue}
