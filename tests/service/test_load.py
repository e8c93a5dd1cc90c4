"""What a round costs with many jobs, in questions to the store: they are counted, not timed."""

import gc
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from elastrain.service import interpreter, pace, submission
from elastrain.service.jobs import Reason
from elastrain.service.scheduling import Ask, Node, plan
from elastrain.service.scheduling.order import BREATH
from elastrain.service.scheduling.plan import DETAILED
from elastrain.service.store import Store, engine, fresh, jobs, queued
from world import ADMIN, SPEC, World


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """Every SQL statement that is executed meanwhile."""
    said: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        said.append(statement)

    event.listen(store._engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        event.remove(store._engine, "before_cursor_execute", note)


def quiet_round(world: World) -> list[str]:
    """What a round asks once everything is as it should be."""
    for _ in range(3):
        world.round(10.0)
    with statements(world.store) as said:
        world.round(1.0)
    return said


def test_a_round_with_nothing_to_do_asks_as_much_for_many_jobs_as_for_one(tmp_path: Path) -> None:
    world = World(tmp_path, cpus=8.0)
    one = {"workers": {"min": 1, "max": 1}}
    world.running(**one)
    alone = quiet_round(world)
    for _ in range(7):
        world.running(**one)
    for _ in range(5):
        world.submit(**one)
    assert len(quiet_round(world)) == len(alone)
    world.store.close()


def test_specs_of_waiting_jobs_are_read_once(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    for _ in range(5):
        world.submit(workers={"min": 2, "max": 2})
    quiet_round(world)
    world.submit(workers={"min": 2, "max": 2})
    with statements(world.store) as said:
        world.round()
    assert len([text for text in said if "jobs.spec" in text and "jobs.id IN" in text]) == 1
    assert not [text for text in quiet_round(world) if "jobs.id IN" in text]


def test_what_was_asked_of_a_waiting_job_counts_though_its_spec_was_read_before(world: World) -> None:
    _, driver = world.running(workers={"min": 2, "max": 2})
    first, second = (world.submit(workers={"min": 2, "max": 2}) for _ in range(2))
    quiet_round(world)
    world.control.patch(second, {"priority": 5}, actor=ADMIN)
    world.round()
    assert world.job(second)["queue"]["position"] == 1
    driver.ends("succeeded")
    for _ in range(3):
        world.round()
    assert (world.status(second), world.status(first)) == ("starting", "queued")


def test_a_submit_asks_nothing_that_it_knows_about_its_job(world: World) -> None:
    world.submit(labels={"sweep": "s1"})
    with statements(world.store) as said:
        answer, _ = world.control.submit({**SPEC, "labels": {"a": "b"}}, actor=ADMIN, idempotency_key="k")
    asked = [text for text in said if not text.startswith("BEGIN")]
    assert len(asked) == 8, asked  # the key, the job, its label, transition and event; its place; the answer
    assert answer == world.job(answer["id"])
    with world.store.read() as tx:
        row = jobs.get(tx, answer["id"])
    with world.store.write() as tx:
        made = fresh.insert_new(tx, "j-1", spec=row.spec, actor=ADMIN.name, warnings=[], at=row.since)
        assert made == jobs.get(tx, "j-1") == replace(row, id="j-1")
        assert fresh.history(made) == jobs.history(tx, ["j-1"])["j-1"] != []


def test_two_jobs_of_the_same_moment_get_different_ids(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["j-aaaaaaaaaa"] * 3 + ["j-bbbbbbbbbb"] + ["j-cccccccccc"] * 9)
    monkeypatch.setattr(submission.ids, "new_job_id", lambda at: next(drawn))
    assert [world.submit(), world.submit(), world.submit()] == [
        "j-aaaaaaaaaa",
        "j-bbbbbbbbbb",
        "j-cccccccccc",
    ]
    assert len(world.events("j-aaaaaaaaaa")) == 1
    with pytest.raises(fresh.IdTaken):
        world.submit()


def test_a_batch_of_facts_reads_its_job_once(world: World) -> None:
    _, driver = world.running()
    driver.step(1)
    facts = [{"kind": "metric", "step": 2 + n, "values": {"loss": 0.5}, "epoch_no": 0} for n in range(2)]
    with statements(world.store) as said:
        driver.post(*facts, {"kind": "progress", "status": "running", "step": 3, "samples_per_s": 9.0})
    asked = [text for text in said if not text.startswith("BEGIN")]
    assert len([text for text in asked if text.startswith("SELECT")]) == 3, asked  # job, attempt, latest
    assert len(asked) == 8, asked


def test_a_page_of_running_jobs_asks_as_much_as_one_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, cpus=8.0)
    world.running(workers={"min": 1, "max": 1})
    with statements(world.store) as alone:
        world.control.list_jobs(actor=ADMIN)
    for _ in range(5):
        world.running(workers={"min": 1, "max": 1})
    with statements(world.store) as many:
        assert len(world.control.list_jobs(actor=ADMIN)["items"]) == 6
    assert len(many) == len(alone)
    world.store.close()


def test_many_that_wait_alike_are_told_so_in_one_statement_and_without_an_event(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    world.submit(workers={"min": 2, "max": 2})
    quiet_round(world)
    ids = [world.submit(workers={"min": 2, "max": 2}) for _ in range(DETAILED + 20)]
    with statements(world.store) as said:
        world.round()
    updates = [text for text in said if text.startswith("UPDATE jobs SET reason")]
    assert len([text for text in updates if "jobs.id IN" in text]) <= DETAILED  # each of these may differ
    assert {world.job(id)["reason"] for id in ids[-20:]} == {"behind_other_jobs"}
    assert [world.events(id, "job.waiting") for id in ids[-20:]] == [[]] * 20
    alike = [world.submit(workers={"min": 2, "max": 2}) for _ in range(20)]
    with statements(world.store) as said:
        world.round()
    assert len([text for text in said if text.startswith("UPDATE jobs")]) == 1, said
    assert {world.job(id)["reason"] for id in alike} == {"behind_other_jobs"}


def test_who_was_paused_or_patched_since_the_plan_is_not_told_why_it_waits(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    same, paused, patched = (world.submit(workers={"min": 2, "max": 2}) for _ in range(3))
    with world.store.read() as tx:
        seen = queued.rows(tx)[0]
    world.ask("pause", paused)
    world.control.patch(patched, {"priority": 1}, actor=ADMIN)
    with world.store.write() as tx:
        queued.tell_why(tx, [same, paused, patched], seen, Reason.BEHIND_OTHER_JOBS, "behind", 2)
    told = [world.job(id)["reason"] for id in (same, paused, patched)]
    assert told == ["behind_other_jobs", "user_request", "submitted"]


def test_the_queue_is_shown_without_its_specs(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    waiting = world.submit(workers={"min": 2, "max": 2})
    world.round()
    with statements(world.store) as said:
        (item,) = world.control.queue(actor=ADMIN)["items"]
    assert not [text for text in said if re.search(r"(?<!\()jobs\.spec", text)], said
    assert (item["id"], item["short_of"]) == (waiting, {"workers": 2})
    assert {name: item[name] for name in ("position", "blocked_by", "short_of")} == world.job(waiting)[
        "queue"
    ]


def test_a_long_plan_lets_requests_go_first_and_comes_out_the_same() -> None:
    asks = [Ask(f"j-{n}", "a", 1, 1, 1, {"CPU": 1.0}, since=float(n % 7)) for n in range(1000)]
    breaths = list[int]()
    nodes = [Node("n", {"CPU": 3.0})]
    made = plan(asks, nodes, breathe=lambda: breaths.append(1))
    assert made == plan(asks, nodes)
    assert len(breaths) >= 2 * 1000 // BREATH


def test_who_computes_for_long_sleeps_now_and_then_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pace.time, "sleep", slept.append)
    breathe = pace.Breath()
    for _ in range(10):
        now[0] += pace.Breath.SHORT_S / 10
        breathe()
    assert slept == []
    for step_s in (0.0015, 0.0, 0.001, 0.0015, 0.0):
        now[0] += step_s
        breathe()
    assert slept == [pace.Breath.SLEEPS_S]


def test_a_job_that_was_cancelled_while_it_waited_is_no_longer_asked_about(world: World) -> None:
    world.running(workers={"min": 2, "max": 2})
    waiting = world.submit(workers={"min": 2, "max": 2})
    quiet_round(world)
    world.cancel(waiting)
    world.round()
    with world.store.read() as tx:
        assert queued.rows(tx) == []
    assert world.reconciler._placement._known._asks == {}


def test_writers_of_one_process_queue_and_never_find_sqlite_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.0)  # whoever finds it busy fails
    world = World(tmp_path)
    inside, failed = threading.Event(), list[BaseException]()

    def write() -> None:
        inside.set()
        try:
            with world.store.write():
                pass
        except BaseException as error:
            failed.append(error)

    other = threading.Thread(target=write)
    with world.store.write():
        other.start()
        inside.wait()
        other.join(0.1)
        assert other.is_alive() or failed, "it got in beside the first"
    other.join()
    assert failed == []
    world.store.close()


@pytest.mark.parametrize("status", [None, "queued", "running"])
def test_a_page_of_many_jobs_is_read_in_order_and_not_sorted(tmp_path: Path, status: str | None) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.submit()
    with statements(world.store) as said:
        world.control.list_jobs(actor=ADMIN, status=status)
    page = next(text for text in said if "ORDER BY jobs.created_at" in text)
    with world.store.read() as tx:
        values = ["queued", 50, 0] if status else [50, 0]
        steps = [str(row[-1]) for row in tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {page}", tuple(values))]
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    world.store.close()


def test_what_sqlite_logs_is_moved_beside_those_who_write_and_a_long_log_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, log = World(tmp_path), tmp_path / "elastrain.db-wal"
    world.submit()
    with world.store.write():  # nobody waits for a writer, nor he for us
        world.store.tidy()
    monkeypatch.setattr(engine, "LOG_PAGES", 1)
    for _ in range(3):
        world.submit()
        world.store.tidy()
    size = log.stat().st_size
    for _ in range(20):
        world.submit()
        world.store.tidy()
    assert log.stat().st_size < 2 * size
    world.store.close()


def test_a_process_that_is_put_together_no_longer_looks_through_all_of_it() -> None:
    before = gc.get_threshold()
    try:
        interpreter.settle()
        assert gc.get_freeze_count() > 0 and gc.get_threshold() == interpreter.COLLECT_AFTER
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
