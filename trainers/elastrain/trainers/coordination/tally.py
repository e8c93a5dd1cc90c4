"""What people see of a running attempt: metrics per accepted step, progress, workers. No torch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

from elastrain.trainers.membership.balance import Pace
from elastrain.trainers.membership.machine import Machine
from elastrain.trainers.membership.messages import Json
from elastrain.trainers.membership.roster import State
from elastrain.trainers.membership.stragglers import Change, Stragglers
from elastrain.trainers.numerics.cursor import Cursor, Verdict, advance
from elastrain.trainers.numerics.data import Plan
from elastrain.trainers.numerics.layers import Layer, Watcher, metrics
from elastrain.trainers.numerics.rounds import plan_of, scale_of, verdict_of
from elastrain.trainers.numerics.schedules import learning_rate
from elastrain.trainers.numerics.stability import Expected
from elastrain.trainers.reporting.facts import event, now, warning
from elastrain.trainers.spec import JobSpec
from elastrain.trainers.strategies.behind import Behind

PROGRESS_S = 0.5
SPEED_STEPS = 10  # the speed shown is that of the last so many steps


class Tally:
    """Follows the accepted steps with a cursor of its own."""

    def __init__(self, spec: JobSpec, sink: Callable[[Json], None]) -> None:
        self.spec, self.sink = spec, sink
        self.plan: Plan | None = None
        self.parameters = 0
        self.cursor = Cursor()
        self.epoch_no = 0  # +1 per rollback: points of a smaller one are replaced
        self.replaced = 0
        self.status = "starting"
        self.pace = Pace()  # how fast each worker computes, as the next opening says it
        self.stragglers = Stragglers()
        self.behind = Behind()
        self.watcher = Watcher()
        self._shares: dict[str, int] = {}  # worker -> microbatches that it computed of the newest step
        self._recent: deque[tuple[float, int]] = deque(maxlen=SPEED_STEPS + 1)  # (s, samples)
        self._shown: dict[str, Json] = {}
        self._evaluated_step = self._measured_step = -1
        self._progress_at = 0.0
        self._warned: set[str] = set()

    def learn(self, said: Json) -> None:
        """Sizes, from the first worker that is warm. Raises EmptyDataset."""
        if self.plan is None:
            self.plan = plan_of(self.spec, said["train_size"])
            self.parameters = said["parameters"]
            layers = said.get("layers", ())
            self.watcher.layers = [Layer(name, size, int(mask, 16)) for name, size, mask in layers]

    def restored(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self._evaluated_step = cursor.evaluated_step  # told before it was saved
        self._measured_step = cursor.step
        self._recent.clear()

    def rolled_back(self) -> None:
        self.epoch_no += 1

    def accepted(self, record: Json, cursor: Json | None, machine: Machine) -> None:
        """One more step counts. cursor: given if the records of some steps before it were lost on the way."""
        if "task" not in record:  # else it is of one worker, and says nothing of the others
            self._watch(record, machine)
        if cursor is not None:
            self.cursor = Cursor.from_json(cursor)
            return
        if record["step"] != self.cursor.step or self.plan is None:
            return
        verdict = verdict_of(self.spec, self.plan, record)
        before, rule = self.cursor, self.spec.loss_spike
        rate = learning_rate(self.spec, before.updates, self.plan.total_steps, before.rollbacks)
        self.cursor = advance(before, record, verdict, self.parameters, rule)
        samples = self.plan.samples(record["task"][0] if "task" in record else record["step"])
        self._recent.append((time.monotonic(), samples))
        values = {
            "loss": verdict.loss,
            "grad_norm": verdict.grad_norm,
            "workers": float(sum(not w.server for w in machine.generation.members)),
            "sent_bytes": float(record.get("sent", 0)),
            **({"lr": rate / record.get("slower", 1)} if verdict.applied else {}),
            **self.behind.observe(record),
            **({"samples_per_s": self.speed} if self.speed else {}),
            **self._norms(record, verdict, scale_of(self.plan.batch)),
            **_apart(record),
        }
        self._point(self.cursor.step, values)
        if not verdict.applied:
            where = ", ".join(f"microbatch {j} on {w}" for j, w in record["bad"])
            what = "non-finite loss or gradient" if not verdict.finite else "its total weight is 0"
            text = f"step {self.cursor.step} was skipped: {what}{f' ({where})' if where else ''}"
            self.sink(event("step.skipped", text, {"step": self.cursor.step}))
        if self.cursor.spikes_in_row > before.spikes_in_row == 0:
            self._spike(before, verdict)

    def _spike(self, before: Cursor, verdict: Verdict) -> None:
        """The first of a row."""
        expected, step = Expected.of(before.losses), self.cursor.step
        limit = expected.limit(self.spec.loss_spike.threshold)
        usual = f"the median of the last {len(before.losses)} is {expected.median:.4g}"
        text = f"the loss of step {step} is {verdict.loss:.4g}; {usual}, a spike begins at {limit:.4g}"
        data = {"step": step, "loss": verdict.loss, "expected": expected.median, "limit": limit}
        self.sink(event("loss.spike", text, data))

    def _norms(self, record: Json, verdict: Verdict, scale: float) -> dict[str, float]:
        """What was measured in this step, where the spec asks for it; odd layers are told."""
        sums = record.get("layers", [])
        if not sums or not record["weight"]:
            return {}
        layers, mean = self.watcher.layers, 1.0 / (scale * record["weight"])
        norms = [math.sqrt(layer[0]) * mean for layer in sums]
        for odd in self.watcher.look(record["step"] + 1, norms, int(record["used"], 16)) if layers else ():
            self.sink(event(odd.type, odd.message, odd.data))
        return metrics(sums, [layer.name for layer in layers], mean, verdict.applied)

    def _watch(self, record: Json, machine: Machine) -> None:
        """Who was how fast, and who is so slow that people should know."""
        self.pace.observe(record)
        shares = {w: record["seconds"].get(w, (0, 0.0))[0] for w in record["workers"]}
        short = sum(shares.values()) < sum(self._shares.values())  # the last step of an epoch
        if shares != self._shares and not (short and shares.keys() == self._shares.keys()):
            self._shares = shares
            self.workers(machine)
        for change in self.stragglers.look(self.pace, record["workers"]):
            self._say(change, record, machine)

    def _say(self, change: Change, record: Json, machine: Machine) -> None:
        worker, node = change.worker, machine.roster.workers[change.worker].node
        rank, count = record["workers"].index(worker), self._shares[worker]
        what = f"{worker} (rank {rank} on {node}) takes {change.seconds:.3g} s per microbatch"
        against = f"{change.times:.1f} times the median of the other workers, {change.others:.3g} s"
        share = f"it computes {count} of {sum(self._shares.values())} microbatches"
        data = {
            "worker": worker,
            "node": node,
            "rank": rank,
            "step": record["step"] + 1,
            "seconds": round(change.seconds, 6),
            "median": round(change.others, 6),
            "share": self._share(worker),
        }
        if change.slow:
            self.sink(event("straggler.detected", f"{what}, {against}: {share}", data))
        else:
            text = f"{what} and is no straggler any more ({change.others:.3g} s on the others): {share}"
            self.sink(event("straggler.recovered", text, data))

    def _share(self, worker: str) -> float | None:
        """Of the microbatches of the newest step; None if it was no member of it."""
        return round(self._shares[worker] / sum(self._shares.values()), 3) if worker in self._shares else None

    @property
    def speed(self) -> float | None:
        """Samples per second over the last steps."""
        if len(self._recent) < 2:
            return None
        seconds = self._recent[-1][0] - self._recent[0][0]
        return round(sum(n for _, n in list(self._recent)[1:]) / seconds, 3) if seconds > 0 else None

    def opened(self, cursor: Json | None) -> None:
        """A generation goes on with this cursor. Whoever was to tell of its evaluation may be lost."""
        if cursor is not None and cursor["evaluated_step"] > max(0, self._evaluated_step):
            self.evaluated(cursor["evaluated_step"], cursor["metrics"])

    def evaluated(self, step: int, metrics: Json) -> None:
        """Means over the validation split, told once. Two members say it, each in the order of steps."""
        if step <= self._evaluated_step:
            return
        self._evaluated_step = step
        self._point(step, metrics)

    def _point(self, step: int, values: Json) -> None:
        self.sink({"kind": "metric", "at": now(), "step": step, "epoch_no": self.epoch_no, "values": values})

    def measured(self, step: int, metrics: Json) -> None:
        """At a boundary, of what is saved or evaluated there; told once."""
        if step > self._measured_step:
            self._measured_step = step
            self._point(step, metrics)

    def warn(self, message: str) -> None:
        """One of the job's warnings; told once, whoever finds it out."""
        if message not in self._warned:
            self._warned.add(message)
            self.sink(warning(message))

    def progress(self, status: str | None, machine: Machine) -> None:
        """Now and then, and whenever the status changes."""
        same = status is None or status == self.status
        if same and time.monotonic() - self._progress_at < PROGRESS_S:
            return
        self.status = status or self.status
        self._progress_at = time.monotonic()
        total = self.plan.total_steps if self.plan is not None else None
        left = (
            self.plan.samples_seen(total) - self.plan.samples_seen(self.cursor.step)
            if self.plan and total
            else None
        )
        self.sink(
            {
                "kind": "progress",
                "at": now(),
                "status": self.status,
                "reason": "waiting_for_workers" if machine.below_since is not None else None,
                "step": self.cursor.step,
                "total_steps": total,
                "epoch": self.plan.epoch(min(self.cursor.step, (total or 1) - 1))
                if self.plan is not None
                else 0,
                "samples_per_s": self.speed,
                "eta_s": round(left / self.speed, 1) if left is not None and self.speed else None,
                "steps_skipped": self.cursor.skipped,
                "workers_replaced": self.replaced,
                "workers_active": sum(
                    w.state is State.ACTIVE and not w.server for w in machine.roster.workers.values()
                ),
                "workers_target": machine.fleet.policy.target,
                "workers_held": sum(len(g.workers) for g in machine.roster.running() if not g.server),
                "chain": self.cursor.chain,
            }
        )

    def workers(self, machine: Machine) -> None:
        """A fact for each worker that changed."""
        ranks = {worker: rank for rank, worker in enumerate(machine.members)}
        for worker in machine.roster.workers.values():
            rank = ranks.get(worker.id)
            active = worker.state in (State.ACTIVE, State.LEAVING)
            fact = {
                "id": worker.id,
                "group": worker.group,
                "node": worker.node or None,
                "pid": worker.pid or None,
                "rank": rank if active else None,
                "state": worker.state.value,
                "joined_step": worker.joined_step,
                "share": self._share(worker.id) if active and rank is not None else None,
            }
            if self._shown.get(worker.id) != fact:
                self._note_replacement(worker.id, machine)
                self._shown[worker.id] = fact
                self.sink({"kind": "worker", "at": now(), **fact})

    def _note_replacement(self, worker_id: str, machine: Machine) -> None:
        """A worker that starts in a slot where one was lost replaces it."""
        worker = machine.roster.workers[worker_id]
        if worker_id in self._shown or not machine.progress.begun:
            return
        slot = machine.roster.groups[worker.group].slot
        before = [
            w.id
            for g in machine.roster.groups.values()
            if g.slot == slot and g.id != worker.group
            for w in machine.roster.peers(g.id)
            if w.state is State.LOST
        ]
        if before:
            self.replaced += 1
            text = f"{worker_id} is started in place of {before[-1]}"
            self.sink(event("worker.replaced", text, {"worker": worker_id, "replaces": before[-1]}))

    def lost(self, text: str, data: Json, machine: Machine) -> tuple[str, Json]:
        """What is said of a worker that is lost: where it was as a member, and with local_sgd what it costs.
        The others may have formed a generation without it by now."""
        worker, step = machine.roster.workers[data["worker"]], machine.progress.step
        if worker.id in machine.members:
            rank = machine.members.index(worker.id)
            text, data = f"{text} (rank {rank}, after step {step})", {**data, "rank": rank, "step": step}
        if self.spec.strategy.name != "local_sgd" or worker.joined_step is None:
            return text, data
        begun = worker.begun_at(step)
        return f"{text}; at most {begun} inner steps are computed again", {**data, "inner_steps": begun}

    def all_ended(self, machine: Machine) -> None:
        """Every process is gone."""
        for worker in machine.roster.workers.values():
            if worker.state is not State.LOST:
                worker.state = State.ENDED
        self.workers(machine)
        self._progress_at = 0.0
        self.progress(None, machine)


def _apart(record: Json) -> dict[str, float]:
    """Under gossip: the root mean square, over the workers, of how far they are from those they hear."""
    if "apart" not in record:
        return {}
    return {"neighbour_distance": math.sqrt(record["apart"] / len(record["workers"]))}
