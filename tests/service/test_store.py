"""The store: migrations give exactly the tables that the program uses; writers queue, readers go on."""

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from elastrain.service.migrations import migrate, revisions
from elastrain.service.store import Store, engine, feed
from elastrain.service.store.schema import metadata
from world import ADMIN, World


def test_the_migrations_give_the_tables_that_the_program_uses(empty: str) -> None:
    url = empty
    migrate(url)
    migrate(url)
    current, newest = revisions(url)
    assert current == newest is not None
    store = Store(url)
    with store.read() as tx:
        context = MigrationContext.configure(tx, opts={"compare_type": False})
        assert compare_metadata(context, metadata) == []
    store.close()


def test_three_processes_may_migrate_one_new_database(empty: str) -> None:
    url = empty
    program = "import sys; from elastrain.service.migrations import migrate; migrate(sys.argv[1])"
    three = [subprocess.Popen([sys.executable, "-c", program, url]) for _ in range(3)]
    assert [process.wait(timeout=60) for process in three] == [0, 0, 0]
    current, newest = revisions(url)
    assert current == newest is not None


def test_parallel_writers_lose_nothing_and_positions_have_no_gap(world: World) -> None:
    id = world.submit()

    def write(number: int) -> None:
        for turn in range(10):
            with world.store.write() as tx:
                feed.add_event(tx, id, "test", f"{number} {turn}", {}, 0.0)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    positions = [event["id"] for event in world.events(id)]
    assert len(world.events(id, "test")) == 80
    assert positions == list(range(1, len(positions) + 1))


def test_a_reader_of_the_feed_never_misses_a_position_whose_commit_was_slow(world: World) -> None:
    id = world.submit()
    written, after = threading.Event(), 0
    seen: list[str] = []

    def slow() -> None:
        with world.store.write() as tx:
            feed.add_event(tx, id, "slow", "", {}, 0.0)
            written.set()
            time.sleep(0.3)

    def fast() -> None:
        written.wait()
        with world.store.write() as tx:
            feed.add_event(tx, id, "fast", "", {}, 0.0)

    threads = [threading.Thread(target=slow), threading.Thread(target=fast)]
    for thread in threads:
        thread.start()
    while len([name for name in seen if name in ("slow", "fast")]) < 2:
        for row in world.control.feed(id, actor=ADMIN, after=after, kinds={"event"})["rows"]:
            after = row["position"]
            seen.append(row["data"]["type"])
    for thread in threads:
        thread.join()
    assert [name for name in seen if name in ("slow", "fast")] == ["slow", "fast"]


def test_metrics_of_four_jobs_and_a_polled_list_do_not_lock_each_other_out(world: World) -> None:
    world.ray.cluster[0].resources["CPU"] = 8
    drivers = [world.running(workers={"min": 1, "max": 1})[1] for _ in range(4)]
    done = threading.Event()

    def poll() -> int:
        polls = 0
        while not done.is_set():
            world.control.list_jobs(actor=ADMIN)
            polls += 1
        return polls

    def train(number: int) -> None:
        for step in range(1, 51):
            drivers[number].step(step, loss=1.0, lr=0.1)

    with ThreadPoolExecutor(5) as pool:
        polling = pool.submit(poll)
        list(pool.map(train, range(4)))
        done.set()
        assert polling.result() > 0
    for driver in drivers:
        assert len(world.control.metrics(driver.job, actor=ADMIN)["loss"]) == 50


def test_odd_words_and_numbers_come_back_from_a_json_column_as_they_went_in(world: World) -> None:
    odd = {"half": "\ud800", "more": ["ü☃", 2**70, 1e16, 1e-7, 0.1, -0.0, None, True], "": {}}
    assert engine.parsed(engine.written(odd)) == odd
    id = world.submit(task_args={"hidden": 16}, labels={"team": "ü☃"})
    with world.store.write() as tx:
        feed.add_event(tx, id, "odd", "odd", {"odd": {**odd, "half": "whole"}}, world.clock.now())
    assert world.events(id, "odd")[0]["data"] == {"odd": {**odd, "half": "whole"}}


def test_of_two_reconcilers_on_one_store_the_second_stands_by_until_the_first_is_gone(world: World) -> None:
    first, ids = world.reconciler, [world.submit()]
    world.round()
    leading = world.store
    world.start()  # another process, on the same store and the same Ray
    assert world.reconciler is not first
    world.ray.cluster[0].resources["CPU"] = 8
    ids.append(world.submit())
    world.round()
    assert [world.status(id) for id in ids] == ["starting", "queued"]
    leading.close()
    deadline = time.monotonic() + 20  # PostgreSQL gives a session's locks back when it has time
    while world.status(ids[1]) == "queued" and time.monotonic() < deadline:
        world.round()
    assert [world.status(id) for id in ids] == ["starting", "starting"]
    assert [launch.env["ELASTRAIN_JOB"] for launch in world.ray.launches] == ids
