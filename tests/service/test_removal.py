"""Deleted jobs and old ones: gone from sight at once, their data soon, and never while a driver may write."""

from pathlib import Path
from typing import Any

import pytest

from elastrain.service import removal
from elastrain.service.auth import Actor
from elastrain.service.clock import rfc3339
from elastrain.service.errors import Conflict, Forbidden, Invalid, NotFound
from elastrain.service.store import leftovers, training
from elastrain.service.store.schema import metadata
from elastrain.trainers.storage import StorageError
from world import ADMIN, SPEC, World

VISION = Actor("t-member", "mia", "member", "vision")


def ended(world: World, **changes: Any) -> str:
    id, driver = world.running(**changes)
    for step in range(1, 6):
        driver.step(step)
    driver.saves(40)
    world.storage.put(f"jobs/{id}/checkpoints/0000000040/manifest.json", b"{}")
    driver.ends("succeeded")
    world.round()
    return id


def traces(world: World, id: str) -> list[str]:
    """Where anything of the job is left."""
    with world.store.read() as tx:
        found = [
            table.name
            for table in metadata.sorted_tables
            for column in ("job", "id")
            if column in table.c and tx.execute(table.select().where(table.c[column] == id)).first()
        ]
    return found + [entry.key for entry in world.storage.list(f"jobs/{id}")]


def test_a_deleted_job_is_not_found_and_nothing_of_it_is_left_while_others_stay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "ROWS", 3)
    other, id = ended(world), ended(world)
    before = traces(world, other)
    assert world.control.delete(id, actor=ADMIN)["status"] == "succeeded"
    for gone in (
        world.job,
        lambda id: world.control.delete(id, actor=ADMIN),
        lambda id: world.ask("retry", id),
    ):
        with pytest.raises(NotFound):
            gone(id)
    assert [job["id"] for job in world.control.list_jobs(actor=ADMIN)["items"]] == [other]
    assert world.control.counts()["succeeded"] == 1
    assert traces(world, id)
    world.janitor.round()
    assert traces(world, id) == []
    assert traces(world, other) == before


def test_only_what_has_ended_can_be_deleted(world: World) -> None:
    id = world.submit()
    with pytest.raises(Conflict) as refused:
        world.control.delete(id, actor=ADMIN)
    assert refused.value.extra["allowed_actions"] == world.job(id)["allowed_actions"]
    world.ask("pause", id)
    with pytest.raises(Conflict):
        world.control.delete(id, actor=ADMIN)


def test_the_data_of_a_deleted_job_waits_for_its_driver_to_be_gone(world: World) -> None:
    id, driver = world.running()
    driver.post({"kind": "outcome", **driver.writes_outcome("succeeded")})
    world.control.delete(id, actor=ADMIN)
    world.janitor.round()
    assert traces(world, id)
    driver.step(99)  # its last words are taken, and go with the rest
    driver.exits()
    world.round()
    world.janitor.round()
    assert traces(world, id) == []


def test_a_store_that_is_away_only_delays_a_removal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    id = ended(world)
    world.control.delete(id, actor=ADMIN)

    def away(key: str) -> None:
        raise StorageError("unavailable", "503")

    with monkeypatch.context() as patch:
        patch.setattr(world.storage, "delete", away)
        world.janitor.round()
    assert traces(world, id)
    world.restart()
    world.janitor.round()
    assert traces(world, id) == []


def test_without_the_setting_ended_jobs_stay_for_ever(world: World) -> None:
    id = ended(world)
    world.clock.pass_s(10_000 * 86_400)
    world.janitor.round()
    assert world.status(id) == "succeeded"


def test_old_jobs_are_removed_but_for_those_that_are_pinned_or_were_retried(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, env={"ELASTRAIN_KEEP_ENDED_DAYS": "30"})
    pinned, old, retried = ended(world), ended(world), world.submit()
    world.control.patch(pinned, {"pinned": True}, actor=ADMIN)
    world.cancel(retried)
    world.clock.pass_s(31 * 86_400)
    world.ask("retry", retried)
    young = ended(world)
    world.janitor.round()
    with pytest.raises(NotFound):
        world.job(old)
    assert (traces(world, old), world.job(pinned)["pinned"]) == ([], True)
    assert {world.status(id) for id in (pinned, young)} == {"succeeded"}
    assert world.status(retried) in ("queued", "starting")
    world.store.close()


def test_a_job_says_when_it_is_removed_and_what_goes_along_and_not_before_its_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, env={"ELASTRAIN_KEEP_ENDED_DAYS": "30"})
    pinned, large, small = ended(world), ended(world), ended(world)
    world.control.patch(pinned, {"pinned": True}, actor=ADMIN)
    with world.store.write() as tx:
        training.put_checkpoint(tx, large, 80, {"state": "saved", "attempt": 1, "bytes": 4_200_000_000})
    world.clock.pass_s(3 * 86_400)  # a tenth of the time
    world.janitor.round()
    assert all(world.job(id)["warnings"] == [] for id in (pinned, large, small))
    assert "are removed" not in caplog.text
    world.clock.pass_s(24.5 * 86_400)
    world.janitor.round()
    world.janitor.round()
    (said,) = world.job(large)["warnings"]
    assert "2 checkpoints of 4.2 GB" in said and f"`elastrain pin {large}`" in said
    assert rfc3339(world.clock.at + 2.5 * 86_400)[:10] in said  # type: ignore[index]
    assert ["1 checkpoint of 10 bytes" in text for text in world.job(small)["warnings"]] == [True]
    assert world.job(pinned)["warnings"] == []
    notices = [record.message for record in caplog.records if "are removed" in record.message]
    assert len(notices) == 1 and notices[0].startswith("2 ended jobs are removed within 3 days, with 3")
    assert notices[0].index(large) < notices[0].index(small)
    world.control.patch(large, {"pinned": True}, actor=ADMIN)
    assert world.job(large)["warnings"] == []
    world.store.close()


def test_a_key_is_forgotten_after_two_days(world: World) -> None:
    world.control.submit(SPEC, actor=ADMIN, idempotency_key="k")
    world.janitor.round()
    assert world.control.submit(SPEC, actor=ADMIN, idempotency_key="k")[1] is False
    world.clock.pass_s(removal.KEYS_S + 1)
    world.janitor.round()
    assert world.control.submit(SPEC, actor=ADMIN, idempotency_key="k")[1] is True


def test_nobody_marks_a_job_that_was_retried_a_moment_before(world: World) -> None:
    id = ended(world)
    with world.store.write() as tx:
        assert leftovers.mark_older(tx, world.clock.now() + 1, world.clock.now()) == [id]
    id = world.submit()
    world.cancel(id)
    world.ask("retry", id)
    with world.store.write() as tx:
        assert leftovers.mark_older(tx, world.clock.now() + 1, world.clock.now()) == []


# -- many at once


def test_many_jobs_are_cancelled_with_an_answer_for_each(world: World) -> None:
    running, _ = world.running(labels={"team": "a"}, workers={"min": 1, "max": 1})
    waiting = world.submit(labels={"team": "a"})
    other = world.submit(labels={"team": "b"})
    dry = world.control.cancel_many(actor=ADMIN, label="team:a", dry_run=True)
    assert {item["id"] for item in dry["items"]} == {running, waiting}
    assert world.status(waiting) == "queued"
    done = world.control.cancel_many(actor=ADMIN, label="team:a", idempotency_key="k")
    assert {(item["id"], item["status"], item["done"]) for item in done["items"]} == {
        (running, "cancelling", True),
        (waiting, "cancelled", True),
    }
    assert world.status(other) == "queued"
    late = world.submit(labels={"team": "a"})
    assert world.control.cancel_many(actor=ADMIN, label="team:a", idempotency_key="k") == done
    assert world.status(late) == "queued"
    with pytest.raises(Invalid, match="Nothing says"):
        world.control.cancel_many(actor=ADMIN)
    ended_ones = world.control.cancel_many(actor=ADMIN, status="succeeded,cancelled")["items"]
    assert [(item["id"], item["done"]) for item in ended_ones] == [(waiting, True)]


def test_a_filter_finds_nothing_of_other_projects_and_a_viewer_cancels_nothing(world: World) -> None:
    id = world.submit()
    for project in (None, "default"):
        answer = world.control.cancel_many(actor=VISION, status="queued", project=project)
        assert answer["items"] == []
    with pytest.raises(Forbidden):
        world.control.cancel_many(actor=Actor("t", "vic", "viewer", "default"), status="queued")
    assert world.status(id) == "queued"


def test_a_job_that_left_the_wanted_status_a_moment_before_is_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elastrain.service import bulk

    id, page = world.submit(), bulk.jobs.page

    def then_it_starts(*given: Any, **more: Any) -> Any:
        rows = page(*given, **more)
        monkeypatch.undo()
        world.round()
        return rows

    monkeypatch.setattr(bulk.jobs, "page", then_it_starts)
    (item,) = world.control.cancel_many(actor=ADMIN, status="queued")["items"]
    assert (item["status"], item["done"]) == ("starting", False) and "by now" in item["detail"]
    assert world.status(id) == "starting"
