"""Measuring norms on request, before the commit: gradient, parameters and update of what a member owns.

The update is made on trial, of the record as it would be, and taken back. So the norms are part of the
commit record itself: whoever is lost, they are neither lost with it nor measured twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from elastrain.trainers.membership.messages import Json, Range
from elastrain.trainers.numerics.chunks import Ownership, Piece
from elastrain.trainers.numerics.layers import Layer, exact_parts
from elastrain.trainers.training.replica import Replica, one_thread

Parts = list[list[list[float]]]  # by layer and kind (layers.KINDS): numbers with the exact sum of squares


def layers_of(replica: Replica) -> list[Layer]:
    """Those that the spec asks for; of the whole model one, without a name."""
    pieces = sorted(replica.model.space.pieces, key=lambda p: p.index)
    if replica.spec.watch.norms == "layers":
        return Layer.all((p.name, p.numel) for p in pieces)
    return [Layer("", sum(p.numel for p in pieces), (1 << len(pieces)) - 1)]


def named(replica: Replica) -> list[Layer]:
    """The layers that the driver has to know by name."""
    return layers_of(replica) if replica.spec.watch.norms == "layers" else []


def measure(replica: Replica, ownership: Ownership, rank: int, record: Json) -> Parts:
    """record: as the commit would make it. Needs the reduced chunks that `rank` owns."""
    pieces = replica.model.space.pieces
    layers = layers_of(replica)
    place = {p.name: n for n, layer in enumerate(layers) for p in pieces if layer.mask >> p.index & 1}
    squares: Parts = [[[], [], []] for _ in layers]
    with one_thread():
        for chunk in (c for c in ownership.owned(rank) if c[0] < c[1]):
            for kind, values in enumerate(_trial(replica, chunk, record)):
                for piece, square in _squares(replica, chunk, values):
                    squares[place[piece.name]][kind].append(square)
    return [[exact_parts(kind) for kind in layer] for layer in squares]


def _trial(replica: Replica, chunk: Range, record: Json) -> list[Tensor]:
    """The summed gradient of a chunk; if the record leads to an update, also the parameters after it, and
    what it changes. (elements,) f32 each."""
    assert replica.cursor is not None
    verdict = replica.verdict(record)
    sums = replica.reduced[chunk]  # (lanes, elements), the gradient first
    gradient = sums[0]
    if not verdict.applied:
        return [gradient]
    params, state = replica.model.params[replica.model.space.elements(chunk)], replica.states.read(chunk)
    before, slots = params.clone(), {s: state[s].clone() for s in replica.rule.slots}
    after = replica.moved(replica.cursor, record, verdict)
    replica.update(chunk, sums.clone(), verdict, int(record["used"], 16), after)
    trial = params.clone()
    params.copy_(before)
    for slot, value in slots.items():
        state[slot].copy_(value)
    return [gradient, trial, trial - before]


def _squares(replica: Replica, chunk: Range, values: Tensor) -> list[tuple[Piece, float]]:
    """The squared norm of each parameter in each block of a chunk, which does not depend on who owns it."""
    space = replica.model.space
    origin, found = space.elements(chunk).start, []
    for piece, a, b in space.pieces_in(chunk):
        first, end = piece.start + a, piece.start + b
        while first < end:
            stop = min(end, (first // space.block + 1) * space.block)
            part = values[first - origin : stop - origin].to(torch.float64)
            found.append((piece, float(part.square_().sum())))
            first = stop
    return found
