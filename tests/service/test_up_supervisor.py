"""The Ray head is kept running, and its end is said with its reason."""

from __future__ import annotations

from elastrain.service.up_supervisor import BACKOFF_S, START_TIMEOUT_S, Supervisor


class FakeHead:
    """A head that does what the test says."""

    address = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.alive = False
        self.is_ready = False
        self.starts = 0
        self.stops = 0
        self.error: Exception | None = None

    def ready(self) -> bool:
        return self.is_ready

    def start(self) -> bool:
        self.starts += 1
        if self.error:
            raise self.error
        found, self.alive = self.alive, True
        return found

    def stop(self) -> None:
        self.stops += 1
        self.alive = False

    def why(self) -> str:
        return "the log's end"


def supervised() -> tuple[FakeHead, Supervisor, list[str]]:
    head, said = FakeHead(), list[str]()
    return head, Supervisor(head, said.append), said


def test_a_head_that_dies_is_started_again_and_the_reason_is_said() -> None:
    head, supervisor, said = supervised()
    assert supervisor.round(0) == "starting"
    head.is_ready = True
    assert supervisor.round(1) == "up"
    head.alive = False
    assert supervisor.round(2) == "waiting"
    assert "Ray ended" in said[-1] and "the log's end" in said[-1]
    assert supervisor.round(2 + BACKOFF_S[0]) == "starting"
    assert head.starts == 2


def test_a_head_that_a_killed_service_left_is_taken_over() -> None:
    head, supervisor, said = supervised()
    head.alive = head.is_ready = True
    supervisor.round(0)
    assert supervisor.round(1) == "up"
    assert "found Ray running" in said[0]


def test_starts_that_fail_in_a_row_come_less_and_less_often() -> None:
    head, supervisor, said = supervised()
    head.error = RuntimeError("no free block of ports")
    now_s = 0.0
    for wait_s in (*BACKOFF_S, BACKOFF_S[-1]):
        before = head.starts
        assert supervisor.round(now_s) == "waiting"
        assert supervisor.round(now_s + wait_s - 0.1) == "waiting"
        assert head.starts == before + 1
        now_s += wait_s
    assert "no free block of ports" in said[-1]


def test_a_head_that_hangs_while_it_starts_is_ended_and_tried_again() -> None:
    head, supervisor, _ = supervised()
    supervisor.round(0)
    assert supervisor.round(START_TIMEOUT_S - 1) == "starting"
    assert supervisor.round(START_TIMEOUT_S + 1) == "waiting"
    assert head.stops == 1
