"""A worker's line to its coordinator. The open connection is the sign of life.

One thread listens, so that a halt reaches a worker that waits in a collective; another beats, so that user
code may take its time; a third one notices when the coordinator is gone (lifeline.py). The training thread
sends by itself.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import Any, NoReturn

import psutil
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from elastrain.trainers.exchange.collectives import Broken, Halted
from elastrain.trainers.exchange.reach import unreachable
from elastrain.trainers.launching.launcher import WorkerStart
from elastrain.trainers.membership.messages import Fault, Json, Report
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.membership.wire import decode
from elastrain.trainers.split.lockstep import Shards
from elastrain.trainers.split.shards import Alone
from elastrain.trainers.split.shards import Dismissed as Dismissed
from elastrain.trainers.storage import Storage
from elastrain.trainers.training.lifeline import SILENCE_S, Lifeline, bound_sends
from elastrain.trainers.training.replica import Replica

CONNECT_S = 20.0
WORKS_S = 1.0
DEATHS_S = 1.0  # until the death of a shard, of which a fault may be a consequence, has ended its lead


class Session:
    """Sends what this worker has to say; holds what it was told. `check` is safe to call at any time."""

    def __init__(self, start: WorkerStart, shards: Alone | None = None) -> None:
        """shards: the processes of this worker, of which this one is the lead."""
        self.start, self.worker = start, start.worker
        self.shards = shards or Alone()
        self._opened = contextlib.ExitStack()
        self._connection: ClientConnection = self._opened.enter_context(
            connect(
                f"{start.coordinator}/?worker={start.worker}",
                additional_headers={"Authorization": f"Bearer {start.key}"},
                compression=None,
                max_size=None,
                open_timeout=CONNECT_S,
                ping_interval=None,
                proxy=None,
            )
        )
        self.storage: Storage
        self._changed = threading.Condition()
        self._halted = -1
        self._gone: str | None = None
        self._opening: Json | None = None
        self._log: list[tuple[int, str]] = []
        self._peers: dict[str, Json] = {}  # worker -> address
        self._worked_at = self._said_at = 0.0
        self._lifeline: Lifeline | None = None
        self._giving_up = threading.Lock()

    @property
    def host(self) -> str:
        """This machine's address on the way to the coordinator: where peers can reach it too."""
        return str(self._connection.socket.getsockname()[0])

    def register(self, node: str, address: Json) -> Json:
        """Say who we are; returns the welcome: spec, secrets, storage. Raises Dismissed if not expected."""
        started = psutil.Process().create_time()
        self.send(
            "register", group=self.start.group, node=node, pid=os.getpid(), started=started, address=address
        )
        welcome = self._welcome()
        silence_s = float(welcome.get("silence_s", SILENCE_S))
        bound_sends(self._connection.socket, silence_s)
        self._lifeline = Lifeline(silence_s, welcome["beat_s"], self._lose, lambda: self._gone is not None)
        threading.Thread(target=self._listen, daemon=True, name="listen").start()
        threading.Thread(target=self._beat, args=(welcome["beat_s"],), daemon=True, name="beat").start()
        return welcome

    def _welcome(self) -> Json:
        try:
            while True:
                said: Json = json.loads(self._connection.recv(timeout=CONNECT_S))
                if said["kind"] == "welcome":  # a beat may come before it
                    return said
        except (ConnectionClosed, TimeoutError) as error:
            raise Dismissed(str(error) or "the coordinator did not answer") from error

    # ---- saying -----------------------------------------------------------------------------

    def send(self, kind: str, **fields: Any) -> None:
        """Raises Dismissed if the coordinator is gone."""
        self._said_at = time.monotonic()
        try:
            self._connection.send(json.dumps({"kind": kind, **fields}, separators=(",", ":")))
        except ConnectionClosed as error:
            raise Dismissed("the coordinator is gone") from error

    def began(self, step: int, microbatch: int) -> None:
        """So that a microbatch that takes its process down can be named."""
        self.send("began", step=step, microbatch=microbatch)

    def waits(self, generation: int, finished: int) -> None:
        """For peers, in a collective; `finished` of them came to an end."""
        self.send("waits", generation=generation, finished=finished)

    def works(self, generation: int) -> None:
        """Something takes long and goes on; said once a second at most. Raises Halted, as `check`."""
        self.check(generation)
        if time.monotonic() - self._worked_at > WORKS_S:
            self._worked_at = time.monotonic()
            self.send("works")

    def notice(self, grace_s: float, why: str) -> None:
        """Somebody is going to end this process."""
        self.send("notice", grace_s=grace_s, why=why)

    def report(self, report: Report) -> None:
        self.send("report", report=asdict(report))

    def start_failed(self, fault: Fault) -> None:
        self.send("start_failed", fault=asdict(fault))

    def committed(self, generation: int, step: int, record: Json) -> None:
        """Pass on the record that led to `step`: the step is accepted once the coordinator holds it."""
        self.send("committed", generation=generation, step=step, record=record)

    def evaluated(self, generation: int, replica: Replica) -> None:
        assert replica.cursor is not None
        self.send("evaluated", generation=generation, step=replica.step, metrics=dict(replica.cursor.metrics))

    # ---- hearing ----------------------------------------------------------------------------

    def check(self, generation: int) -> None:
        """Raises Halted if the generation is over, Dismissed if we are, Broken if a shard has left it."""
        if self._gone is not None:
            raise Dismissed(self._gone)
        if self._halted >= generation:
            raise Halted(f"generation {generation} is over")
        if self.shards.left(generation):
            raise Broken("another process of this worker has left the generation")

    def next_opening(self) -> Opening:
        """Wait for the next generation. Raises Dismissed."""
        opening = Opening.from_json(self.shards.agree(self._next_opening))
        return opening.of_shard(self.shards.number)

    def _next_opening(self) -> Json:
        with self._changed:
            self._changed.wait_for(lambda: self._opening is not None or self._gone is not None)
            if self._gone is not None:
                raise Dismissed(self._gone)
            opening, self._opening = self._opening, None
        assert opening is not None
        return opening

    @property
    def log_number(self) -> int:
        return self._log[-1][0] if self._log else 0

    def commands(self, generation: int, after: int, upto: int) -> set[str]:
        """The kinds of the log's entries after..upto; waits for one that is still on its way."""
        return set(self.shards.agree(lambda: sorted(self._commands(generation, after, upto))))

    def _commands(self, generation: int, after: int, upto: int) -> set[str]:
        while upto > after:
            self.check(generation)
            with self._changed:
                if self._changed.wait_for(lambda: self.log_number >= upto, timeout=0.05):
                    return {kind for number, kind in self._log if after < number <= upto}
        return set()

    def wait_command(self, after: int) -> int | None:
        """The newest number, once there is one beyond `after`; None now and then, to look around."""
        return self.shards.agree(lambda: self._wait_command(after))

    def _wait_command(self, after: int) -> int | None:
        with self._changed:
            known = self._changed.wait_for(
                lambda: self.log_number > after or self._gone is not None or self._opening is not None,
                timeout=0.05,
            )
            return self.log_number if known and self.log_number > after else None

    def _listen(self) -> None:
        try:
            for data in self._connection:
                if self._lifeline is not None:
                    self._lifeline.heard()
                message = decode(data)
                with self._changed:
                    self._hear(message)
                    self._changed.notify_all()
            why = "the coordinator closed the connection"
        except Exception as error:
            why = f"the connection to the coordinator broke: {error}"
        self._lose(why)

    def _lose(self, why: str) -> None:
        """The coordinator is gone for us: whatever waits here ends."""
        with self._changed:
            self._gone = self._gone or why
            self.shards.lose()
            self._changed.notify_all()

    def _hear(self, message: Json) -> None:
        match message["kind"]:
            case "open":
                self._opening, self._log = message, []
                self._peers = {member["worker"]: member["address"] for member in message["members"]}
            case "halt":
                self._halted = max(self._halted, message["generation"])
                self.shards.halt(message["generation"])
            case "command":
                self._log.append((message["number"], message["command"]))
            case "probe":
                threading.Thread(target=self._probe, args=(message["generation"],), daemon=True).start()
            case "dump":
                faulthandler.dump_traceback(sys.stderr)
            case "dismiss":
                self._gone = message["why"]
                self.shards.lose()

    def _probe(self, generation: int) -> None:
        peers = {w: address for w, address in self._peers.items() if w != self.worker}
        with contextlib.suppress(Dismissed):
            self.send("probed", generation=generation, unreachable=unreachable(peers))

    def _beat(self, every_s: float) -> None:
        """Any word says that this process is there: one that was said lately saves a beat."""
        with contextlib.suppress(Dismissed):
            while self._gone is None:
                if time.monotonic() - self._said_at >= every_s:
                    self.send("beat")
                with self._changed:
                    self._changed.wait_for(lambda: self._gone is not None, timeout=every_s)

    # ---- for the shards -----------------------------------------------------------------------

    def speak_for(self, shards: Shards) -> None:
        """From now on pass on what they say, and that they wait or work when we wait for them."""

        def patient(finished: int | None) -> None:
            if finished is None:
                self.send("works")
            else:
                self.waits(shards.generation, finished)

        shards.patient = patient
        shards.listen(self._pass_on)

    def _pass_on(self, kind: str, fields: Json) -> None:
        match kind:
            case "fault":
                self.give_up(fields["generation"], Fault(**fields["fault"]))
            case "start_failed":
                self.send(kind, **fields)
                self.wait_dismissed()
                os._exit(1)
            case _:
                self.send(kind, **fields)

    def give_up(self, generation: int, fault: Fault) -> NoReturn:
        """A fault of one process of several: the others may be waiting for it where nothing wakes them. Tell
        of it, and end with all of them; what this worker holds the next generation has from others."""
        with self._giving_up:
            time.sleep(DEATHS_S)
            with contextlib.suppress(Dismissed):
                self.report(Report(generation, "fault", -1, fault=fault))
            os._exit(1)

    def wait_dismissed(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._gone is not None)

    def close(self) -> None:
        if self._lifeline is not None:
            self._lifeline.close()
        with contextlib.suppress(Exception):
            self._opened.close()
