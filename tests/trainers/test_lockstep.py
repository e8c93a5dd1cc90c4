"""The processes of one worker stay together, whatever happens to one. Here threads stand for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest

from elastrain.trainers.exchange.transports import Broken, Halted
from elastrain.trainers.split.lockstep import Shards
from elastrain.trainers.split.shards import Alone, Dismissed

COUNT = 3
PATIENCE_S = 30.0


class Worker:
    """A lead and its shards."""

    def __init__(self) -> None:
        cells = memoryview(bytearray(8 * (COUNT + 4))).cast("q")
        for n in range(COUNT + 1):
            cells[n] = -1
        lines = [Pipe() for _ in range(1, COUNT)]
        news = [Pipe(duplex=False) for _ in range(1, COUNT)]
        self.all = [Shards(0, COUNT, cells, [ours for ours, _ in lines], [hears for hears, _ in news])]
        for number in range(1, COUNT):
            line, says = lines[number - 1][1], news[number - 1][1]
            self.all.append(Shards(number, COUNT, cells, [line], [says]))
        self._threads = ThreadPoolExecutor(COUNT)

    def do(self, *acts: Callable[[Shards], Any]) -> list[Future[Any]]:
        """One act each, or the same one for all; at the same time."""
        acts = acts * COUNT if len(acts) == 1 else acts
        done = [self._threads.submit(act, s) for act, s in zip(acts, self.all, strict=True)]
        for future in done:
            future.exception(PATIENCE_S)
        return done


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    worker.do(lambda s: s.enter(1))
    yield worker
    worker._threads.shutdown(wait=False, cancel_futures=True)


def test_what_the_lead_decides_all_are_told(worker: Worker) -> None:
    asked: list[int] = []

    def act(s: Shards) -> Any:
        return s.agree(lambda: asked.append(s.number) or {"step": 7})

    assert [f.result() for f in worker.do(act)] == [{"step": 7}] * COUNT
    assert asked == [0]


@pytest.mark.parametrize("kind", [Broken, Halted, Dismissed])
def test_what_the_lead_raises_is_raised_in_all(worker: Worker, kind: type[Exception]) -> None:
    def decide() -> None:
        raise kind("so it is")

    for future in worker.do(lambda s: s.agree(decide)):
        assert type(future.exception()) is kind and "so it is" in str(future.exception())


def test_what_each_has_all_know_by_number(worker: Worker) -> None:
    assert [f.result() for f in worker.do(lambda s: s.gather(s.number * 1.5))] == [[0.0, 1.5, 3.0]] * COUNT


@pytest.mark.parametrize("who", range(COUNT))
def test_one_that_left_the_generation_is_not_waited_for(worker: Worker, who: int) -> None:
    acts: list[Callable[[Shards], Any]] = [lambda s: s.gather(None)] * COUNT
    acts[who] = lambda s: s.leave(1)
    done = worker.do(*acts)
    assert all(isinstance(f.exception(), Broken) for n, f in enumerate(done) if n != who)
    for shards in worker.all:
        assert shards.left(1) and not shards.left(2)


def test_all_meet_again_wherever_they_left_and_hear_nothing_of_what_was_said_before(worker: Worker) -> None:
    came = threading.Event()

    def lead(s: Shards) -> Any:
        came.wait(PATIENCE_S)  # the others have said theirs by then, or have left
        s.leave(1)
        return s.rally("lead")

    def waits(s: Shards) -> Any:
        with pytest.raises(Broken):
            s.gather("a word of the generation that is over")
        s.leave(1)
        return s.rally("waited")

    def leaves(s: Shards) -> Any:
        s.leave(1)
        came.set()
        return s.rally("left")

    assert [f.result() for f in worker.do(lead, waits, leaves)] == [["lead", "waited", "left"]] * COUNT
    worker.do(lambda s: s.enter(2))
    assert [f.result() for f in worker.do(lambda s: s.gather(s.number))] == [[0, 1, 2]] * COUNT


def test_a_lead_that_still_waits_keeps_the_word_of_one_that_is_at_the_rally_already(worker: Worker) -> None:
    def early(s: Shards) -> Any:
        s.leave(1)
        return s.rally(s.number)

    def late(s: Shards) -> Any:
        with pytest.raises(Broken):
            s.gather("of all")
        s.leave(1)
        return s.rally(s.number)

    assert [f.result() for f in worker.do(late, early, early)] == [[0, 1, 2]] * COUNT


def test_none_enters_where_nobody_can_leave_while_one_is_gone(worker: Worker) -> None:
    """Also if the lead has decided to go on: the others are told only when all have come."""
    decided: list[bool] = []
    go = [lambda s: s.go_on(lambda: decided.append(True))] * (COUNT - 1)
    done = worker.do(*go, lambda s: s.leave(1))
    assert all(isinstance(f.exception(), Broken) for f in done[:-1]) and not decided


def test_a_lead_that_ends_lets_the_others_end_in_peace(worker: Worker) -> None:
    done = worker.do(lambda s: s.dismiss("it was dismissed"), *[lambda s: s.agree(str)] * (COUNT - 1))
    for future in done[1:]:
        assert isinstance(future.exception(), Dismissed) and "it was dismissed" in str(future.exception())


def test_what_the_coordinator_ended_all_see_without_a_word(worker: Worker) -> None:
    lead, *others = worker.all
    lead.halt(1)
    assert all(s.halted(1) and not s.halted(2) for s in others)
    lead.lose()
    assert all(s.halted(9) for s in others)


@pytest.mark.parametrize("samples", range(1, 9))
def test_every_sample_of_a_microbatch_is_computed_by_one_process(samples: int) -> None:
    indices = np.arange(samples) + 100
    parts = []
    for shards in Worker().all:
        first, end = shards.share(samples)
        part = shards.part(indices)
        assert len(part) >= 1  # nobody stays away from what all compute together
        if shards.counts(samples):
            assert part.tolist() == indices[first:end].tolist()
            parts += part.tolist()
        else:
            assert part.tolist() == [100]
    assert parts == indices.tolist()


def test_a_worker_of_one_process_computes_everything_and_asks_nobody() -> None:
    alone = Alone()
    assert alone.part(np.arange(5)).tolist() == [0, 1, 2, 3, 4]
    assert alone.gather("x") == ["x"] and alone.agree(lambda: 3) == 3 and alone.place == ()
