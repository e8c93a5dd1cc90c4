"""The door: wrong specs, repeated keys, other projects, and twenty submits at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from elastrain.service.auth import Actor
from elastrain.service.errors import Conflict, Forbidden, Invalid, NotFound
from world import ADMIN, SPEC, World

MEMBER = Actor("t-member", "mia", "member", "vision")
VIEWER = Actor("t-viewer", "vic", "viewer", "vision")


def test_a_wrong_spec_is_refused_with_every_fault_at_once(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        world.control.submit({**SPEC, "batch": {"size": 64, "microbatch": 7}, "sed": 1}, actor=ADMIN)
    assert {error["pointer"] for error in refused.value.errors} == {"/batch/microbatch", "/sed"}
    assert world.control.list_jobs(actor=ADMIN)["items"] == []


def test_the_same_key_and_body_give_the_same_job_and_another_body_is_refused(world: World) -> None:
    first, created = world.control.submit(SPEC, actor=ADMIN, idempotency_key="k")
    again, created_again = world.control.submit(SPEC, actor=ADMIN, idempotency_key="k")
    assert (created, created_again, first["id"]) == (True, False, again["id"])
    with pytest.raises(Invalid, match="used for another request"):
        world.control.submit({**SPEC, "seed": 1}, actor=ADMIN, idempotency_key="k")
    other, created = world.control.submit({**SPEC, "seed": 1}, actor=MEMBER_OF_ALL, idempotency_key="k")
    assert created and other["id"] != first["id"]


MEMBER_OF_ALL = Actor("t-other", "olga", "admin")


def test_twenty_parallel_submits_make_twenty_jobs(world: World) -> None:
    with ThreadPoolExecutor(20) as pool:
        ids = list(pool.map(lambda n: world.submit(name=f"job-{n}"), range(20)))
    listed = [job["id"] for job in world.control.list_jobs(actor=ADMIN)["items"]]
    assert len(set(ids)) == 20 and set(ids) == set(listed)


def test_parallel_submits_with_one_key_make_one_job(world: World) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: world.control.submit(SPEC, actor=ADMIN, idempotency_key="same"), range(8))
        )
    assert len({job["id"] for job, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1


def test_what_another_project_owns_is_not_found(world: World) -> None:
    id = world.submit()
    with pytest.raises(NotFound):
        world.control.job(id, actor=MEMBER)
    with pytest.raises(NotFound):
        world.control.cancel(id, actor=MEMBER)
    assert world.control.list_jobs(actor=MEMBER)["items"] == []
    assert world.control.queue(actor=MEMBER)["items"] == []
    with pytest.raises(Forbidden, match="default"):
        world.control.submit(SPEC, actor=MEMBER)


def test_a_viewer_reads_and_changes_nothing(world: World) -> None:
    job, _ = world.control.submit({**SPEC, "project": "vision"}, actor=MEMBER)
    assert world.control.job(job["id"], actor=VIEWER)["id"] == job["id"]
    for refused in (
        lambda: world.control.submit({**SPEC, "project": "vision"}, actor=VIEWER),
        lambda: world.control.cancel(job["id"], actor=VIEWER),
        lambda: world.control.patch(job["id"], {"priority": 1}, actor=VIEWER),
    ):
        with pytest.raises(Forbidden):
            refused()


def test_an_id_may_be_shortened_while_it_is_unique(world: World) -> None:
    id = world.submit()
    assert world.job(id[:8])["id"] == id
    assert world.job(id[2:8])["id"] == id
    world.submit()
    with pytest.raises(Conflict, match="several"):
        world.job(id[:5])
    for nonsense in ("", "j-%", "../etc", "j-zzzzzzzzzz"):
        with pytest.raises(NotFound):
            world.job(nonsense)


@pytest.mark.parametrize("bad", [0, 5, -1, 1.5, "two", None])
def test_a_bad_size_is_refused_with_the_allowed_range_and_training_goes_on(world: World, bad: object) -> None:
    id, driver = world.running()
    before = driver.desired()
    with pytest.raises(Invalid) as refused:
        world.control.patch(id, {"workers": {"min": bad, "max": bad}}, actor=ADMIN)
    assert any("allowed: 1 to 4 workers" in error["detail"] for error in refused.value.errors)
    assert driver.desired() == before


def test_only_what_may_change_on_a_live_job_can_be_patched(world: World) -> None:
    id = world.submit()
    for body in ({"seed": 3}, {"workers": {"per_group": 2}}, {}):
        with pytest.raises(Invalid):
            world.control.patch(id, body, actor=ADMIN)
    job = world.control.patch(id, {"priority": 5, "labels": {"team": "a"}}, actor=ADMIN)
    assert (job["priority"], job["labels"], job["spec"]["priority"]) == (5, {"team": "a"}, 5)
    assert [item["id"] for item in world.control.list_jobs(actor=ADMIN, label="team:a")["items"]] == [id]
    assert world.control.list_jobs(actor=ADMIN, label="team:b")["items"] == []


def test_a_dry_run_says_what_it_would_get_and_stores_nothing(world: World) -> None:
    answer = world.control.dry_run(SPEC, actor=ADMIN)
    assert (answer["schedulable"], answer["would_get"]) == (False, 0)
    world.round()
    answer = world.control.dry_run(SPEC, actor=ADMIN)
    assert (answer["schedulable"], answer["would_get"], answer["blocked_by"]) == (True, 2, None)
    answer = world.control.dry_run({**SPEC, "workers": {"min": 3, "max": 4}}, actor=ADMIN)
    assert not answer["schedulable"] and "would hold 2" in answer["blocked_by"]
    assert world.control.list_jobs(actor=ADMIN)["items"] == []


def test_the_queue_goes_by_priority_then_age(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    first = world.submit(name="first", workers={"min": 2, "max": 2})
    second = world.submit(name="second")
    urgent = world.submit(name="urgent", priority=9)
    world.round()
    items = world.control.queue(actor=ADMIN)["items"]
    assert [item["id"] for item in items] == [urgent, first, second]
    assert [item["position"] for item in items] == [1, 2, 3]
    assert items[0]["short_of"] == {"workers": 1}
    assert urgent in items[1]["blocked_by"]
    assert world.job(second)["queue"] == {
        "position": 3,
        "blocked_by": items[2]["blocked_by"],
        "short_of": {"workers": 1},
    }


def test_a_spec_may_only_name_code_of_its_own_project(world: World) -> None:
    with pytest.raises(Invalid) as refused:
        world.control.submit({**SPEC, "code": "0" * 64}, actor=ADMIN)
    assert refused.value.errors[0]["pointer"] == "/code"


def test_a_dry_run_and_the_job_warn_of_what_the_spec_had_better_not_say(world: World) -> None:
    alone = {**SPEC, "compression": "int8", "workers": {"min": 1, "max": 1}}
    job, _ = world.control.submit(alone, actor=ADMIN)
    assert world.control.dry_run(alone, actor=ADMIN)["warnings"] == job["warnings"]
    assert ["nothing travels" in warning for warning in job["warnings"]] == [True]
    assert world.control.submit(SPEC, actor=ADMIN)[0]["warnings"] == []


def test_a_compressed_job_does_not_grow_beyond_the_parts_that_its_sums_were_cut_into(world: World) -> None:
    job, _ = world.control.submit(
        {**SPEC, "compression": "int8", "workers": {"min": 1, "max": 2}}, actor=ADMIN
    )
    assert job["spec"]["wire_nodes"] == 2
    with pytest.raises(Invalid) as refused:
        world.control.patch(job["id"], {"workers": {"max": 3}}, actor=ADMIN)
    (error,) = refused.value.errors
    assert error["pointer"] == "/workers/max" and "allowed: 1 to 2 workers" in error["detail"]
    world.control.patch(job["id"], {"workers": {"max": 1}}, actor=ADMIN)
