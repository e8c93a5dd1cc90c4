"""Whom the others wait for in vain though it beats: stuck, or cut off from its peers. Pure.

    somebody waits, another says nothing for long ──▶ told of at half the limit, removed at the limit
    everybody waits and nothing arrives ──▶ after link_s they probe each other
        ├─ some do not reach some ──▶ who has the most cuts is removed
        └─ all reach all ──▶ after hang_s the same members meet once more; the third time without the last one

Busy is not dead. A member that waits for its peers says so every second, with the number of operations that
it has finished; every other word shows that its training thread goes on. So a long microbatch counts from
its beginning, and a slow link counts anew with each operation that got through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastrain.trainers.membership import messages as m
from elastrain.trainers.membership.fleet import Fleet
from elastrain.trainers.membership.generation import Generation
from elastrain.trainers.membership.messages import Event
from elastrain.trainers.membership.roster import Worker

FRESH_S = 5.0  # a member that waits says so every second; an older word is too old
PROBED_S = 10.0  # for everybody's answer; who does not answer complains of nobody
HANGS = 3  # in a row without a step, until the members are changed


class Stall:
    """Looks with every tick. Whom to remove it tells the fleet; a generation that has to end, its caller."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.slowest_s = 0.0  # of the steps that were committed, one after the other in one generation
        self.hangs = 0  # in a row without a step
        self._rarer = 0  # doublings of hang_s
        self._generation = 0
        self._step, self._step_at = 0, -1.0  # the last accepted one; < 0: not in this generation
        self._probed_at: float | None = None
        self._judged = False
        self._answers: dict[str, tuple[str, ...]] = {}

    @property
    def limit_s(self) -> float:
        """How long a member may say nothing while others wait for it."""
        return max(self.fleet.policy.stall_s, self.fleet.policy.stall_steps * self.slowest_s)

    @property
    def hang_s(self) -> float:
        """How long everybody may wait though all reach all. It doubles with each time, for slow links."""
        first_s = self.fleet.policy.hang_s
        return float(min(first_s * 2.0**self._rarer, max(first_s, self.limit_s)))

    # ---- what members say -------------------------------------------------------------------

    def heard(self, worker: Worker, event: Event, generation: int) -> None:
        """A word of a worker, in this generation or before it."""
        worker.last_beat = now = self.fleet.now
        if getattr(event, "generation", generation) != generation:
            return  # it changes nothing
        match event:
            case m.Beat():
                return  # another thread's
            case m.Probed(_, _, unreachable):
                self._answers[worker.id] = unreachable
                return  # as well
            case m.Waits(_, generation, finished):
                if worker.waits_since is None or worker.waits_in != (generation, finished):
                    worker.waits_since, worker.waits_in = now, (generation, finished)
            case _:
                worker.waits_since = None
        worker.spoke, worker.warned = now, False

    def _waits(self, worker: Worker) -> bool:
        return worker.waits_since is not None and self.fleet.now - worker.spoke <= FRESH_S

    # ---- what follows -----------------------------------------------------------------------

    def tick(self, generation: Generation) -> str | None:
        """Why the generation has to end though everybody is there, or None."""
        self._note(generation)
        survivors = generation.survivors
        over = generation.halted or any(w.report for w in survivors)  # who idles has to report as well
        missing = [w for w in survivors if not (w.report or (w.idle and not over))]
        self._look_for_stuck(survivors, missing, generation.halted)
        everybody = bool(missing) and all(self._waits(w) for w in missing)
        if self.fleet.lost or generation.halted or not everybody:  # who is halted waits no longer
            self._probed_at = None
            return None
        since = max(w.waits_since or 0.0 for w in missing)
        return self._look_for_hang(generation, self.fleet.now - since)

    def _note(self, generation: Generation) -> None:
        """How the job gets on."""
        now, step = self.fleet.now, self.fleet.progress.step
        if generation.number != self._generation:
            self._generation, self._probed_at, self._step_at = generation.number, None, -1.0
            for worker in generation.members:
                worker.spoke, worker.waits_since, worker.warned = now, None, False
        if step > self._step:
            if self._step_at >= 0:
                self.slowest_s = max(self.slowest_s, (now - self._step_at) / (step - self._step))
            self._step_at, self.hangs = now, 0
        self._step = step

    def _look_for_stuck(self, survivors: Sequence[Worker], missing: Iterable[Worker], halted: bool) -> None:
        now, limit_s = self.fleet.now, self.limit_s
        quiet = [w for w in missing if now - w.spoke > limit_s / 2]
        if not quiet or self.fleet.lost:  # half of the members are the most for one tick, whatever the reason
            return
        # while reports are collected the whole job waits, also for the only one that is left
        others_wait = halted or any(w.idle or w.report or self._waits(w) for w in survivors)
        others_wait = others_wait or self._hangs_again(survivors)
        stuck = [w for w in quiet if others_wait and now - w.spoke > limit_s]
        for worker in self.fleet.at_most_half(stuck):
            where = self._where(worker)
            text = f"stuck: it said nothing for {limit_s:.0f} s {where}, while others waited for it"
            self._blame(worker)
            self.fleet.evict(worker, text)
        for worker in (w for w in quiet if not w.warned and w not in stuck):
            worker.warned = True
            silent_s = round(now - worker.spoke, 1)
            then = f"it is removed after {limit_s:.0f} s" if others_wait else "nobody waits for it"
            text = f"{worker.id} has said nothing for {silent_s:.0f} s {self._where(worker)}; {then}"
            self.fleet.say("worker.stalled", worker, text, silent_s=silent_s)
            self.fleet.tell(m.Dump(worker.id))

    def _hangs_again(self, survivors: Sequence[Worker]) -> bool:
        """Is only one left, in the microbatch in which another was stuck, while somebody waits to join? For
        less than that the last one is not removed: with it goes what was not saved."""
        again = len(survivors) == 1 and survivors[0].began in self.fleet.blame.hung_in
        return again and bool(self.fleet.joiners())

    def _where(self, worker: Worker) -> str:
        began = self._computes(worker)
        if began is None:
            return f"at step {self.fleet.progress.step}"
        return f"since it began microbatch {began[1]} of step {began[0]}"

    def _computes(self, worker: Worker) -> tuple[int, int] | None:
        return worker.computes(self.fleet.progress.step, self.fleet.policy.in_order)

    def _blame(self, worker: Worker) -> None:
        if (began := self._computes(worker)) is not None:
            text = self.fleet.blame.hung(worker.id, began, self.limit_s)
            self.fleet.verdict = self.fleet.verdict or (("user", text) if text is not None else None)

    def _look_for_hang(self, generation: Generation, stalled_s: float) -> str | None:
        """Everybody has waited for so long. Is a link cut?"""
        survivors, now = generation.survivors, self.fleet.now
        if stalled_s <= self.fleet.policy.link_s:
            self._probed_at = None
        elif self._probed_at is None:
            self._probed_at, self._judged, self._answers = now, False, {}
            self.fleet.tell(m.Probe(generation.number, tuple(w.id for w in survivors)))
        elif not self._judged and (len(self._answers) >= len(survivors) or now - self._probed_at > PROBED_S):
            self._judged = True
            self._remove_unreachable(survivors)
        elif stalled_s > self.hang_s:
            return self._once_more(survivors, stalled_s)
        return None

    def _remove_unreachable(self, survivors: Sequence[Worker]) -> None:
        cuts = {frozenset((w, peer)) for w, lost in self._answers.items() for peer in lost}
        found = suspects(cuts, [w.id for w in survivors])
        for worker in self.fleet.at_most_half([w for id in found for w in survivors if w.id == id]):
            peers = sorted(peer for cut in cuts if worker.id in cut for peer in cut - {worker.id})
            self.fleet.evict(worker, f"cut off: no connection between it and {', '.join(peers)}")

    def _once_more(self, survivors: Sequence[Worker], stalled_s: float) -> str | None:
        self.hangs += 1
        self._rarer += 1
        text = f"everybody waited for {stalled_s:.0f} s, nothing arrived, and all reach all"
        if self.hangs >= HANGS and len(survivors) > 1:
            self.hangs = 0
            self.fleet.evict(survivors[-1], f"{text}, {HANGS} times in a row: it is the last in rank")
            return None
        self.fleet.tell(m.Say("generation.stalled", f"{text}: they meet once more", {"hangs": self.hangs}))
        return text


def suspects(cuts: Iterable[frozenset[str]], members: Sequence[str]) -> list[str]:
    """Whom to leave out so that all reach all: who has the most cuts first, of several the highest rank.

    cuts: pairs of which one could not reach the other. members: in rank order.
    """
    found: list[str] = []
    left = [cut for cut in cuts if len(cut) == 2 and cut <= set(members)]
    while left:
        found.append(max(members, key=lambda w: (sum(w in cut for cut in left), members.index(w))))
        left = [cut for cut in left if found[-1] not in cut]
    return found
