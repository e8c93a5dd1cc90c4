"""The words of the membership machine: facts that go in (events), orders that come out (actions).

Plain frozen data, no I/O. `record` and `cursor` are opaque to the machine: it only passes them on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from elastrain.trainers.membership.reports import Fault as Fault
from elastrain.trainers.membership.reports import Json as Json
from elastrain.trainers.membership.reports import Range as Range
from elastrain.trainers.membership.reports import Report as Report
from elastrain.trainers.membership.reports import Rewind as Rewind

Ending = Literal["succeeded", "failed", "paused", "preempted", "cancelled"]
Blamed = Literal["user", "infrastructure", "service"]


# ---- events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Registered:
    worker: str
    node: str
    pid: int
    address: Json  # where its key-value store for rendezvous listens


@dataclass(frozen=True)
class Warm:
    worker: str
    blocks: int  # size of the model in blocks


@dataclass(frozen=True)
class StartFailed:
    worker: str
    fault: Fault


@dataclass(frozen=True)
class Reported:
    worker: str
    report: Report


@dataclass(frozen=True)
class Sealed:
    worker: str
    generation: int
    step: int


@dataclass(frozen=True)
class Committed:
    """A member passes on the commit record of `step`, the step that is thereby accepted."""

    worker: str
    generation: int
    step: int
    record: Json


@dataclass(frozen=True)
class Idle:
    """A member did everything that was due and waits at a boundary to be ended."""

    worker: str
    generation: int
    step: int


@dataclass(frozen=True)
class Began:
    worker: str
    step: int
    microbatch: int


@dataclass(frozen=True)
class Beat:
    worker: str


@dataclass(frozen=True)
class Waits:
    """A member waits for its peers in a collective, and says so every second."""

    worker: str
    generation: int
    finished: int = 0  # operations that it has finished in this generation


@dataclass(frozen=True)
class Works:
    """A member's training thread does something that takes long, and goes on."""

    worker: str


@dataclass(frozen=True)
class Probed:
    """What came of a Probe."""

    worker: str
    generation: int
    unreachable: tuple[str, ...]  # members


@dataclass(frozen=True)
class Notice:
    """Somebody is going to end this worker's process, in `grace_s` seconds at the earliest."""

    worker: str
    grace_s: float
    why: str  # "SIGTERM"


@dataclass(frozen=True)
class Closed:
    worker: str


@dataclass(frozen=True)
class GroupGone:
    group: str
    causes: Mapping[str, str]


@dataclass(frozen=True)
class Scale:
    min: int
    target: int


@dataclass(frozen=True)
class Finish:
    why: Literal["paused", "preempted", "cancelled"]
    message: str | None = None


@dataclass(frozen=True)
class CheckpointWanted:
    reason: str


@dataclass(frozen=True)
class CheckpointSaved:
    step: int


@dataclass(frozen=True)
class Restored:
    step: int  # of the checkpoint that an opening with `restore` loads; 0: it begins from the seed
    own: bool = True  # this job's: another one's does not count as saved


@dataclass(frozen=True)
class Tick:
    now: float  # s, monotonic


_Coming = Registered | Warm | StartFailed | Closed | GroupGone | Notice
_Training = Beat | Began | Waits | Works | Probed | Committed | Sealed | Idle | Reported
Event = _Coming | _Training | Scale | Finish | CheckpointWanted | CheckpointSaved | Restored | Tick


# ---- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartGroup:
    group: str
    workers: tuple[str, ...]


@dataclass(frozen=True)
class StopGroup:
    group: str
    kill: bool


@dataclass(frozen=True)
class Fence:
    """Close the connection of a worker that was removed; what it still says is not heard."""

    worker: str
    why: str


@dataclass(frozen=True)
class Halt:
    """Tell the members that their generation is over: leave whatever you wait in and report."""

    generation: int
    workers: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Open:
    """Form generation `generation` with `members`, in rank order, at `step`."""

    generation: int
    members: tuple[str, ...]
    step: int
    cursor: Json | None = None
    record: Json | None = None  # leads from step - 1 to `step`, for those who are behind
    held: Mapping[str, tuple[Range, ...]] = field(default_factory=dict)
    same: tuple[int, tuple[str, ...]] = (0, ())  # a generation, and who holds just what it gave them
    whole: tuple[str, ...] = ()
    done: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    restore: bool = False  # nobody holds everything: load the newest checkpoint, or begin from the seed
    rewind: Rewind | None = None  # or: what is held led to nothing
    hold: bool = False  # hand over and make a checkpoint, and compute nothing
    cause: str = ""


@dataclass(frozen=True)
class Command:
    """An entry of the numbered log; takes effect at the boundary whose commit has seen its number."""

    number: int
    kind: Literal["regroup", "checkpoint", "finish"]


@dataclass(frozen=True)
class Accept:
    step: int
    record: Json
    cursor: Json | None = None  # at `step`; given if steps before it are accepted without their records


@dataclass(frozen=True)
class Probe:
    """Ask members which of the others they reach."""

    generation: int
    workers: tuple[str, ...]


@dataclass(frozen=True)
class Dump:
    """Have a worker write into its log where it is."""

    worker: str


@dataclass(frozen=True)
class Dismiss:
    """Tell workers to end by themselves."""

    workers: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Say:
    """An event for people."""

    type: str
    message: str
    data: Json


@dataclass(frozen=True)
class End:
    """The attempt is over. `failed_by` only with outcome failed."""

    outcome: Ending
    step: int
    failed_by: Blamed | None = None
    message: str | None = None


Action = StartGroup | StopGroup | Fence | Halt | Open | Command | Accept | Probe | Dump | Dismiss | Say | End
