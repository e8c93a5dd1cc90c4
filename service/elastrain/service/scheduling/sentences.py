"""Why a job waits, in a sentence: the one that REST and the command line show."""

from __future__ import annotations

from collections.abc import Sequence

from elastrain.service.jobs import Reason
from elastrain.service.scheduling.asks import LABEL, Ask, Policy, Wait
from elastrain.service.scheduling.room import NOW, SOON, Room

# names of jobs in one sentence
NAMED = 3


def needs(ask: Ask) -> str:
    """Such as `at least 2 workers with 1 CPU each`."""
    plural = "worker" if ask.min == 1 else "workers"
    each = ", ".join(_amount(name, amount) for name, amount in ask.worker.items() if amount > 0)
    shape = f" in groups of {ask.per_group} on one node" if ask.per_group > 1 else ""
    beside = f" and {ask.spares} spare{'s' if ask.spares > 1 else ''}" if ask.spares else ""
    return f"at least {ask.min} {plural}{beside} with {each} each{shape}{_servers(ask)}"


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{amount / 2**30:.3g} GiB of memory"
    return f"the {name}" if name.startswith(LABEL) else f"{amount:g} {name}"


def _servers(ask: Ask) -> str:
    if not ask.servers:
        return ""
    each = ", ".join(_amount(name, amount) for name, amount in ask.server.items() if amount > 0)
    each = f" with {each}{' each' if ask.servers > 1 else ''}" if each else ""
    return f", and {ask.servers} server{'s' if ask.servers > 1 else ''}{each}"


def never(ask: Ask, room: Room) -> Wait | None:
    """Why it cannot run on this cluster however long it waits; None if it can."""
    least = ask.min + ask.spares
    groups = least // ask.per_group
    if not room.nodes:
        message = "Ray has no node yet: it is still starting, or its nodes are gone"
        return Wait(Reason.DOES_NOT_FIT, message, least)
    could = room.empty(ask, groups)
    if could < groups:
        most = could * ask.per_group
        more = ", those included that could still be added" if any(node.new for node in room.nodes) else ""
        message = f"It needs {needs(ask)}; all nodes together{more}, empty, would hold {most}"
        return Wait(Reason.DOES_NOT_FIT, message, least - most)
    return None


def over_quota(ask: Ask, room: Room, policy: Policy) -> Wait:
    """The nodes have room, and the project may not use it."""
    quota, (workers, gpus) = policy.project(ask.project).quota, room.used(ask.project)
    least = ask.min + ask.spares
    limits = []
    if quota.workers is not None and workers + least + ask.servers > quota.workers:
        limits.append(f"uses {workers} of its {quota.workers} workers")
    if quota.gpus is not None and gpus + least * ask.gpus > quota.gpus:
        limits.append(f"uses {gpus:g} of its {quota.gpus} GPUs")
    said = " and ".join(limits) or "is giving workers back"
    message = f"It needs {needs(ask)}, and the project {ask.project} {said}"
    may = room.allowed(ask, least // ask.per_group) * ask.per_group
    return Wait(Reason.OVER_QUOTA, message, least - may)


def promised(ask: Ask, room: Room, givers: Sequence[Ask]) -> Wait:
    """What it needs is kept for it and comes back from others. Asked before it was taken."""
    least = ask.min + ask.spares
    now = room.fits(ask, least // ask.per_group) * ask.per_group
    message = f"It needs {needs(ask)}; it starts once {_names(givers, ask)} gave back what it lacks"
    return Wait(Reason.NO_CAPACITY, message, least - now)


def blocked(ask: Ask, room: Room, first: Ask | None) -> Wait:
    """No room beside what stays. first: a job before it for which room is kept."""
    least = ask.min + ask.spares
    groups = least // ask.per_group
    now = room.fits(ask, groups, (NOW,)) * ask.per_group
    if first is not None and now >= least:
        message = f"It waits behind {first.title_for(ask)}, which needs {needs(first)}"
        left = max(0, room.fits(ask, groups, (NOW, SOON))) * ask.per_group
        return Wait(Reason.BEHIND_OTHER_JOBS, message, least - left)
    before = f", and {first.title_for(ask)} is before it" if first is not None else ""
    message = f"It needs {needs(ask)}; {now} would fit now beside the jobs that run{before}"
    return Wait(Reason.NO_CAPACITY, message, least - now)


def _names(asks: Sequence[Ask], reader: Ask) -> str:
    titles = list(dict.fromkeys(ask.title_for(reader) for ask in asks))
    more = len(titles) - NAMED
    shown = titles[:NAMED] + ([f"{more} more"] if more > 0 else [])
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown) or "others"
