"""Drivers hear of orders that another service process wrote down, though only one look is taken for all."""

from elastrain.service.changes import Changes, orders
from elastrain.service.jobs import Desired
from elastrain.service.store import jobs
from elastrain.service.watch import Watch
from world import World


def test_an_order_of_another_process_wakes_the_driver_and_silence_wakes_nobody(world: World) -> None:
    job, _ = world.running()
    changes = Changes()  # of another process than the world's: nothing is told to it
    watch = Watch(world.store, changes)
    watch.look()
    before = changes.count(orders(job))
    watch.look()
    assert changes.count(orders(job)) == before
    with world.store.write() as tx:
        row = jobs.lock(tx, job)
        jobs.change(tx, job, desired=Desired.PAUSE, desired_version=row.desired_version + 1)
    watch.look()
    assert changes.count(orders(job)) != before
