"""What every member knows alike: the cursor, and the commit record that moves it by one step. No torch.

A commit gathers one entry per member; `merge` makes them one record, the same on every member, since sums
are exactly rounded (`math.fsum`) and therefore do not depend on the order or on who computed what. The
record decides everything that follows: skip or update, the clipping factor, which parameters were used.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from elastrain.trainers.membership.messages import Json
from elastrain.trainers.numerics.stability import remembered, spikes
from elastrain.trainers.spec.stability import LossSpike

_NOT_LOOKED_FOR = LossSpike(policy="off")


@dataclass(frozen=True)
class Counts:
    """How often each parameter was updated. Nearly always all alike, so the odd ones are listed."""

    common: int = 0
    odd: Mapping[str, int] = field(default_factory=dict)  # index of the parameter (as text) -> count

    @classmethod
    def each(cls, counts: Sequence[int]) -> Counts:
        """By index of the parameter."""
        common = max(set(counts), key=counts.count)
        return cls(common, {str(i): c for i, c in enumerate(counts) if c != common})

    def of(self, index: int) -> int:
        return self.odd.get(str(index), self.common)

    def advance(self, used: int, parameters: int, by: int = 1) -> Counts:
        """One more update, or `by`, for each parameter whose bit is set in `used`."""
        if used == (1 << parameters) - 1 and not self.odd:
            return Counts(self.common + by)
        return Counts.each([self.of(i) + by * (used >> i & 1) for i in range(parameters)])


@dataclass(frozen=True)
class Evaluation:
    """A running evaluation: how many of its steps are done, and the sums so far."""

    position: int = 0
    sums: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # name -> (sum, weight)


@dataclass(frozen=True)
class Cursor:
    """Replicated state: equal on all members, in every checkpoint, and handed to joiners."""

    step: int = 0  # global batches through the loop
    updates: int = 0  # of these, applied
    counts: Counts = Counts()
    skipped: int = 0
    skipped_in_row: int = 0
    chain: str = ""  # digest over all accepted steps: which samples, in which order
    evaluated_step: int = -1
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the evaluation at evaluated_step
    evaluation: Evaluation | None = None
    proven: int = 0  # the newest step whose parameters gave a finite loss and gradient, and no spike
    losses: tuple[float, ...] = ()  # of the last applied steps, to tell a spike by
    spikes_in_row: int = 0
    rollbacks: int = 0  # since training went wrong by itself; each one lowered the learning rate

    @property
    def position(self) -> int:
        """Steps of the running evaluation that are done."""
        return self.evaluation.position if self.evaluation is not None else 0

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Json) -> Cursor:
        evaluation = data.get("evaluation")
        return cls(
            **{
                **data,
                "counts": Counts(**data["counts"]),
                "evaluation": Evaluation(**evaluation) if evaluation else None,
                "losses": tuple(data.get("losses", ())),
            }
        )


HUGE = 2.0**1000  # sums of values beyond it might overflow on the way


def exact_sum(values: Iterable[float]) -> float:
    """The exactly rounded sum, independent of order; inf or nan as soon as one of the values is."""
    listed = list(values)
    if not all(map(math.isfinite, listed)):
        return math.nan if any(map(math.isnan, listed)) else sum(v for v in listed if math.isinf(v))
    if all(abs(v) < HUGE for v in listed):
        return math.fsum(listed)
    # fsum gives up when a sum on the way overflows, which depends on the order
    return math.fsum(v * 2.0**-64 for v in listed) * 2.0**64


def merge(entries: Sequence[Json], workers: Sequence[str]) -> Json:
    """The commit record of one training step from every member's entry, by rank.

    Entry: {step, log, norms: [fp64 squared norm per owned block], used: hex, sent: bytes, microbatches: [[j,
    loss sum, weight, seconds, digest of the sample ids, digest of the buffers that are not floats], ...],
    layers: if the spec asks for them (watch.py), inner: if a microbatch stands for so many updates, apart:
    under gossip}.
    """
    microbatches = sorted((row, workers[rank]) for rank, e in enumerate(entries) for row in e["microbatches"])
    rows = [row for row, _ in microbatches]
    seconds: dict[str, list[float]] = {}
    for row, worker in microbatches:
        seconds.setdefault(worker, []).append(row[3])
    chain = hashlib.sha256("".join(row[4] for row in rows).encode()).hexdigest()[:32]
    return {
        "step": entries[0]["step"],
        "log": max(e["log"] for e in entries),
        "loss": exact_sum(row[1] for row in rows),
        "weight": exact_sum(row[2] for row in rows),
        "norm_sq": exact_sum(n for e in entries for n in e["norms"]),
        "used": f"{int_or(int(e['used'], 16) for e in entries):x}",
        "bad": [[row[0], worker] for row, worker in microbatches if not math.isfinite(row[1])],
        "others": sorted({row[5] for row in rows}),
        "seconds": {w: [len(s), sum(s)] for w, s in seconds.items()},
        "sent": sum(e.get("sent", 0) for e in entries),
        "ids": chain,
        "workers": list(workers),
        **({"layers": sum_layers(entries)} if "layers" in entries[0] else {}),
        **({"inner": entries[0]["inner"]} if "inner" in entries[0] else {}),
        **({"apart": exact_sum(e["apart"] for e in entries)} if "apart" in entries[0] else {}),
    }


def sum_layers(entries: Sequence[Json]) -> list[list[float]]:
    """By layer the squared norm of each kind."""
    layers = zip(*(e["layers"] for e in entries), strict=True)
    return [[exact_sum(v for parts in layer for v in parts[kind]) for kind in range(3)] for layer in layers]


def int_or(masks: Iterable[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


@dataclass(frozen=True)
class Verdict:
    """What a record means."""

    applied: bool
    finite: bool
    loss: float  # mean
    grad_norm: float  # of the mean gradient, before clipping
    factor: float  # multiplies the summed gradient
    clip: float = 1.0  # the part of `factor` that is due to clipping

    @classmethod
    def of(cls, record: Json, scale: float, clip_norm: float | None) -> Verdict:
        """scale: what each microbatch's loss was multiplied with; undone here."""
        weight = record["weight"]
        finite = math.isfinite(record["loss"]) and math.isfinite(record["norm_sq"]) and math.isfinite(weight)
        if not finite or weight <= 0:
            loss = record["loss"] / weight if weight else record["loss"]
            return cls(False, finite, loss, math.sqrt(record["norm_sq"]) if finite else math.nan, 0.0)
        factor = 1.0 / (scale * weight)
        norm = math.sqrt(record["norm_sq"]) * factor
        # as torch.nn.utils.clip_grad_norm_
        clip = min(1.0, clip_norm / (norm + 1e-6)) if clip_norm is not None else 1.0
        return cls(True, True, record["loss"] / weight, norm, factor * clip, clip)


def advance(
    cursor: Cursor, record: Json, verdict: Verdict, parameters: int, watched: LossSpike = _NOT_LOOKED_FOR
) -> Cursor:
    """The cursor after the step that `record` committed. watched: what a spike of the loss is."""
    chained = hashlib.sha256(f"{cursor.chain}{record['step']}:{record['ids']}".encode()).hexdigest()[:32]
    moved = replace(cursor, step=cursor.step + 1, chain=chained, evaluation=None)
    if not verdict.applied:
        in_row = cursor.skipped_in_row + (not verdict.finite)
        return replace(moved, skipped=cursor.skipped + 1, skipped_in_row=in_row)
    spiked = spikes(cursor.losses, verdict.loss, watched)
    return replace(
        moved,
        updates=cursor.updates + 1,
        counts=cursor.counts.advance(int(record["used"], 16), parameters, record.get("inner", 1)),
        skipped_in_row=0,
        proven=cursor.proven if spiked else cursor.step,
        losses=remembered(cursor.losses, verdict.loss, watched),
        spikes_in_row=cursor.spikes_in_row + 1 if spiked else 0,
    )


def merge_evaluation(cursor: Cursor, entries: Sequence[Json], steps: int) -> Cursor:
    """The cursor after one more step of the evaluation; `steps` is how many it has."""
    running = cursor.evaluation or Evaluation()
    sums: dict[str, tuple[list[float], list[float]]] = {}
    for entry in entries:
        for _, values in entry["microbatches"]:
            for name, (total, weight) in values.items():
                totals, weights = sums.setdefault(name, ([], []))
                totals.append(total)
                weights.append(weight)
    merged = dict(running.sums)
    for name, (totals, weights) in sums.items():
        before = merged.get(name, (0.0, 0.0))
        merged[name] = (exact_sum([before[0], exact_sum(totals)]), exact_sum([before[1], exact_sum(weights)]))
    done = Evaluation(running.position + 1, merged)
    if done.position < steps:
        return replace(cursor, evaluation=done)
    means = {f"val_{n}": (s / w if w else math.nan) for n, (s, w) in sorted(merged.items())}
    return replace(cursor, evaluation=None, evaluated_step=cursor.step, metrics=means)
