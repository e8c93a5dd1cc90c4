"""Whose fault is it? The worker's session catches everything; here it is decided.

An exception is the user's when the same place (phase, step, microbatch) raised it on two workers, or twice
on the only one; before a worker is warm: on two starts, or at once where there is no doubt. A process that
vanishes without an exception proves nothing, unless processes vanish at the same step in three generations
in a row. How many vanish at once does not count: a node that is lost takes all of its workers with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastrain.trainers.membership.messages import Fault

VANISHED_LIMIT = 3  # generations
HUNG_LIMIT = 3  # workers


@dataclass
class Blame:
    seen: dict[tuple[str, int | None, int | None], list[str]] = field(default_factory=dict)
    vanished_step: int | None = None
    hung_in: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # (step, microbatch) -> workers
    vanished: dict[int, tuple[str, int]] = field(default_factory=dict)  # generation -> (worker, microbatch)

    def raised(self, worker: str, fault: Fault, alone: bool) -> bool:
        """Note an exception. True: it is the user's (or a verdict that every worker shares)."""
        workers = self.seen.setdefault(fault.place, [])
        workers.append(worker)
        if fault.at_once or fault.phase == "verdict":
            return True
        if fault.phase == "start":
            return len(workers) >= 2
        return len(set(workers)) >= 2 or (alone and len(workers) >= 2)

    def vanish(self, worker: str, began: tuple[int, int], generation: int) -> str | None:
        """Note a process that was gone without a word. A text: it happened too often at one place.

        began: (step, microbatch) that it had announced.
        """
        step, microbatch = began
        if step != self.vanished_step:
            self.vanished_step, self.vanished = step, {}
        self.vanished.setdefault(generation, (worker, microbatch))
        if len(self.vanished) < VANISHED_LIMIT:
            return None
        found = list(self.vanished.values())
        if len({j for _, j in found}) == 1:
            where = f"{step}, microbatch {microbatch} ({', '.join(w for w, _ in found)})"
        else:
            where = f"{step} ({', '.join(f'{w} in microbatch {j}' for w, j in found)})"
        return (
            f"worker processes vanished {len(found)} times in a row at step {where}, "
            "without a Python exception. A batch that needs too much memory, or a crash in native code, "
            "looks like this. Look at the last lines of their logs."
        )

    def hung(self, worker: str, began: tuple[int, int], seconds: float) -> str | None:
        """Note a worker that was removed since it said nothing more. A text: it happened too often there.

        began: (step, microbatch) that it had announced.
        """
        workers = self.hung_in.setdefault(began, [])
        workers.append(worker)
        if len(workers) < HUNG_LIMIT:
            return None
        step, microbatch = began
        return (
            f"microbatch {microbatch} of step {step} was not done within {seconds:.0f} s on "
            f"{len(workers)} workers ({', '.join(workers)}). A deadlock in the Task, or in a library that it "
            "calls, looks like this. Their logs show where each of them was."
        )
