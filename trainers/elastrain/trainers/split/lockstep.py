"""The processes of one worker (`workers.processes`), among which its model is split.

    lead: number 0, the member of every generation ══ 1 ══ ... ══ count-1: its shards     each: a part of all

All of them run the same loop. Only the lead speaks with the coordinator; what it hears and decides the others
are told (`agree`), so that all do the same in the same order. Between workers, number n talks to number n.

They live and die together: a shard's death ends the lead at once, the kernel ends shards with their lead. So
to everybody else a worker is one thing that dies. What may fail while they go on living (a peer is gone, the
generation is halted) may hit some of them only. Who fails *leaves* the generation, in memory that all share,
and then nobody waits for it in vain; all meet again in `rally`, before the lead reports. Where they compute
together, in collectives of torch that nothing can wake, nobody may leave: they enter them as one (`go_on`).
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from elastrain.trainers.exchange.transports import WAITS_S, Broken, Halted
from elastrain.trainers.launching.parent import die_with_parent
from elastrain.trainers.launching.processes import cause
from elastrain.trainers.split.shards import Alone, Dismissed

T = TypeVar("T")
LOOK_S = 0.01  # how soon one that waits sees that another has left
REAPED_S = 5.0  # until a dead shard's end is known; its lines are closed a moment before
STARTING, BETWEEN, OVER = "starting", "between", "over"
# what is raised in all when in the lead
_TOLD = {kind.__name__: kind for kind in (Broken, Halted, Dismissed)}


class Shards(Alone):
    """One of several, in one of their processes. Made by `fork`."""

    def __init__(
        self, number: int, count: int, shared: memoryview, lines: list[Connection], news: list[Connection]
    ) -> None:
        """shared: 64-bit cells that all see. lines: of the lead to each shard, or of a shard to its lead.
        news: the same, one way, for what is said out of turn."""
        self.number, self.count = number, count
        self._cells, self._lines, self._news = shared, lines, news
        self._early: dict[Connection, dict[str, Any]] = {}  # said in the rally, while somebody was not there
        self._generation: int | None = None
        self._at = STARTING
        self._saying = threading.Lock()
        self._following: list[threading.Thread] = []  # of the lead: each ends with what it follows
        self._closing = False
        self._seen = [0, 0]
        # lead: called now and then while it waits for shards that wait for their peers, with how many of
        # their waits came to an end; or that work at something long, with None
        self.patient: Callable[[int | None], None] = lambda finished: None

    # ---- memory that all see: one cell each, then four more -----------------------------------

    def leave(self, generation: int) -> None:
        self._cells[self.number] = max(self._cells[self.number], generation)

    def left(self, generation: int) -> bool:
        return any(self._cells[n] >= generation for n in range(self.count))

    def halt(self, generation: int) -> None:
        self._cells[self.count] = max(self._cells[self.count], generation)

    def lose(self) -> None:
        self._cells[self.count + 1] = 1

    def halted(self, generation: int) -> bool:
        """Or is the coordinator gone? That the lead says in its own time."""
        return self._cells[self.count] >= generation or self._cells[self.count + 1] > 0

    def waits(self, finished: int) -> None:
        """A shard waits for its peers."""
        self._cells[self.count + 2] = finished + 1

    def works(self) -> None:
        """A shard is busy with something long."""
        self._cells[self.count + 3] += 1

    # ---- together -----------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        return -1 if self._generation is None else self._generation

    def enter(self, generation: int) -> None:
        self._generation, self._at = generation, f"in {generation}"

    def gather(self, value: T) -> list[T]:
        if self.lead:
            values = [value, *(self._hear(line)["value"] for line in self._lines)]
            self._tell(value=values)
            return values
        self._tell(value=value)
        heard: list[T] = self._hear(self._lines[0])["value"]
        return heard

    def agree(self, decide: Callable[[], T]) -> T:
        if not self.lead:
            value: T = self._hear(self._lines[0])["value"]
            return value
        try:
            value = decide()
        except (Broken, Halted, Dismissed) as error:
            self._tell(raised=type(error).__name__, why=str(error))
            raise
        self._tell(value=value)
        return value

    def go_on(self, decide: Callable[[], T]) -> T:
        self.gather(None)
        return self.agree(decide)

    def rally(self, value: T) -> list[T]:
        self._generation, self._at = None, f"after {self._generation}"
        values = self.gather(value)
        self._at = BETWEEN
        return values

    def _tell(self, **said: Any) -> None:
        with self._dying_together():
            for line in self._lines:
                line.send_bytes(json.dumps({"at": self._at, **said}).encode())

    def _hear(self, line: Connection) -> dict[str, Any]:
        """What was said where this process is now. Of a generation that is over much may lie there yet."""
        with self._dying_together():
            while True:
                said = self._early.pop(line, None) or self._next(line)
                if said["at"] == OVER or ("raised" in said and said["at"] == self._at):
                    raise _TOLD[said.get("raised", "Dismissed")](said["why"])
                if said["at"] == self._at:
                    return said
                if said["at"] == f"after {self._generation}":
                    self._early[line] = said
                    self._missed()

    def _next(self, line: Connection) -> dict[str, Any]:
        since = time.monotonic()
        while not line.poll(LOOK_S):
            if self._generation is not None and self.left(self._generation):
                # said before it left: whoever passed a place and whoever did not would differ
                if line.poll():
                    break
                self._missed()
            if self.lead and time.monotonic() - since > WAITS_S:
                since = time.monotonic()
                self._have_patience()
        said: dict[str, Any] = json.loads(line.recv_bytes())
        return said

    def _missed(self) -> None:
        raise Broken("another process of this worker has left the generation")

    def _have_patience(self) -> None:
        waits, works = self._cells[self.count + 2], self._cells[self.count + 3]
        if works != self._seen[1]:
            self.patient(None)
        elif waits:
            self.patient(waits - 1)
        self._seen = [waits, works]
        self._cells[self.count + 2] = 0

    @contextlib.contextmanager
    def _dying_together(self) -> Iterator[None]:
        """A line that breaks is a death, which the other end of it is about to share."""
        try:
            yield
        except (EOFError, ConnectionError):
            time.sleep(REAPED_S if self.lead else 0.0)
            os._exit(1)

    # ---- out of turn --------------------------------------------------------------------------

    def say(self, kind: str, fields: dict[str, Any]) -> None:
        """A shard has something for the coordinator, which the lead passes on."""
        with self._saying, self._dying_together():
            self._news[0].send_bytes(json.dumps([kind, fields]).encode())

    def listen(self, pass_on: Callable[[str, dict[str, Any]], None]) -> None:
        """The lead: have what shards say passed on, by a thread each."""

        def hear(news: Connection) -> None:
            with contextlib.suppress(EOFError, ConnectionError, Dismissed):
                while True:
                    pass_on(*json.loads(news.recv_bytes()))

        for news in self._news:
            self._follow(hear, news)

    # ---- ends ---------------------------------------------------------------------------------

    def watch(self, children: list[int]) -> None:
        """The lead: end when one of these ends."""
        for number, pid in enumerate(children, start=1):
            self._follow(self._watch, number, pid)

    def _follow(self, what: Callable[..., None], *of: Any) -> None:
        thread = threading.Thread(target=what, args=of, daemon=True, name="shard")
        thread.start()
        self._following.append(thread)

    def _watch(self, number: int, pid: int) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if self._closing:
            return
        print(f"shard {number} ended with {cause(code)}: so does its worker", file=sys.stderr, flush=True)
        if code == -signal.SIGKILL:
            os.kill(os.getpid(), signal.SIGKILL)  # the fact that the worker's end is known by
        os._exit(1)

    def dismiss(self, why: str) -> None:
        if not self.lead:
            return
        self._closing = True
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.send_bytes(json.dumps({"at": OVER, "why": why}).encode())

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for thread in self._following:
            thread.join(max(0.0, deadline - time.monotonic()))


def fork(count: int) -> Alone:
    """Become `count` processes; returns in each of them. Before any thread and any work with tensors.

    The new ones end with this one, and hear no SIGTERM: that is a notice to the worker, and so to the lead.
    """
    if count == 1:
        return Alone()
    shared = memoryview(mmap.mmap(-1, 8 * (count + 4))).cast("B").cast("q")
    for n in range(count + 1):
        shared[n] = -1
    lead, children = os.getpid(), list[int]()
    lines, news = list[Connection](), list[Connection]()
    for number in range(1, count):
        (ours, theirs), (hears, says) = Pipe(), Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            die_with_parent(lead)
            _hear_no_sigterm()
            for line in (ours, hears, *lines, *news):
                line.close()
            return Shards(number, count, shared, [theirs], [says])
        theirs.close()
        says.close()
        children.append(pid)
        lines.append(ours)
        news.append(hears)
    shards = Shards(0, count, shared, lines, news)
    shards.watch(children)
    return shards


def _hear_no_sigterm() -> None:
    """But what this process starts hears it as ever."""
    signal.signal(signal.SIGTERM, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
