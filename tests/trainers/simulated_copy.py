"""What a simulated worker holds, versions in place of tensors, and the group in which it meets others.

A block's version is the step that it is at, so a chunk that was handed over wrongly, or an update that was
made twice or never, shows as a wrong number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from elastrain.trainers.exchange.transfers import Transfer
from elastrain.trainers.membership.messages import Fault, Json, Range, Report
from elastrain.trainers.membership.opening import Opening
from elastrain.trainers.numerics.chunks import Ownership


@dataclass
class Meeting:
    """The process group of one generation. An operation is over for a rank when those it needs have come."""

    opening: Opening
    ownership: Ownership
    transfers: list[Transfer]
    tables: dict[tuple[str, int], dict[int, Any]] = field(default_factory=dict)  # operation -> rank -> data
    records: dict[int, Json] = field(default_factory=dict)
    hurt: bool = False  # the process of a member is gone
    deaf: set[int] = field(default_factory=set)  # ranks that get nothing more from the others
    feels: dict[int, bool] = field(default_factory=dict)  # ranks that see an error of it; others just wait
    corrupt: bool = False  # members saw that two copies differ
    present: set[str] = field(default_factory=set)  # members that have not left it

    @property
    def world(self) -> int:
        return self.ownership.world


@dataclass
class Copy:
    """What a worker holds of the training (replica.py)."""

    blocks: int
    cursor: Json | None = None  # {"step", "position", "evaluated", "chain"}; None: nothing is held
    record: Json | None = None
    params: dict[int, int] = field(default_factory=dict)  # block -> version
    state: dict[int, int] = field(default_factory=dict)  # block -> version of its optimizer state
    rotten: set[int] = field(default_factory=set)  # blocks whose state has other bits than it should have
    whole: bool = False
    layout: int = 0  # the generation whose layout `state` has
    buffers: int = 0  # version of what everyone has and nobody owns
    new_buffers: int | None = None  # step whose buffers are here
    partial: set[int] | None = None  # microbatches of this step that are done
    reduced: dict[int, int] = field(default_factory=dict)  # block -> step whose sum is here

    @property
    def step(self) -> int:
        return int(self.cursor["step"]) if self.cursor is not None else -1

    def can_reach(self, step: int, block: int) -> bool:
        """Can the job go on at `step` or later with what is here of a block?"""
        version = self.state.get(block)
        if version is None or version >= step:  # the coordinator may hear of steps late
            return version is not None
        return version == step - 1 and self.reduced.get(block) == version

    def forget(self) -> None:
        self.cursor, self.record, self.whole, self.partial = None, None, False, None
        self.state, self.reduced, self.new_buffers, self.rotten = {}, {}, None, set()
        self.layout = 0

    def report(self, generation: int, why: Any, fault: Fault | None = None) -> Report:
        if self.cursor is None:
            return Report(generation, why, -1, fault=fault)
        held = tuple(ranges(self.state))
        done = tuple(sorted(self.partial or ()))
        cursor = dict(self.cursor)
        return Report(
            generation, why, self.step, cursor, self.record, held, self.whole, done, fault, layout=self.layout
        )

    def apply(self, record: Json) -> None:
        at = self.step
        assert record["step"] == at, f"same bits: a record of step {record['step']} is applied at {at}"
        for block in self.state:
            assert self.reduced.get(block) == at, f"same bits: {block} is updated at {at} without its sum"
            assert self.state[block] == self.params[block] == at, f"same bits: block {block} is not at {at}"
            self.state[block] = self.params[block] = at + 1
        assert self.new_buffers == self.buffers == at, (
            f"same bits: buffers {self.buffers} are updated at {at}"
        )
        self.buffers, self.new_buffers = at + 1, None
        self.cursor = advance(self.cursor or {}, record)
        self.record, self.whole, self.partial, self.reduced = record, False, None, {}

    def catch_up(self, opening: Opening) -> None:
        assert opening.cursor is not None
        cursor = dict(opening.cursor)
        if self.step == opening.step - 1 and opening.record is not None:
            self.apply(opening.record)
        elif self.step != opening.step:
            self.forget()
        if cursor["step"] == opening.step - 1 and opening.record is not None:
            cursor = advance(cursor, opening.record)
        assert cursor["step"] == opening.step, f"a cursor of {cursor['step']} opens step {opening.step}"
        self.cursor, self.record = cursor, opening.record or self.record

    def load(self, step: int, chain: int, held: Iterable[int]) -> None:
        # what was held for a notice was saved before it was evaluated; evaluating again changes no bit
        self.cursor = {"step": step, "position": 0, "evaluated": 0, "chain": chain}
        self.record, self.whole, self.buffers = None, True, step
        self.params = dict.fromkeys(range(self.blocks), step)
        self.state = dict.fromkeys(held, step)


def advance(cursor: Json, record: Json) -> Json:
    """The cursor after the step that `record` committed (cursor.py)."""
    assert record["step"] == cursor["step"]
    chain = longer(cursor["chain"], record["step"], record["microbatches"])
    return {**cursor, "step": cursor["step"] + 1, "position": 0, "chain": chain}


def longer(chain: int, step: int, microbatches: Iterable[int]) -> int:
    """The digest chain with one more step: which microbatches it used, in which order."""
    return hash((chain, step, *microbatches))


def ranges(blocks: Iterable[int]) -> list[Range]:
    found: list[Range] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block:
            found[-1] = (found[-1][0], block + 1)
        else:
            found.append((block, block + 1))
    return found


def blocks_in(chunks: Iterable[Range]) -> set[int]:
    return {block for start, stop in chunks for block in range(start, stop)}
