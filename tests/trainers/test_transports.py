"""Leaving what cannot be woken: gloo's operations are parked, NCCL's group (a fake) is aborted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor

from elastrain.trainers.exchange import transports
from elastrain.trainers.exchange.collectives import Group
from elastrain.trainers.exchange.parking import Parking, parking
from elastrain.trainers.exchange.transports import Broken, Gloo, Halted, Nccl, Patience

WAIT_S = 10.0  # a test that waits so long has found a hang


class Health(Enum):
    SUCCESS = 0
    REMOTE_ERROR = 1


class FakeWork:
    """Completed when told to, or when its group is aborted; `wait` raises what it is given."""

    def __init__(self, group: FakeNccl, error: str | None = None) -> None:
        self.group, self.error, self.done = group, error, False
        self.looked = threading.Event()

    def is_completed(self) -> bool:
        self.looked.set()
        return self.done or self.group.aborted.is_set()

    def wait(self) -> None:
        if self.error is not None:
            raise RuntimeError(f"{self.error}\nC++ frames")

    def query(self) -> bool:
        """The stream's event: behind the operation."""
        return self.is_completed()


class FakeNccl:
    """As ProcessGroupNCCL: works that hang until somebody aborts."""

    def __init__(self, abort: Callable[[], None] = lambda: None) -> None:
        self.abort_does = abort
        self.aborted = threading.Event()
        self.aborts = 0
        self.health = Health.SUCCESS
        self.works: list[FakeWork] = []

    def alltoall_base(self, target: Tensor, source: Tensor, came: list[int], sent: list[int]) -> FakeWork:
        self.works.append(FakeWork(self))
        return self.works[-1]

    def abort(self) -> None:
        self.aborts += 1
        self.abort_does()
        self.aborted.set()

    def get_error(self) -> Health:
        return self.health


class Coordinator:
    """What `check` looks at."""

    def __init__(self) -> None:
        self.halted = threading.Event()

    def check(self) -> None:
        if self.halted.is_set():
            raise Halted("generation 1 is over")


@pytest.fixture
def coordinator() -> Any:
    coordinator = Coordinator()
    yield coordinator
    coordinator.halted.set()  # so that no watcher outlives the test


def nccl(pg: FakeNccl, coordinator: Coordinator) -> Nccl:
    patience = Patience(coordinator.check, lambda _: None)
    return Nccl(
        pg, patience, torch.device("cpu"), mark=lambda: FakeWork(pg) if not pg.works else pg.works[-1]
    )


def begin(transport: Nccl) -> FakeWork:
    target, source = torch.zeros(2), torch.ones(2)
    work = transport.all_to_all(target, source, [0, 2], [0, 2])
    transport.join(work)
    assert isinstance(work, FakeWork)
    return work


def test_what_hangs_on_a_gpu_is_aborted_by_the_watcher_while_the_training_thread_waits(
    coordinator: Coordinator,
) -> None:
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    work = begin(transport)
    threading.Thread(target=lambda: work.looked.wait(WAIT_S) and coordinator.halted.set()).start()
    with pytest.raises((Halted, Broken)):
        transport.settle()
    assert pg.aborted.wait(WAIT_S)


def test_the_watcher_aborts_even_if_the_training_thread_is_held_up_in_a_cuda_call(
    coordinator: Coordinator,
) -> None:
    pg = FakeNccl()
    begin(nccl(pg, coordinator))
    coordinator.halted.set()
    assert pg.aborted.wait(WAIT_S), "nobody but the watcher looked"


def test_what_an_aborted_operation_left_in_memory_is_no_result(coordinator: Coordinator) -> None:
    """After an abort everything is 'completed'."""
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    begin(transport)
    transport.leave()
    assert pg.works[0].is_completed()
    with pytest.raises(Broken, match="aborted"):
        transport.settle()


def test_a_commit_is_entered_only_with_every_exchange_in_memory(coordinator: Coordinator) -> None:
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    entered = threading.Event()
    group = Group(0, 2, Control(entered), transport)  # type: ignore[arg-type]
    finish = group.start_exchange([None, torch.ones(2)], [0, 2], torch.float32)
    finish()
    thread = threading.Thread(target=group.gather_json, args=({"step": 1},))
    thread.start()
    assert pg.works[0].looked.wait(WAIT_S)
    assert not entered.is_set()
    pg.works[0].done = True
    thread.join(WAIT_S)
    assert entered.is_set()


class Control(Gloo):
    """A commit that everybody enters with the same entry."""

    def __init__(self, entered: threading.Event) -> None:
        self.entered = entered

    def all_gather(self, everyone: Tensor, mine: Tensor) -> Any:
        self.entered.set()
        everyone.copy_(torch.cat([mine, mine]))

    def join(self, work: Any) -> None:
        pass


def test_a_remote_error_is_no_result_though_the_operation_says_completed(coordinator: Coordinator) -> None:
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    begin(transport).done = True
    pg.health = Health.REMOTE_ERROR
    with pytest.raises(Broken, match="REMOTE_ERROR"):
        transport.settle()


def test_an_operation_that_fails_breaks_the_generation(coordinator: Coordinator) -> None:
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    with pytest.raises(Broken, match=r"^peer is gone$"):
        transport.join(FakeWork(pg, "peer is gone"))


def test_an_abort_that_raises_leaves_the_group_as_it_is(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise RuntimeError("ncclCommAbort failed")

    pg = FakeNccl(fails)
    transport = nccl(pg, coordinator)
    begin(transport)
    transport.leave()
    assert "ncclCommAbort failed" in caplog.text
    with pytest.raises(Broken):
        transport.settle()


def test_an_abort_that_hangs_does_not_hold_up_the_training_thread(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "ABORT_S", 0.01)
    stuck = threading.Event()
    pg = FakeNccl(lambda: stuck.wait() and None)
    transport = nccl(pg, coordinator)
    work = begin(transport)
    transport.leave()
    assert any(group is transport for _, group in parking.groups), "its memory is kept"
    assert not work.is_completed()
    stuck.set()


def test_a_group_is_aborted_once_whoever_comes_first(coordinator: Coordinator) -> None:
    pg = FakeNccl()
    transport = nccl(pg, coordinator)
    begin(transport)
    coordinator.halted.set()
    assert pg.aborted.wait(WAIT_S)
    transport.leave()
    transport.leave()
    assert pg.aborts == 1


class FakeGloo:
    """Operations that end when the test says so."""

    def __init__(self) -> None:
        self.works: list[FakeWork] = []

    def alltoall_base(self, *_: object) -> FakeWork:
        self.works.append(FakeWork(FakeNccl()))
        return self.works[-1]


def test_an_abandoned_operation_keeps_its_memory_until_it_has_ended() -> None:
    pg, coordinator = FakeGloo(), Coordinator()
    gloo = Gloo(pg, Patience(coordinator.check, lambda _: None))
    target, source = torch.zeros(2), torch.ones(2)
    memory = [weakref.ref(target), weakref.ref(source)]
    work = gloo.all_to_all(target, source, [0, 2], [0, 2])
    del target, source
    coordinator.halted.set()
    with pytest.raises(Halted):
        gloo.join(work)
    assert not gloo.ended() and all(ref() is not None for ref in memory)
    pg.works[0].is_completed = lambda: True  # type: ignore[method-assign]
    gloo.ended()
    assert all(ref() is None for ref in memory)


def test_a_group_that_did_not_form_for_certain_is_never_destroyed() -> None:
    pg = FakeGloo()
    gloo = Gloo(pg, Patience(lambda: None, lambda _: None))
    assert not gloo.ended()
    work = gloo.all_to_all(torch.zeros(2), torch.ones(2), [0, 2], [0, 2])
    pg.works[0].is_completed = lambda: True  # type: ignore[method-assign]
    gloo.join(work)
    assert gloo.ended()


class Old:
    """A group that is over."""

    pending = False

    def ended(self) -> bool:
        return not self.pending


def test_groups_of_long_gone_generations_do_not_add_up() -> None:
    now = [0.0]
    parking = Parking(clock=lambda: now[0])
    groups = [Old() for _ in range(6)]
    for group in groups:
        parking.take(group)
    groups[1].pending = True
    parking.clear()
    assert len(parking.groups) == 6, "an operation may still be on its way out of its thread"
    now[0] = Parking.AGE_S
    parking.clear()
    assert [group for _, group in parking.groups] == [groups[1], groups[4], groups[5]]


def test_who_waits_says_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "WAITS_S", 0.0)
    said: list[int] = []
    patience = Patience(lambda: None, said.append)
    patience.until(lambda: len(said) >= 3)
    patience.until(lambda: len(said) >= 4)
    assert said == [0, 0, 0, 1], "with how much got through"


class Echo:
    """The control line of two members who always say the same."""

    def __init__(self) -> None:
        self.sent: list[int] = []  # bytes of each exchange, by one member

    def all_gather(self, everyone: Tensor, mine: Tensor) -> None:
        self.sent.append(mine.numel())
        everyone.copy_(torch.cat([mine, mine]))

    def join(self, work: None) -> None: ...

    def settle(self) -> None: ...


def test_a_long_word_that_was_said_once_does_not_make_every_later_word_as_long() -> None:
    """The order of a long run was handed to a new server: each commit after it moved as many bytes."""
    line: Any = Echo()
    group = Group(0, 2, line, line)
    order, record = ["x" * 100_000], ["x" * 10_000]
    for entry in (1, order, 1, record, record, 1):
        assert group.gather_json(entry) == [entry, entry]
    assert line.sent == [4096, 4096, 131072, 4096, 4096, 16384, 16384, 16384]
