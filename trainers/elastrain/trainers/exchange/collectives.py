"""Talking to the other members of a generation, without ever being stuck in it.

Goals: a member that waits must leave as soon as the coordinator says that the generation is over, and build
the next group while the old operation is still pending (how: transports.py). Building a group blocks until
all members come, so it happens in a side thread that is abandoned when the generation is withdrawn.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from elastrain.trainers.exchange.transports import (
    Broken,
    Gloo,
    Halted,
    Nccl,
    Patience,
    Transport,
    Work,
    make_gloo,
    make_nccl,
    short,
)
from elastrain.trainers.numerics.memory import blank
from elastrain.trainers.split.shards import Alone

__all__ = ["AT_ONCE", "Broken", "Group", "Halted", "Rendezvous", "build"]

CPU = torch.device("cpu")
STORE_S = 60.0  # until rank 0's key-value store has answered
AT_ONCE = 2  # buckets under way: gloo has as many threads, and what waits for one of them takes memory
_FRAME = 4096  # bytes; the first guess of how long a member's commit entry is
_LASTING = 1 << 16  # bytes; what is longer, such as an order, is not taken for what comes next


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


class Arrival:
    """What an exchange brings."""

    def __init__(self, data: Transport | None, work: Work | None, target: Tensor, came: list[int]) -> None:
        self._data, self._work, self._target, self._came = data, work, target, came

    def ready(self) -> bool:
        """Would a call return at once?"""
        return self._work is None or self._work.is_completed()

    def __call__(self) -> list[Tensor]:
        """What came, by rank, as soon as it is here. Raises Broken, Halted."""
        if self._data is not None and self._work is not None:
            self._data.join(self._work)
        return list(torch.split(self._target, self._came))


class Group:
    """The members of one generation, as one of them reaches them. Every method raises Broken or Halted, none
    blocks for good."""

    def __init__(
        self,
        rank: int,
        world: int,
        control: Gloo | None = None,
        data: Transport | None = None,
        shards: Alone | None = None,
    ) -> None:
        """control: for the commit, always over gloo. data: for all that is large. One alone has neither.
        shards: the processes of this member; what it says, the lead says for all of them."""
        assert (control is None) is (data is None)
        self.rank, self.world = rank, world
        self._shards = shards or Alone()
        self._control, self._data = control, data
        self._frame = _FRAME
        self._sent = 0

    @property
    def device(self) -> torch.device:
        """Where the tensors lie that it exchanges."""
        return self._data.device if self._data is not None else CPU

    def exchange(
        self, sends: Sequence[Tensor | None], sizes: Sequence[int], dtype: torch.dtype
    ) -> list[Tensor]:
        """All-to-all. sends[d]: what rank d gets, flat; sizes[s]: elements that come from rank s.

        Returns what came, by rank. Parts that lie one behind the other are sent without a copy.
        """
        return self.start_exchange(sends, sizes, dtype)()

    def start_exchange(
        self,
        sends: Sequence[Tensor | None],
        sizes: Sequence[int],
        dtype: torch.dtype,
        into: Tensor | None = None,
    ) -> Arrival:
        """As `exchange`, begun now and finished by calling what is returned. into: where it is to arrive,
        one after the other, (sum of sizes,)."""
        data = self._data
        if data is None:
            return Arrival(None, None, torch.empty(0, dtype=dtype), [0])
        came = [int(n) for n in sizes]
        self._sent += sum(t.nbytes for r, t in enumerate(sends) if t is not None and r != self.rank)
        parts = [torch.empty(0, dtype=dtype, device=data.device) if t is None else t for t in sends]
        source = joined(parts)
        target = into if into is not None else blank(sum(came), dtype, data.device)
        work = data.all_to_all(target, source, came, [p.numel() for p in parts])
        return Arrival(data, work, target, came)

    def take_sent(self) -> int:
        """Bytes that went to the others in exchanges since this was asked for."""
        sent, self._sent = self._sent, 0
        return sent

    def gather_json(self, entry: Any) -> list[Any]:
        """Everyone's entry, by rank. One small all-gather; a second one only if somebody's entry outgrew
        the agreed frame. Entered only with all that was exchanged before in memory."""
        if self._data is not None:
            self._data.settle()
        self._shards.gather(None)
        return self._shards.agree(lambda: self._gather_json(entry))

    def _gather_json(self, entry: Any) -> list[Any]:
        if self._control is None:
            return [entry]
        data = json.dumps(entry, separators=(",", ":")).encode()
        frames = self._gather_frames(self._control, data, self._frame)
        lengths = [int.from_bytes(f[:8], "little") for f in frames]
        if max(lengths) + 8 > self._frame:
            frame = 1 << (max(lengths) + 8).bit_length()
            frames = self._gather_frames(self._control, data, frame)
            self._frame = frame if frame <= _LASTING else self._frame
        return [json.loads(bytes(f[8 : 8 + n])) for f, n in zip(frames, lengths, strict=True)]

    def barrier(self) -> None:
        """Returns only when every member has entered it."""
        self.gather_json(None)

    def start_barrier(self) -> Arrival:
        """As `barrier`, begun now and over when what is returned can be called without waiting; with several
        processes already now."""
        if self._shards.count > 1:
            self.barrier()
        if self._control is None or self._data is None or self._shards.count > 1:
            return Arrival(None, None, torch.empty(0), [0])
        self._data.settle()
        mine, everyone = torch.zeros(1, dtype=torch.uint8), torch.empty(self.world, dtype=torch.uint8)
        return Arrival(self._control, self._control.all_gather(everyone, mine), everyone, [1] * self.world)

    def _gather_frames(self, control: Gloo, data: bytes, size: int) -> list[bytes]:
        frame = bytearray(size)
        frame[:8] = len(data).to_bytes(8, "little")
        frame[8 : 8 + len(data)] = data[: size - 8]
        mine = torch.frombuffer(frame[:size], dtype=torch.uint8)
        everyone = torch.empty(self.world * size, dtype=torch.uint8)
        control.join(control.all_gather(everyone, mine))
        whole = everyone.numpy().tobytes()
        return [whole[r * size : (r + 1) * size] for r in range(self.world)]

    def park(self) -> None:
        """Leave the group behind, whatever is pending in it."""
        if self._control is not None and self._data is not None:
            _leave(self._control, self._data)


def build(
    host: str,
    store_at: dict[str, Any],
    generation: int,
    rank: int,
    world: int,
    check: Callable[[], None],
    waiting: Callable[[int], None],
    device: torch.device = CPU,
    shards: Alone | None = None,
) -> Group:
    """The group of a generation; returns when all members are there. Raises Broken or Halted.

    host: this member's address, for its peers. store_at: where rank 0's key-value store listens.
    device: where the tensors lie that it exchanges. shards: the processes of this member.
    """
    if world == 1:
        return Group(0, 1, shards=shards)
    box: list[Any] = []
    abandoned = threading.Event()
    patience = Patience(check, waiting)

    def make() -> None:
        try:
            client = TCPStore(
                store_at["host"],
                store_at["port"],
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=STORE_S),
            )
            store = PrefixStore(f"generation-{generation}", client)
            box.append(_transports(store, rank, world, host, device, patience))
            if abandoned.is_set():
                _leave(*box[0])
        except Exception as error:  # told to the waiting thread below
            box.append(error)

    thread = threading.Thread(target=make, daemon=True, name=f"build-{generation}")
    thread.start()
    try:
        patience.until(lambda: bool(box))
    except BaseException:
        abandoned.set()
        if box and not isinstance(box[0], Exception):
            _leave(*box[0])
        raise
    if isinstance(box[0], Exception):
        raise Broken(short(box[0]))
    control, data = box[0]
    return Group(rank, world, control, data, shards)


def _transports(
    store: Any, rank: int, world: int, host: str, device: torch.device, patience: Patience
) -> tuple[Gloo, Transport]:
    control = Gloo(make_gloo(PrefixStore("gloo", store), rank, world, host), patience, store)
    if device.type != "cuda":
        return control, control
    return control, Nccl(make_nccl(PrefixStore("nccl", store), rank, world, device), patience, device)


def _leave(control: Gloo, data: Transport) -> None:
    if data is not control:
        data.leave()  # first: its kernels may hold up all else
    control.leave()


def joined(parts: list[Tensor]) -> Tensor:
    """Parts as one flat tensor: a view if they lie one behind the other in memory, else a copy."""
    full = [p for p in parts if p.numel()]
    if not full:
        return parts[0]
    at = full[0].data_ptr()
    for part in full:
        if part.data_ptr() != at or not part.is_contiguous():
            return torch.cat(full)
        at += part.numel() * part.element_size()
    first, length = full[0], sum(p.numel() for p in full)
    inside = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
    return first.as_strided((length,), (1,)) if length <= inside else torch.cat(full)
