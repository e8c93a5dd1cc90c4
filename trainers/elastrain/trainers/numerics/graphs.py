"""Who talks to whom in gossip, and how much each one's parameters count. Pure.

The mixing matrix W has W_ij >= 0, rows that sum to 1 (every worker takes an average) and columns that sum to
1 (what the workers have in sum stays, so does their mean): doubly stochastic. It follows from the graph and
the number of members alone, so every member works it out by itself, anew in each generation.

- ring: i and its two neighbours, 1/3 each.
- torus: a grid of the most square shape that has `world` places, its borders joined: i and up to four others.
- exponential: i hears those 1, 2, 4, ... places before it: what one knows reaches all in log2 steps (Ying et
  al. 2021, "Exponential graph is provably efficient for decentralized deep training").

All three look the same from each of their places, so equal weights are doubly stochastic; on a ring or torus
they are Metropolis weights too (Xiao and Boyd 2004).
"""

from __future__ import annotations

import math
from typing import Literal

Graph = Literal["ring", "torus", "exponential"]


def heard(graph: Graph, world: int, rank: int) -> dict[int, float]:
    """The ranks whose parameters `rank` takes into its average, itself among them -> their weights."""
    others = _others(graph, world, rank)
    weight = 1.0 / (len(others) + 1)
    return dict.fromkeys(sorted({rank, *others}), weight)


def hearers(graph: Graph, world: int, rank: int) -> list[int]:
    """The others that take the parameters of `rank` into theirs."""
    return [other for other in range(world) if other != rank and rank in heard(graph, world, other)]


def mixing_matrix(graph: Graph, world: int) -> list[list[float]]:
    """W, row by row."""
    rows = [heard(graph, world, rank) for rank in range(world)]
    return [[row.get(other, 0.0) for other in range(world)] for row in rows]


def grid(world: int) -> tuple[int, int]:
    """(rows, columns) with rows * columns = world, as square as can be; a prime number makes one row."""
    rows = next(r for r in range(math.isqrt(world), 0, -1) if world % r == 0)
    return rows, world // rows


def _others(graph: Graph, world: int, rank: int) -> set[int]:
    match graph:
        case "ring":
            found = {(rank - 1) % world, (rank + 1) % world}
        case "torus":
            rows, columns = grid(world)
            row, column = divmod(rank, columns)
            found = {(row + d) % rows * columns + column for d in (-1, 1)}
            found |= {row * columns + (column + d) % columns for d in (-1, 1)}
        case "exponential":
            found = {(rank - (1 << k)) % world for k in range((world - 1).bit_length())}
    return found - {rank}
