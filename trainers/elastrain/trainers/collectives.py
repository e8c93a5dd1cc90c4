"""Talking to the other members of a generation, without ever being stuck in it.

Goals: a member that waits must leave as soon as the coordinator says that the generation is over. gloo's
`wait()` cannot be woken (neither abort, shutdown nor a new timeout reaches it), so nothing here waits in
it: operations are polled, and between two polls the flag is looked at. Building a group blocks until all
members come, so it happens in a side thread that is abandoned when the generation is withdrawn. Old groups
are parked, not destroyed: destroying one with a pending operation can take the process down.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

_parked: list[object] = []  # groups, stores and operations of generations that are over
_NEVER = timedelta(days=1)  # a busy peer is not a dead one: who is gone is the coordinator's to say
WAITS_S = 1.0  # after so long, and then as often, a member says that it waits for its peers
_FRAME = 4096  # bytes; the first guess of how long a member's commit entry is


class Broken(Exception):
    """A collective failed: a peer is gone. The generation is over."""


class Halted(Exception):
    """The coordinator ended the generation."""


class Rendezvous:
    """This worker's key-value store, where the members of a generation meet if it is rank 0."""

    def __init__(self, host: str) -> None:
        self.host = host
        with socket.create_server((host, 0)) as listener:  # on this address only, not on all of them
            port = listener.getsockname()[1]
            self._store = TCPStore(
                host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
            )

    @property
    def address(self) -> dict[str, Any]:
        return {"host": self.host, "port": self._store.port}


class Group:
    """The process group of one generation. Every method raises Broken or Halted, never blocks for good."""

    def __init__(
        self, pg: Any, rank: int, world: int, check: Callable[[], None], waiting: Callable[[], None]
    ) -> None:
        self._pg: Any = pg  # ProcessGroupGloo, whose methods are not all in its type; None if alone
        self.rank, self.world = rank, world
        self._check = check  # raises Halted
        self._waiting = waiting  # called now and then while waiting for peers
        self._frame = _FRAME

    def exchange(
        self, sends: Sequence[Tensor | None], sizes: Sequence[int], dtype: torch.dtype
    ) -> list[Tensor]:
        """All-to-all. sends[d]: what rank d gets, flat; sizes[s]: elements that come from rank s.

        Returns what came, by rank; what goes to oneself is neither sent nor returned.
        """
        return self.start_exchange(sends, sizes, dtype)()

    def start_exchange(
        self, sends: Sequence[Tensor | None], sizes: Sequence[int], dtype: torch.dtype
    ) -> Callable[[], list[Tensor]]:
        """As `exchange`, begun now and finished by calling what is returned."""
        if self._pg is None:
            return lambda: [torch.empty(0, dtype=dtype)]
        self._check()
        out_sizes = [0 if r == self.rank else int(n) for r, n in enumerate(sizes)]
        parts = [
            torch.empty(0, dtype=dtype) if t is None or r == self.rank else t for r, t in enumerate(sends)
        ]
        full = [p for p in parts if p.numel()]
        source = full[0] if len(full) == 1 else torch.cat(parts)  # to one peer only: no copy
        target = torch.empty(sum(out_sizes), dtype=dtype)
        try:
            work = self._pg.alltoall_base(target, source, out_sizes, [p.numel() for p in parts])
        except RuntimeError as error:
            raise Broken(_short(error)) from error

        def finish() -> list[Tensor]:
            self._wait(work, (source, target))
            return list(torch.split(target, out_sizes))

        return finish

    def gather_json(self, entry: Any) -> list[Any]:
        """Everyone's entry, by rank. One small all-gather; a second one only if somebody's entry outgrew
        the agreed frame."""
        if self._pg is None:
            return [entry]
        data = json.dumps(entry, separators=(",", ":")).encode()
        frames = self._gather_frames(data)
        lengths = [int.from_bytes(f[:8], "little") for f in frames]
        if max(lengths) + 8 > self._frame:
            self._frame = 1 << (max(lengths) + 8).bit_length()
            frames = self._gather_frames(data)
        return [json.loads(bytes(f[8 : 8 + n])) for f, n in zip(frames, lengths, strict=True)]

    def barrier(self) -> None:
        """Returns only when every member has entered it."""
        self.gather_json(None)

    def _gather_frames(self, data: bytes) -> list[bytes]:
        assert self._pg is not None
        self._check()
        frame = bytearray(self._frame)
        frame[:8] = len(data).to_bytes(8, "little")
        frame[8 : 8 + len(data)] = data[: self._frame - 8]
        mine = torch.frombuffer(frame[: self._frame], dtype=torch.uint8)
        everyone = torch.empty(self.world * self._frame, dtype=torch.uint8)
        try:
            work = self._pg._allgather_base(everyone, mine)
        except RuntimeError as error:
            raise Broken(_short(error)) from error
        self._wait(work, (mine, everyone))
        whole = everyone.numpy().tobytes()
        return [whole[r * self._frame : (r + 1) * self._frame] for r in range(self.world)]

    def _wait(self, work: Any, memory: tuple[Tensor, ...]) -> None:
        pause, since = 50e-6, time.monotonic()
        try:
            while not work.is_completed():
                self._check()
                if time.monotonic() - since > WAITS_S:
                    self._waiting()
                    since = time.monotonic()
                time.sleep(pause)
                pause = min(pause * 1.5, 1e-3)
            try:
                work.wait()  # completed: tells how
            except RuntimeError as error:
                raise Broken(_short(error)) from error
        except (Broken, Halted):
            _parked.append((work, memory))  # a pending operation still writes there
            raise

    def park(self) -> None:
        """Leave the group behind, whatever is pending in it."""
        if self._pg is not None:
            _parked.append(self._pg)


def build(
    host: str,
    store_at: dict[str, Any],
    generation: int,
    rank: int,
    world: int,
    check: Callable[[], None],
    waiting: Callable[[], None],
) -> Group:
    """The group of a generation; returns when all members are there. Raises Broken or Halted.

    host: this member's address, for its peers. store_at: where rank 0's key-value store listens.
    """
    if world == 1:
        return Group(None, 0, 1, check, waiting)
    box: list[Any] = []

    def make() -> None:
        try:
            client = TCPStore(
                store_at["host"],
                store_at["port"],
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=60),
            )
            store = PrefixStore(f"generation-{generation}", client)
            # peers use this address, never what the host name resolves to
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [ProcessGroupGloo.create_device(hostname=host)]
            options._timeout = _NEVER
            box.append((ProcessGroupGloo(store, rank, world, options), client, store))
        except Exception as error:  # told to the waiting thread below
            box.append(error)

    thread = threading.Thread(target=make, daemon=True, name=f"build-{generation}")
    thread.start()
    since = time.monotonic()
    while not box:
        check()
        if time.monotonic() - since > WAITS_S:
            waiting()
            since = time.monotonic()
        thread.join(0.001)
    if isinstance(box[0], Exception):
        raise Broken(_short(box[0]))
    pg, client, store = box[0]
    _parked.extend((client, store))
    return Group(pg, rank, world, check, waiting)


def _short(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
