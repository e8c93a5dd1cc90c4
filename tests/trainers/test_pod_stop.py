"""A pod that is about to be stopped tells its workers first."""

from collections.abc import Iterator

from elastrain.trainers.pod_stop import node_id, stop

RAYLET = ["/opt/ray/raylet", "--node_id=abcdef0123456789", "--gcs-address=10.0.0.1:6379"]


class Pod:
    """Workers that leave one after the other, each look later."""

    def __init__(self, workers: int, leave: bool = True) -> None:
        self.left = workers
        self.leave = leave
        self.now = 0.0
        self.drained: list[tuple[str, int]] = []

    def workers(self) -> int:
        return self.left

    def commands(self) -> Iterator[list[str]]:
        yield ["bash"]
        yield RAYLET

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.leave and self.drained:
            self.left -= 1

    def stop(self, seconds: float) -> str:
        drain = lambda node, left: self.drained.append((node, left))  # noqa: E731
        return stop(seconds, self.workers, self.commands, drain, lambda: self.now, self.sleep)


def test_a_pod_without_workers_is_let_go_at_once() -> None:
    pod = Pod(0)
    assert pod.stop(50) == "no worker is here"
    assert (pod.drained, pod.now) == ([], 0.0)


def test_a_pod_waits_until_its_workers_have_handed_over() -> None:
    pod = Pod(3)
    assert "handed over" in pod.stop(50)
    assert pod.drained == [("abcdef0123456789", 50)]
    assert pod.left == 0


def test_a_worker_that_does_not_leave_keeps_its_pod_for_no_longer_than_it_was_given() -> None:
    pod = Pod(1, leave=False)
    assert "still here" in pod.stop(5)
    assert pod.now == 5


def test_a_pod_whose_ray_is_gone_does_not_wait_for_anybody() -> None:
    assert node_id([["bash"], []]) is None
    assert node_id([RAYLET]) == "abcdef0123456789"
