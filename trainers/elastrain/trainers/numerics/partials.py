"""What a worker has computed of a step that is not committed yet: partial sums over the canonical tree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from elastrain.trainers.numerics.chunks import Filling, FlatSpace, Piece
from elastrain.trainers.numerics.memory import blank_again
from elastrain.trainers.numerics.tree import Climber, Node, ascent, complete_units

PassedOn = Callable[[int], None]  # is told the position of each bucket whose sums are final
Fill = Callable[[Tensor, list[Tensor]], None]  # makes the other lanes of some elements from the first one


class TwiceReady(RuntimeError):
    """A gradient came once more after its bucket had been passed on; the message says what to change."""


class GradientSums:
    """Gradients as partial sums by subtree. They survive a broken generation, so what was received from
    others is never added into them.

    lanes: how many vectors go up the tree together, each as long as the space. The first is the gradient.
    """

    def __init__(
        self, space: FlatSpace, filling: Filling, count: int, ceiling: int | None = None, lanes: int = 1
    ) -> None:
        """ceiling: leaves of the subtrees above which nothing is added up here; None: up to the root."""
        self.space, self.filling, self.count, self.ceiling = space, filling, count, ceiling
        self.lanes = lanes
        self.parts: dict[Node, Tensor] = {}  # (lanes * size,) f32, lane after lane
        self._open: Addend | None = None

    def windows(self, elements: slice) -> list[slice]:
        """Where some elements of the space lie in a sum, lane by lane."""
        size = self.space.size
        return [slice(elements.start + n * size, elements.stop + n * size) for n in range(self.lanes)]

    def read(self, node: Node) -> Tensor:
        """The sum over a subtree, also if the microbatch that completes it is still being added: then only
        the buckets that it has passed on are to be looked at. Raises KeyError."""
        if self._open is not None and self._open.top == node:
            return self._open.total
        return self.parts[node]

    def open(
        self, microbatch: int, *, early: bool, passed_on: PassedOn | None, fill: Fill | None = None
    ) -> Addend:
        """early: add and pass on each bucket as soon as it is complete, rather than all of them at the end.
        passed_on: is told the position of each bucket whose sums are final. fill: makes the other lanes; else
        whoever opens it writes `vector`."""
        self._open = Addend(self, microbatch, early, passed_on, fill)
        return self._open

    def shut(self) -> None:
        self._open = None


class Addend:
    """The gradient of one microbatch on its way from backward into the sums, bucket by bucket, while it is
    still in the cache. Call `take` for every parameter, then `close`; or `abandon`."""

    def __init__(
        self,
        sums: GradientSums,
        microbatch: int,
        early: bool,
        passed_on: PassedOn | None,
        fill: Fill | None = None,
    ) -> None:
        self.sums, self.early, self.passed_on, self.fill = sums, early, passed_on, fill
        self.meets, self.top = ascent(Node(microbatch, 1), sums.parts, sums.count, sums.ceiling)
        self.vector = blank_again(sums.lanes * sums.space.size, torch.float32)
        for gap in sums.space.gaps():
            self.vector[gap].zero_()
        self.total = self.vector  # the vector in which the sum comes to lie: the leftmost one
        for sibling in self.meets:
            self.total = sums.parts[sibling] if sibling.is_left else self.total
        self.used = 0  # bit `index` of each parameter that came
        self.twice = False
        self._added: set[int] = set()
        sums.filling.restart()

    def take(self, piece: Piece, grad: Tensor) -> None:
        """The gradient of one parameter. Raises TwiceReady."""
        window = self.vector[piece.start : piece.stop].view(piece.shape)
        if self.used >> piece.index & 1:
            self.twice = True
            if self._added:
                raise TwiceReady(
                    f"the gradient of {piece.name} came in two parts within one backward, which it did not "
                    "do before: give checkpoint(..., use_reentrant=False) in the model"
                )
            window.add_(grad)
            return
        window.copy_(grad)
        self.used |= 1 << piece.index
        complete = self.sums.filling.take(piece.index)
        for bucket in complete if self.early else ():
            self._add(bucket)

    def close(self) -> None:
        """Backward is over: what did not come counts as zero, and everything is added."""
        for piece in self.sums.space.pieces:
            if not self.used >> piece.index & 1:
                self.vector[piece.start : piece.stop].zero_()
        for bucket in range(len(self.sums.filling.buckets)):
            if bucket not in self._added:
                self._add(bucket)
        for sibling in self.meets:
            del self.sums.parts[sibling]
        self.sums.parts[self.top] = self.total
        self.sums.shut()

    def abandon(self) -> list[int]:
        """Backward failed. Sums that already hold a part of it are dropped: the microbatches in them."""
        self.sums.shut()
        spoiled = self.meets if self._added else []
        for sibling in spoiled:
            del self.sums.parts[sibling]
        return [leaf for sibling in spoiled for leaf in sibling.leaves(self.sums.count)]

    def _add(self, bucket: int) -> None:
        windows = self.sums.windows(self.sums.space.elements(self.sums.filling.buckets[bucket]))
        if self.fill is not None:
            self.fill(self.vector[windows[0]], [self.vector[w] for w in windows[1:]])
        for window in windows:
            mine = self.vector
            for sibling in self.meets:
                other = self.sums.parts[sibling]
                left, right = (other, mine) if sibling.is_left else (mine, other)
                left[window] += right[window]
                mine = left
        self._added.add(bucket)
        if self.passed_on is not None:
            self.passed_on(bucket)


@dataclass
class Partial:
    """What this worker computed of a step that is not committed yet. It survives a broken generation."""

    count: int
    gradients: GradientSums
    buffers: Climber[Tensor]  # (floats,) f64 each
    rows: dict[int, list[float | str]] = field(default_factory=dict)  # microbatch -> its row of the record
    used: int = 0
    others: dict[str, Tensor] = field(default_factory=dict)
    under_way: dict[int, Any] = field(default_factory=dict)  # microbatch -> what is done of it, and is kept

    @classmethod
    def of(
        cls, count: int, space: FlatSpace, filling: Filling, ceiling: int | None = None, lanes: int = 1
    ) -> Partial:
        sums = GradientSums(space, filling, count, ceiling, lanes)
        return cls(count, sums, Climber(count, inplace=True, ceiling=ceiling))

    def keep_whole(self, unit: int) -> None:
        """Forget what is in a unit that is not complete: another worker may compute all of it next."""
        kept = complete_units(self.rows, self.count, unit)
        lost = [j for j in self.rows if j not in kept]
        self.forget(lost)
        for node in [n for n in self.gradients.parts if n.start in lost]:
            del self.gradients.parts[node]

    def forget(self, microbatches: list[int]) -> None:
        """Their gradients are lost: they have to be computed again."""
        for microbatch in microbatches:
            self.rows.pop(microbatch, None)
        for node in [n for n in self.buffers.parts if n.start in microbatches]:
            del self.buffers.parts[node]
