"""Many simulated workers in one process, each with a real connection to a real coordinator.

    python -m rig.crowd STEP_S PARAMETERS      orders on stdin, what happened on stdout, JSON by line

They say everything that real workers say, in the same words, and compute nothing: a step takes STEP_S. So
what the driver's process uses meanwhile is what coordination costs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from elastrain.trainers.membership.messages import Json, Range, Report
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.membership.wire import decode
from elastrain.trainers.numerics.chunks import FlatSpace, Ownership
from elastrain.trainers.numerics.cursor import Cursor

BLOCK = 64 * 1024  # elements
PER_NODE = 8
SIZES = {"parameters": 200, "train_size": 1_000_000, "val_size": 0}


@dataclass(frozen=True)
class Layout:
    """What everybody holds, worked out for all at once."""

    held: dict[str, list[Range]]
    second: int | None  # the buddy of rank 0

    @classmethod
    def of(cls, space: FlatSpace, opening: Opening) -> Layout:
        own, workers = Ownership.of(space, opening.domains()), opening.workers
        held: dict[str, list[Range]] = {w: [] for w in workers}
        for bucket in space.buckets():
            for chunk, owner in own.chunks(bucket):
                for rank in {owner, own.buddy[owner]} - {None}:
                    held[workers[rank or 0]].append(chunk)
        return cls(held, own.buddy[0])


class Crowd:
    def __init__(self, step_s: float, parameters: int) -> None:
        self.step_s, self.space = step_s, FlatSpace((), -(-parameters // BLOCK) * BLOCK, BLOCK)
        self.workers: dict[str, Member] = {}
        self.training: asyncio.Task[None] | None = None
        self.over = -1  # newest generation that somebody was told is over
        self.sealed: dict[int, set[str]] = {}
        self.layouts: dict[int, Layout] = {}
        self.log: list[tuple[int, str]] = []
        self.step = 0
        self.told: tuple[bytes, Json] = (b"", {})
        self.openings: dict[int, Opening] = {}
        self.door = asyncio.Semaphore(16)  # so many connect at once

    async def run(self) -> None:
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        tasks: list[asyncio.Task[None]] = []
        while text := await lines.readline():
            match json.loads(text):
                case ["start", start]:
                    member = self.workers[start["worker"]] = Member(self, start)
                    tasks.append(asyncio.create_task(member.live()))
                case ["kill", worker]:
                    self.workers[worker].kill()

    def read(self, data: str | bytes) -> Json:
        """All members are told the same: if it is long, it is read once."""
        if isinstance(data, str):
            return decode(data)
        if data != self.told[0]:
            self.told = (data, decode(data))
        return self.told[1]

    def opening(self, said: Json) -> Opening:
        if said["generation"] not in self.openings:
            self.openings[said["generation"]] = Opening.from_json(said)
        return self.openings[said["generation"]]

    def layout(self, opening: Opening) -> Layout:
        if opening.generation not in self.layouts:
            self.layouts[opening.generation] = Layout.of(self.space, opening)
        return self.layouts[opening.generation]

    def seals(self, worker: str, opening: Opening) -> None:
        """The last one to seal begins to train."""
        sealed = self.sealed.setdefault(opening.generation, set())
        sealed.add(worker)
        if len(sealed) == len(opening.members):
            self.training = asyncio.create_task(self.train(opening))

    async def train(self, opening: Opening) -> None:
        """One step after the other, until the generation is over or everyone is to stop at a boundary."""
        members = [self.workers[w] for w in opening.workers]
        second = self.layout(opening).second
        tellers = [members[0], *([members[second]] if second is not None else [])]
        while self.over < opening.generation:
            for rank, member in enumerate(members):
                await member.send("began", step=self.step, microbatch=rank)
            await asyncio.sleep(self.step_s)
            if self.over >= opening.generation:
                return
            record = self.record(opening.workers)
            self.step += 1
            for member in tellers:
                await member.send("committed", generation=opening.generation, step=self.step, record=record)
            if any(kind == "regroup" for number, kind in self.log if number <= record["log"]):
                for member in members:
                    await member.report("boundary")
                return

    def record(self, workers: list[str]) -> Json:
        """As cursor.merge makes it."""
        return {
            "step": self.step,
            "log": self.log[-1][0] if self.log else 0,
            "loss": 1.25,
            "weight": 1.0,
            "norm_sq": 0.5,
            "used": f"{(1 << SIZES['parameters']) - 1:x}",
            "bad": [],
            "others": [""],
            "seconds": {w: [1, 0.123456] for w in workers},
            "ids": "0" * 32,
            "workers": workers,
        }


class Member:
    def __init__(self, crowd: Crowd, start: Json) -> None:
        self.crowd, self.start, self.id = crowd, start, start["worker"]
        self.line: ClientConnection | None = None
        self.opening: Opening | None = None
        self.reported = 0  # generation
        self.said_at = 0.0

    async def live(self) -> None:
        url = f"{self.start['coordinator']}/?worker={self.id}"
        options = {"compression": None, "max_size": None, "ping_interval": None, "proxy": None}
        headers = {"Authorization": f"Bearer {self.start['key']}"}
        async with self.crowd.door:
            self.line = await connect(url, additional_headers=headers, open_timeout=60, **options)
        await self.talk(self.line)
        print(json.dumps([self.start["group"], self.id]), flush=True)

    async def talk(self, line: ClientConnection) -> None:
        node, number = f"n{int(self.id[1:]) // PER_NODE}", int(self.id[1:])
        address = {
            "host": f"10.0.{number // PER_NODE // 250}.{number // PER_NODE % 250}",
            "port": 40000 + number,
        }
        await self.send(
            "register", group=self.start["group"], node=node, pid=number, started=0.0, address=address
        )
        while (welcome := decode(await line.recv()))["kind"] != "welcome":
            pass
        await self.send("warm", blocks=self.crowd.space.blocks, **SIZES)
        beats = asyncio.create_task(self.beat(welcome["beat_s"]))
        with contextlib.suppress(ConnectionClosed):
            async for data in line:
                await self.hear(self.crowd.read(data))
        beats.cancel()

    async def beat(self, every_s: float) -> None:
        """As session.py does it: a word that was said lately saves a beat."""
        while True:
            await asyncio.sleep(every_s)
            if time.monotonic() - self.said_at >= every_s:
                await self.send("beat")

    async def hear(self, said: Json) -> None:
        match said["kind"]:
            case "open":
                self.opening = opening = self.crowd.opening(said)
                self.crowd.log = []
                self.crowd.step = opening.step
                await self.send("sealed", generation=opening.generation, step=opening.step)
                self.crowd.seals(self.id, opening)
            case "halt":
                self.crowd.over = max(self.crowd.over, said["generation"])
                await self.report("halted")
            case "command":
                if (said["number"], said["command"]) not in self.crowd.log:
                    self.crowd.log.append((said["number"], said["command"]))
            case "dismiss":
                assert self.line is not None
                await self.line.close()

    async def report(self, why: Any) -> None:
        opening = self.opening
        if opening is None or self.reported >= opening.generation:
            return
        self.reported = opening.generation
        at, generation = self.crowd.step, opening.generation
        cursor = Cursor(step=at, updates=at).to_json()
        report = asdict(Report(generation, why, at, cursor, whole=True, layout=generation))
        await self.send("report", report={**report, "held": self.crowd.layout(opening).held[self.id]})

    async def send(self, kind: str, **fields: Any) -> None:
        assert self.line is not None
        self.said_at = time.monotonic()
        with contextlib.suppress(ConnectionClosed):
            await self.line.send(json.dumps({"kind": kind, **fields}, separators=(",", ":")))

    def kill(self) -> None:
        """As the kernel does it for a process that was killed."""
        if self.line is not None:
            self.line.transport.abort()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(Crowd(float(sys.argv[1]), int(sys.argv[2])).run())
