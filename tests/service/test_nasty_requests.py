"""What nobody sends by mistake, and somebody will: it is refused, and costs the others nothing."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from elastrain.service.errors import Conflict, Invalid, NotFound
from elastrain.service.store import feed, installation, jobs, projects, uploads
from elastrain.trainers.spec import SpecError, parse_spec
from world import ADMIN, SPEC, World

LARGEST = 2**31 - 1


def refused(**changes: Any) -> list[dict[str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_spec({**SPEC, **changes})
    return [dict(error) for error in caught.value.errors]


def test_a_batch_of_two_billion_is_refused_without_counting_up_to_it() -> None:
    wrong = refused(batch={"size": LARGEST - 1, "microbatch": 4})
    assert wrong[0]["pointer"] == "/batch/microbatch" and "use 3" in wrong[0]["detail"]
    many = {"batch": {"size": LARGEST, "microbatch": 1}, "strategy": {"name": "local_sgd", "replicas": 2}}
    (only,) = refused(**many)
    assert only["pointer"] == "/strategy/replicas" and "use one of 1, " in only["detail"]


def test_more_workers_than_any_plan_can_hand_out_are_refused_at_the_door() -> None:
    everything = {"min": LARGEST, "max": LARGEST, "spares": LARGEST}
    found = {
        error["pointer"] for error in refused(batch={"size": LARGEST, "microbatch": 1}, workers=everything)
    }
    assert {"/workers/min", "/workers/max", "/workers/spares"} <= found
    assert refused(resources={"cpu": 1e-9})[0]["pointer"] == "/resources/cpu"


def test_the_largest_job_that_may_be_asked_for_holds_up_no_round(world: World) -> None:
    batch = {"size": 10_000, "microbatch": 1}
    id = world.submit(batch=batch, workers={"min": 10_000, "max": 10_000, "spares": 10_000})
    other = world.submit()
    world.round()
    assert (
        world.job(id)["reason"] == "does_not_fit" and world.job(id)["queue"]["short_of"]["workers"] > 10_000
    )
    assert world.status(other) == "starting"


@pytest.mark.parametrize("levels", [70, 400, 900, 5000])
def test_a_spec_that_is_too_deep_is_refused_by_its_field(levels: int) -> None:
    deep: Any = 1
    for _ in range(levels):
        deep = [deep]
    for place in ({"task_args": {"x": deep}}, {"nonsense": deep}, {"labels": deep}):
        (fault,) = refused(**place)
        assert fault["pointer"] == f"/{next(iter(place))}" and "64 levels" in fault["detail"]


def test_a_spec_that_is_too_large_is_refused_with_both_numbers_and_what_fills_it() -> None:
    (fault,) = refused(env={f"V{n}": "x" * 30_000 for n in range(20)})
    assert fault["pointer"] == "/env" and "262144" in fault["detail"] and "600" in fault["detail"]


def test_a_job_for_ever_has_more_steps_than_a_column_holds_and_runs_all_the_same(world: World) -> None:
    id = world.submit()
    world.round()
    driver = world.driver(id)
    driver.claim()
    driver.post(
        {"kind": "progress", "status": "running", "step": 3, "total_steps": 10**11, "workers_active": 1}
    )
    assert (world.status(id), world.job(id)["progress"]["step"]) == ("running", 3)
    assert world.job(id)["progress"]["total_steps"] == LARGEST


@pytest.mark.parametrize("nothing", [",", " ", " , ", ",,"])
def test_a_filter_that_names_nothing_cancels_nothing(world: World, nothing: str) -> None:
    id = world.submit()
    for given in ({"status": nothing}, {"label": nothing}, {"status": "queued", "label": nothing}):
        with pytest.raises(Invalid, match=r"empty|names nothing"):
            world.control.cancel_many(actor=ADMIN, **given)  # type: ignore[arg-type]
    for given in ({"status": "queued", "label": ""}, {"status": "queued", "project": ""}, {"status": ""}):
        with pytest.raises(Invalid, match="would fit every job"):  # a variable that was not set
            world.control.cancel_many(actor=ADMIN, **given)  # type: ignore[arg-type]
    assert world.status(id) == "queued"


def test_what_no_database_can_look_for_is_refused_and_not_a_fault(world: World) -> None:
    id = world.submit()
    for look in (
        lambda: world.control.list_jobs(actor=ADMIN, project="a\0b"),
        lambda: world.control.list_jobs(actor=ADMIN, label="a\0:b"),
        lambda: world.control.events(id, actor=ADMIN, after=10**30),
        lambda: world.control.metrics(id, actor=ADMIN, from_step=10**30),
        lambda: world.control.generations(id, actor=ADMIN, cursor=f"{10**30}_1"),
        lambda: world.control.logs(id, actor=ADMIN, cursor="²"),
        lambda: world.control.logs(id, actor=ADMIN, cursor="9" * 30),
    ):
        try:
            assert not look()["items" if "items" in look() else "superseded"]  # or it says that there is none
        except Invalid:
            pass


@pytest.mark.parametrize("odd", ["\0", "\ud800", "j-" + "9" * 300])
@pytest.mark.parametrize("number", [1, 10**30, -(10**30)])
def test_a_claim_of_nonsense_is_refused_and_not_a_fault(world: World, odd: str, number: int) -> None:
    from elastrain.service.errors import Forbidden

    for job, code in ((odd, "x"), ("j-0123456789", odd)):
        body = {"protocol": 1, "job": job, "attempt": number, "code": code, "nonce": "n" * 16}
        with pytest.raises((Forbidden, Invalid)):
            world.control.driver_claim(body)


def test_a_page_of_several_kinds_is_of_one_moment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    id, driver = world.running()
    real, told = feed.events_after, threading.Event()

    def slowly(*asked: Any) -> Any:
        """Between the first question of the page and the second one somebody else commits both kinds."""
        found = real(*asked)
        if not told.is_set():
            told.set()
            driver.post({"kind": "event", "type": "between", "message": "", "data": {}})
            driver.step(1)
        return found

    monkeypatch.setattr(feed, "events_after", slowly)
    rows, after = [], 0
    for _ in range(3):
        page = world.control.feed(id, actor=ADMIN, after=after, kinds=("event", "metric"))
        rows, after = [*rows, *page["rows"]], page["position"]
    assert "between" in [row["data"].get("type") for row in rows], "a follower never hears of it"
    assert [row["position"] for row in rows] == sorted(row["position"] for row in rows)


def test_a_page_of_the_feed_holds_a_few_megabytes_of_logs_at_most(world: World) -> None:
    id, driver = world.running()
    piece, count = b"x" * (1024 * 1024 - 1) + b"\n", 12
    for number in range(count):
        offset = number * len(piece)
        world.storage.put(f"jobs/{id}/logs/1/w0/{offset:012d}", piece)
        driver.post({"kind": "log", "worker": "w0", "offset": offset, "bytes": len(piece)})
    driver.ends("succeeded")
    world.round()
    seen, after, end = 0, 0, None
    while end is None:
        page = world.control.feed(id, actor=ADMIN, after=after, kinds=("log",))
        size = sum(len(row["data"]["text"]) for row in page["rows"])
        assert size <= 4 * 1024 * 1024
        seen, after, end = seen + size, page["position"], page["end"]
    assert seen == count * len(piece)


def test_of_two_that_write_the_same_new_row_at_once_neither_fails(world: World) -> None:
    """As two processes of one service do that start together, or two that upload one package."""

    def twice(write: Any) -> list[BaseException]:
        faults: list[BaseException] = []
        gate = threading.Barrier(2, timeout=60)

        def one() -> None:
            try:
                if not world.store.is_sqlite:  # where both can be inside a transaction
                    with world.store.write() as tx:
                        tx.exec_driver_sql("SELECT 1")
                        gate.wait()
                        write(tx)
                else:
                    gate.wait()
                    with world.store.write() as tx:
                        write(tx)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return faults

    for turn in range(5):
        assert twice(lambda tx, turn=turn: uploads.add_package(tx, f"{turn:064}", "default", 1, 0.0)) == []
        assert twice(lambda tx, turn=turn: installation.write(tx, f"fact {turn}", turn, 0.0)) == []
        assert twice(lambda tx, turn=turn: projects.add(tx, f"p{turn}", 0.0)) == []


@pytest.mark.parametrize("fault", [KeyError("a row of which nobody has thought"), ZeroDivisionError()])
def test_a_fault_of_ours_with_one_job_leaves_the_others_alone(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    world.ray.cluster[0].resources["CPU"] = 8
    poisoned, _ = world.running(workers={"min": 1, "max": 1})
    other, driver = world.running(workers={"min": 1, "max": 1})
    real = jobs.lock

    def lock(tx: Any, id: str) -> Any:
        if id == poisoned:
            raise fault
        return real(tx, id)

    world.driver(poisoned).exits("FAILED")
    driver.writes_outcome("succeeded")
    driver.exits()
    monkeypatch.setattr(jobs, "lock", lock)
    for _ in range(3):
        world.round()
    assert world.status(other) == "succeeded"
    assert caplog.text.count("cannot be moved on") == 1
    monkeypatch.setattr(jobs, "lock", real)
    world.round()
    assert world.status(poisoned) == "starting"


def test_a_message_of_ray_with_nul_bytes_ends_its_job_and_no_round(world: World) -> None:
    from elastrain.service.ray_jobs import _job

    id, driver = world.running(retries=0)
    said = _job(
        {"submission_id": driver.launch.submission_id, "status": "FAILED", "message": "crash \0\ud800 x"}
    )
    driver.exits("FAILED", said.message)
    world.round()
    assert world.status(id) == "failed" and "crash" in world.job(id)["message"]


def test_a_key_of_a_deleted_job_makes_no_second_one(world: World) -> None:
    key = "the-answer-to-this-was-lost"
    made, created = world.control.submit(SPEC, actor=ADMIN, idempotency_key=key)
    assert created
    world.cancel(made["id"])
    world.control.delete(made["id"], actor=ADMIN)
    assert world.control.submit(SPEC, actor=ADMIN, idempotency_key=key) == (made, False)
    world.clock.pass_s(10)
    world.janitor.round()
    with pytest.raises(NotFound):
        world.job(made["id"])
    with pytest.raises(Conflict, match="is deleted"):
        world.control.submit(SPEC, actor=ADMIN, idempotency_key=key)
    assert world.control.list_jobs(actor=ADMIN)["items"] == []
    assert made["id"] not in json.dumps(world.stored())


def test_whoever_locks_several_jobs_does_so_in_one_order(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan and a cancel of many that met in the middle would each wait for the other: one was told that the
    database does not answer."""
    real, turns = jobs.lock, dict[int, list[str]]()

    def lock(tx: Any, id: str) -> Any:
        turns.setdefault(id_of(tx), []).append(id)
        return real(tx, id)

    def id_of(tx: Any) -> int:
        kept.append(tx)  # or the next one could have its number
        return id(tx)

    kept: list[Any] = []
    made = [world.submit(priority=priority, workers={"min": 1, "max": 1}) for priority in (1, 3, 0, 2)]
    monkeypatch.setattr(jobs, "lock", lock)
    world.round()
    assert [launch.env["ELASTRAIN_JOB"] for launch in world.ray.launches] == [made[1], made[3]], (
        "in their order"
    )
    world.control.preempt_all("")
    answer = world.control.cancel_many(actor=ADMIN, status="queued,starting,running,pausing")
    assert [item["id"] for item in answer["items"]] == made[::-1] and all(
        item["done"] for item in answer["items"]
    )
    several = [ids for ids in turns.values() if len(set(ids)) > 1]
    assert len(several) >= 3 and all(ids == sorted(ids) for ids in several)
