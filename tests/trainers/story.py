"""A story for the simulation: a small world, the order in which its turns come, and the deeds done to it.

A story is plain data, so it can be drawn by a seed (fast, for many) or by hypothesis (which makes a failing
one as short as it can), printed, pasted and told again: `python -m trainers.simulation --story "Story(...)"`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

LONGEST = 14  # deeds


@dataclass(frozen=True)
class Setup:
    workers: int
    minimum: int = 1
    per_group: int = 1
    spares: int = 0
    nodes: int = 1
    blocks: int = 1
    microbatches: int = 1
    total: int | None = None  # steps; None: until everybody wanted is there, then it is paused
    save_every: int = 1
    evaluate_every: int = 0
    poison: tuple[int, int] | None = None  # (step, microbatch) that raises on every worker
    flaky: float = 0.0  # chance of an exception per microbatch
    flaky_start: float = 0.0
    bad_upload: float = 0.0
    servers: int = 0  # that keep the state; the workers keep none then


@dataclass(frozen=True)
class Deed:
    """Something that is done to the world; `kind` is a name of the table in simulated_faults.py."""

    after: int  # turns since the deed before
    kind: str
    pick: int  # decides whom it hits, and how


@dataclass(frozen=True)
class Story:
    setup: Setup
    order: int  # seed of whose turn is next
    deeds: tuple[Deed, ...] = ()


def parse(text: str) -> Story:
    """A story as it was printed."""
    story = eval(text, {"Story": Story, "Setup": Setup, "Deed": Deed})
    assert isinstance(story, Story)
    return story


def draw(rng: random.Random, kinds: Sequence[str]) -> Story:
    """By a seed. kinds: names, each as often as it weighs. A story has its own selection of them."""
    workers, total = rng.randint(1, 6), rng.choice([None, rng.randint(1, 12)])
    setup = Setup(
        workers=workers,
        minimum=rng.choice([1, 1, rng.randint(1, workers)]),
        per_group=rng.choice([1, 1, 1, 2, 3]),
        spares=rng.choice([0, 0, 1, 2]),
        nodes=rng.randint(1, 3),
        blocks=rng.randint(1, 9),
        microbatches=rng.randint(1, 5),
        total=total,
        save_every=rng.randint(1, 8),
        evaluate_every=rng.choice([0, 0, 2, 3]),
        poison=(rng.randint(0, 8), 0) if rng.random() < 0.03 else None,
        flaky=rng.choice([0.0, 0.0, 0.0, 0.01]),
        flaky_start=rng.choice([0.0, 0.0, 0.0, 0.1]),
        bad_upload=rng.choice([0.0, 0.0, 0.1]),
    )
    mine = [rng.choice(kinds) for _ in range(rng.randint(1, 8))]
    deeds = tuple(
        Deed(rng.choice([rng.randint(0, 3), rng.randint(0, 60)]), rng.choice(mine), rng.randrange(1000))
        for _ in range(rng.randint(0, LONGEST))
    )
    return Story(setup, rng.randrange(1 << 20), deeds)


def setups() -> st.SearchStrategy[Setup]:
    """A small world: few workers, few blocks, few steps, so that everything meets everything."""
    rarely = st.sampled_from
    return st.integers(1, 6).flatmap(
        lambda workers: st.builds(
            Setup,
            workers=st.just(workers),
            minimum=st.one_of(st.just(1), st.integers(1, workers)),
            per_group=rarely([1, 1, 1, 2, 3]),
            spares=rarely([0, 0, 1, 2]),
            nodes=st.integers(1, 3),
            blocks=st.integers(1, 9),
            microbatches=st.integers(1, 5),
            total=st.one_of(st.none(), st.integers(1, 12)),
            save_every=st.integers(1, 8),
            evaluate_every=rarely([0, 0, 2, 3]),
            poison=rarely([None] * 30 + [(step, 0) for step in range(2)]),
            flaky=rarely([0.0, 0.0, 0.0, 0.01]),
            flaky_start=rarely([0.0, 0.0, 0.0, 0.1]),
            bad_upload=rarely([0.0, 0.0, 0.1]),
        )
    )


def stories(kinds: Sequence[str]) -> st.SearchStrategy[Story]:
    """By hypothesis; it shrinks to few deeds, few workers, and the first order that fails."""
    deed = st.builds(
        Deed,
        st.one_of(st.integers(0, 3), st.integers(0, 60)),
        st.sampled_from(list(kinds)),
        st.integers(0, 999),
    )
    deeds = st.lists(deed, max_size=LONGEST).map(tuple)
    return st.builds(Story, setups(), st.integers(0, (1 << 20) - 1), deeds)
