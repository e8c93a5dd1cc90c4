"""How the tensors of one generation travel: gloo in host memory, NCCL between GPUs. One seam for both.

    begin an all-to-all ─▶ join it (its tensors may be used) ─▶ settle (all of it is in memory) ─▶ leave

A wait must end as soon as the coordinator says that the generation is over, and the two differ in how.
gloo's `wait()` cannot be woken: neither abort, shutdown nor a new timeout reaches it. So operations are
polled, and one that is still pending is parked with its memory: it may write there yet, and destroying its
group can take the process down. NCCL's pending kernel holds its stream, and with it every later CUDA call of
the training thread, which then cannot look around: a watcher thread looks for it, and aborts the group.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor

from elastrain.trainers.exchange.parking import parking

log = logging.getLogger(__name__)

NEVER = timedelta(days=1)  # a busy peer is not a dead one: who is gone is the coordinator's to say
WAITS_S = 1.0  # after so long, and then as often, a member says that it waits for its peers
WATCH_S = 0.01  # how soon NCCL's watcher sees that the generation is over
ABORT_S = 10.0  # for NCCL to abort; then the group is left as it is


class Broken(Exception):
    """A collective failed: a peer is gone. The generation is over."""


class Halted(Exception):
    """The coordinator ended the generation."""


class Patience:
    """How a member waits: looking again and again whether its generation is still on, and saying so."""

    def __init__(self, check: Callable[[], None], waiting: Callable[[int], None]) -> None:
        """check: raises Halted. waiting: called now and then while waiting for peers, with the number of
        waits that came to an end."""
        self.check, self._waiting = check, waiting
        self._finished = 0

    def until(self, ready: Callable[[], bool], pause_s: float = 50e-6) -> None:
        """Return when it is. Raises Halted, and whatever else `check` and `ready` raise."""
        since = time.monotonic()
        while not ready():
            self.check()
            if time.monotonic() - since > WAITS_S:
                self._waiting(self._finished)
                since = time.monotonic()
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 1e-3)
        self._finished += 1


class Work(Protocol):
    """An operation that has begun."""

    def is_completed(self) -> bool: ...
    def wait(self) -> object: ...


class Transport(Protocol):
    """The process group of one generation. Every call raises Broken or Halted, none blocks for good."""

    device: torch.device  # where its tensors lie

    def all_to_all(self, target: Tensor, source: Tensor, came: list[int], sent: list[int]) -> Work:
        """Begin. came, sent: elements of `target` from, and of `source` for, each rank."""

    def join(self, work: Work) -> None:
        """From now on what the operation brought may be used."""

    def settle(self) -> None:
        """Return when all that was joined, and what was computed from it, is in memory."""

    def leave(self) -> None:
        """The generation is over, whatever is pending."""


class Gloo:
    """ProcessGroupGloo: polled, and parked."""

    device = torch.device("cpu")

    def __init__(self, pg: Any, patience: Patience, store: object = None) -> None:
        self._pg, self._patience, self._store = pg, patience, store
        self._pending: list[tuple[Work, tuple[Tensor, Tensor]]] = []  # with the memory that they use
        self._met = False  # something arrived: all members have come

    def all_to_all(self, target: Tensor, source: Tensor, came: list[int], sent: list[int]) -> Work:
        return self._begin(lambda: self._pg.alltoall_base(target, source, came, sent), (target, source))

    def all_gather(self, everyone: Tensor, mine: Tensor) -> Work:
        """Begin; `everyone` holds each rank's `mine`, one after the other."""
        return self._begin(lambda: self._pg._allgather_base(everyone, mine), (everyone, mine))

    def _begin(self, start: Callable[[], Any], memory: tuple[Tensor, Tensor]) -> Work:
        self._patience.check()
        work: Work = _or_broken(start)
        self._pending.append((work, memory))
        return work

    def join(self, work: Work) -> None:
        self._patience.until(work.is_completed)
        self.ended()
        _or_broken(work.wait)  # completed: tells how
        self._met = True

    def settle(self) -> None:
        """Joined is settled: there is no stream."""

    def leave(self) -> None:
        parking.take(self)

    def ended(self) -> bool:
        """Is nothing pending any more? The memory of what has ended is free then. A group that did not form
        for certain is never taken to be over: its end would wait for a peer that does not come."""
        self._pending = [(work, memory) for work, memory in self._pending if not work.is_completed()]
        return self._met and not self._pending


class Nccl:
    """ProcessGroupNCCL: ordered by streams, verified before a commit, aborted.

    The host waits in `settle` alone. What an aborted operation left in memory is never taken for a result:
    whoever aborts says so first.
    """

    def __init__(
        self, pg: Any, patience: Patience, device: torch.device, mark: Callable[[], Any] | None = None
    ) -> None:
        """pg: the NCCL backend. mark: an event of the device's stream, as it is now."""
        self._pg, self._patience, self.device = pg, patience, device
        self._mark = mark if mark is not None else lambda: torch.cuda.current_stream(device).record_event()
        self._pending: list[tuple[Work, tuple[Tensor, Tensor]]] = []
        self._over = threading.Event()
        self._aborting = threading.Lock()
        self._abort: threading.Thread | None = None
        threading.Thread(target=self._watch, daemon=True, name="nccl watcher").start()

    def all_to_all(self, target: Tensor, source: Tensor, came: list[int], sent: list[int]) -> Work:
        self._patience.check()
        work: Work = _or_broken(lambda: self._pg.alltoall_base(target, source, came, sent))
        self._pending.append((work, (target, source)))
        return work

    def join(self, work: Work) -> None:
        _or_broken(work.wait)  # lets the stream wait, not the host

    def settle(self) -> None:
        event = self._mark()

        def arrived() -> bool:
            done = all(work.is_completed() for work, _ in self._pending) and event.query()
            if self._over.is_set():  # looked at last: it may be complete because it was aborted
                raise Broken("the group was aborted")
            return bool(done)

        _or_broken(lambda: self._patience.until(arrived))
        if (error := self._pg.get_error()).name != "SUCCESS":
            raise Broken(f"NCCL: {error.name}")
        self._pending.clear()

    def leave(self) -> None:
        self._end().join(ABORT_S)
        parking.take(self)

    def ended(self) -> bool:
        """An aborted group is kept: what is left of it in the driver's hands is not ours to know."""
        return False

    def _watch(self) -> None:
        while not self._over.wait(WATCH_S):
            try:
                self._patience.check()
            except Exception:
                self._end()

    def _end(self) -> threading.Thread:
        """Abort, once, in a thread: it may take long where a peer's machine is gone."""
        with self._aborting:
            if self._abort is None:
                self._over.set()
                self._abort = threading.Thread(target=self._run_abort, daemon=True, name="nccl abort")
                self._abort.start()
            return self._abort

    def _run_abort(self) -> None:
        try:
            self._pg.abort()
        except Exception as error:
            log.warning("NCCL could not abort its group, it is left as it is: %s", short(error))


def make_gloo(store: Any, rank: int, world: int, host: str) -> Any:
    """The process group; returns when all members have come. host: this member's address, for its peers."""
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # peers use this address, never what the host name resolves to
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = NEVER
    return ProcessGroupGloo(store, rank, world, options)


def make_nccl(store: Any, rank: int, world: int, device: torch.device) -> Any:
    """The process group, its communicator begun: what is not blocking can be aborted at any time.

    torch's own watchdog ends the process when an operation fails or takes long: here neither is its business.
    """
    from torch.distributed import ProcessGroupNCCL

    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    options = ProcessGroupNCCL.Options()
    options.config.blocking = 0
    options._timeout = NEVER
    pg = ProcessGroupNCCL(store, rank, world, options)
    pg.eager_connect_single_device(device)
    return pg


def _or_broken(act: Callable[[], Any]) -> Any:
    """What torch raises when a peer is gone is our Broken."""
    try:
        return act()
    except RuntimeError as error:
        raise Broken(short(error)) from error


def short(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
