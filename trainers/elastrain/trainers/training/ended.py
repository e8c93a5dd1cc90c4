"""How a generation ended for one member, as its report says it."""

from __future__ import annotations

from dataclasses import replace

from elastrain.trainers.checkpoints.restore import BadCheckpoint
from elastrain.trainers.checkpoints.snapshots import Snapshots
from elastrain.trainers.exchange.collectives import Broken, Halted
from elastrain.trainers.exchange.digests import Corrupt
from elastrain.trainers.membership.messages import Fault, Report
from elastrain.trainers.training.faults import UserFault, internal
from elastrain.trainers.training.judge import Rewound
from elastrain.trainers.training.replica import Replica
from elastrain.trainers.training.session import Session

SAVED_S = 30.0  # for what is being uploaded, before an older checkpoint is looked for


def one_sided(error: Exception) -> Fault | None:
    """The fault, if it may have come upon one of several processes only, while they computed together."""
    match error:
        case Boundary() | Halted() | Broken() | BadCheckpoint() | Corrupt() | Rewound():
            return None
        case UserFault():
            return error.fault if error.fault.phase != "verdict" else None
        case _:
            return internal(error)


class Boundary(Exception):
    """Everyone stopped at this boundary, because a command of the log said so."""


def ended(
    error: Exception, replica: Replica, session: Session, snapshots: Snapshots, generation: int
) -> Report:
    """What the coordinator has to know: why it ended, and what is held."""
    match error:
        case Boundary():
            return replica.report(generation, "boundary")
        case Halted():
            return replica.report(generation, "halted")
        case Broken():
            return replica.report(generation, "broken", str(error))
        case BadCheckpoint():
            session.send("bad_checkpoint", step=error.step, file=error.file, why=error.why)
            return replica.report(generation, "broken", str(error))
        case Corrupt():
            replica.forget()
            corrupt = replica.report(generation, "corrupt", str(error))
            return replace(corrupt, corrupt=error.found)
        case Rewound():  # the driver hears of what is saved before it looks for the newest checkpoint
            snapshots.flush(SAVED_S)
            return replace(replica.report(generation, "rewound", str(error)), rewind=error.rewind)
        case UserFault():
            return replace(replica.report(generation, "fault"), fault=error.fault)
        case _:
            return replace(replica.report(generation, "fault"), fault=internal(error))
