"""Compressed steps of several workers at once: the result is that of one worker, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers.exchange.compression import codec
from elastrain.trainers.exchange.reducing import Reduce, reducer
from elastrain.trainers.exchange.reduction import Reduction
from elastrain.trainers.membership.balance import Balance, Pace
from elastrain.trainers.numerics.chunks import Domain, Ownership
from elastrain.trainers.numerics.cursor import merge
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.spec import parse_spec
from elastrain.trainers.training.replica import Replica
from trainers.wires import Member, Wires, together

SCHEMES: list[Any] = [
    "bf16",
    "fp16",
    "int8",
    {"name": "topk", "fraction": 0.05},
    {"name": "powersgd", "rank": 2},
]
NAMES = ["bf16", "fp16", "int8", "topk", "powersgd"]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.trainers.numerics.chunks.BUCKET", 512)


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.Linear(40, 9, bias=False))


class Team:
    """Workers that take steps with gradients that the test gives: gradient(step, microbatch)."""

    def __init__(self, world: int, compression: Any, *, samples: int = 1000, **fields: Any) -> None:
        spec = {
            "name": "x",
            "task": "a.b:C",
            "steps": 50,
            "batch": {"size": 32, "microbatch": 4},
            "optimizer": {"name": "sgd", "lr": 1.0},
            "workers": {"min": 1, "max": 4},
            "compression": compression,
        }
        self.spec = parse_spec({**spec, **fields})
        self.workers = [f"w{r}" for r in range(world)]
        self.replicas = [
            Replica(self.spec, None, FlatModel(module()), samples, 0)  # type: ignore[arg-type]
            for _ in self.workers
        ]
        self.space = self.replicas[0].model.space
        self.own = Ownership.of(self.space, [Domain(w, w, w) for w in self.workers])
        self.wires = Wires(world)
        self.begin()

    def begin(self) -> None:
        for rank, replica in enumerate(self.replicas):
            replica.begin(self.own, rank)
        self.regroup()

    def regroup(self) -> None:
        """A new generation of the same workers."""
        self.members: list[Member] = self.wires.members()
        self.reduces: list[Reduce] = [
            reducer(replica, member, self.own)
            for replica, member in zip(self.replicas, self.members, strict=True)
        ]

    def gradient(self, step: int, microbatch: int) -> Tensor:
        """(size,) f32, zero where no parameter lies."""
        generator = torch.Generator().manual_seed(1000 * step + microbatch)
        flat = torch.zeros(self.space.size)
        for piece in self.space.pieces:
            flat[piece.start : piece.stop] = torch.randn(piece.numel, generator=generator)
        return flat

    def uses(self, step: int, parameter: str) -> bool:
        """Does the loss of a step depend on it?"""
        return True

    def reduce(self, dealt: Sequence[Sequence[int]]) -> list[Reduction]:
        """Everyone computes its microbatches and reduces them."""
        step = self.replicas[0].step

        def act(rank: int) -> Reduction:
            replica = self.replicas[rank]
            partial = replica.at_hand()
            reduction = self.reduces[rank](dealt)
            for j in dealt[rank]:
                if j in partial.rows:
                    continue
                last = reduction.passed_on if j == dealt[rank][-1] else None
                addend = partial.gradients.open(j, early=True, passed_on=last)
                flat = self.gradient(step, j)
                for piece in (p for p in self.space.pieces if self.uses(step, p.name)):
                    addend.take(piece, flat[piece.start : piece.stop].view(piece.shape))
                addend.close()
                partial.used |= addend.used
                samples = len(replica.plan.positions(step, j))
                partial.rows[j] = [j, 1.0 * samples, float(samples), 0.01, f"{j}", ""]
            reduction.finish()
            return reduction

        return together([lambda r=rank: act(r) for rank in range(len(self.replicas))])  # type: ignore[misc]

    def deal(self, pace: dict[str, float] | None = None) -> list[list[int]]:
        replica = self.replicas[0]
        return Balance(self.workers, Pace(pace)).deal(replica.count, None, replica.unit)

    def step(self, dealt: Sequence[Sequence[int]] | None = None, *, finite: bool = True) -> None:
        reductions = self.reduce(dealt or self.deal())
        entries = [
            {
                "step": r.step,
                "log": 0,
                "norms": reduction.norms if finite else [float("nan")],
                "used": f"{r.partial.used:x}" if r.partial else "0",
                "microbatches": list(r.partial.rows.values()) if r.partial else [],
            }
            for r, reduction in zip(self.replicas, reductions, strict=True)
        ]
        record = merge(entries, self.workers)
        for replica, reduction in zip(self.replicas, reductions, strict=True):
            reduction.committed(replica.apply(record).applied)

    def steps(self, count: int) -> Team:
        for _ in range(count):
            self.step()
        return self

    @property
    def state(self) -> dict[str, Tensor]:
        """Everything that owners keep, and that buddies keep the same of."""
        found: dict[str, list[Tensor]] = {}
        for bucket in self.space.buckets():
            for chunk, owner in self.own.chunks(bucket):
                for keeper in {owner, self.own.buddy[owner]} - {None}:
                    assert keeper is not None
                    mine = self.replicas[keeper].states.read(chunk)
                    theirs = self.replicas[owner].states.read(chunk)
                    assert all(torch.equal(mine[s], theirs[s]) for s in mine), "owner and buddy differ"
                window = self.space.elements(chunk)
                held = {"param": self.replicas[owner].model.params[window], **theirs}
                for name, value in held.items():
                    found.setdefault(name, []).append(value)
        return {name: torch.cat(values) for name, values in found.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_any_number_of_workers_gives_the_same_parameters_and_residuals(compression: Any) -> None:
    alone = Team(1, compression).steps(4).state
    for world in (2, 3, 4):
        assert same(Team(world, compression).steps(4).state, alone), f"{world} workers"


@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_who_computes_a_wire_node_next_learns_what_was_left_out_of_it(compression: Any) -> None:
    """Other shares in each step, and new generations between them."""
    alone, team = Team(1, compression).steps(6), Team(3, compression)
    deals = [
        [[0, 1], [2, 3, 4, 5], [6, 7]],
        [[0, 1, 2, 3], [4, 5], [6, 7]],
        [[], [0, 1, 2, 3], [4, 5, 6, 7]],
        [[4, 5], [6, 7], [0, 1, 2, 3]],
        [[0, 1], [2, 3], [4, 5, 6, 7]],
        [[0, 1], [2, 3], [4, 5, 6, 7]],
    ]
    for at, dealt in enumerate(deals):
        if at in (2, 5):
            team.regroup()
        team.step(dealt)
    assert same(team.state, alone.state)


@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_a_step_that_broke_before_its_commit_is_done_again_with_the_same_residuals(compression: Any) -> None:
    alone, team = Team(1, compression).steps(4), Team(3, compression).steps(2)
    team.reduce(team.deal())  # and nothing comes of it
    team.regroup()
    assert same(team.steps(2).state, alone.state)


@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_a_step_that_is_skipped_leaves_what_was_left_out_before_it(compression: Any) -> None:
    team = Team(3, compression).steps(2)
    before, common = team.state, {n: v.clone() for n, v in team.replicas[0].common.items()}
    team.step(finite=False)
    assert same(team.state, before)
    assert all(torch.equal(team.replicas[0].common[n], v) for n, v in common.items())
    alone = Team(1, compression).steps(2)
    alone.step(finite=False)
    alone.regroup()  # who computes a wire node asks its owner, and the team does not have to
    assert same(team.steps(1).state, alone.steps(1).state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_a_gradient_that_is_not_finite_or_becomes_so_skips_the_step_and_spoils_no_residual(
    compression: Any, bad: float
) -> None:
    team = Team(2, compression).steps(2)
    before, gradient = team.state, team.gradient

    def spoilt(step: int, microbatch: int) -> Tensor:
        return gradient(step, microbatch) + (bad if microbatch == 5 else 0.0)

    team.gradient = spoilt  # type: ignore[method-assign]
    team.step()
    cursor = team.replicas[0].cursor
    assert cursor is not None
    if cursor.skipped:
        assert same(team.state, before)
    else:
        assert bad == 1e38 and compression != "fp16", "bf16 and scales reach as far as fp32"
    assert all(bool(t.float().isfinite().all()) for t in team.state.values())


@pytest.mark.parametrize("compression", SCHEMES, ids=NAMES)
def test_a_short_batch_at_the_end_of_an_epoch_is_the_same_for_all(compression: Any) -> None:
    """Epochs of 32 + 32 + 6 samples: 8, 8 and 2 microbatches."""
    alone = Team(1, compression, samples=70).steps(6).state
    assert same(Team(3, compression, samples=70).steps(6).state, alone)


def test_in_a_batch_of_one_sample_what_was_left_out_does_not_weigh_as_in_a_full_one() -> None:
    """The update is the mean over the batch: 32 steps' worth of it would be a leap."""
    scheme = {"name": "topk", "fraction": 0.05}
    team = Team(1, scheme, samples=65)
    start = team.state["param"].clone()
    team.steps(2)
    usual = float((team.state["param"] - start).norm())
    before = team.state["param"].clone()
    team.gradient = lambda step, microbatch: torch.zeros(team.space.size)  # type: ignore[method-assign]
    team.step()
    assert 0.0 < float((team.state["param"] - before).norm()) < usual


def test_nothing_that_was_meant_is_lost_over_the_steps() -> None:
    """What came and what is still left out are together what was meant, but for the residuals' rounding."""
    for compression, tolerance in (("int8", 5e-3), ({"name": "topk", "fraction": 0.05}, 0.2)):
        team, plain = Team(2, compression), Team(2, "none")
        start = team.state["param"].clone()
        team.steps(20)
        plain.steps(20)
        packing = codec(team.spec.compression, team.space.block)
        assert packing is not None and packing.feedback is not None
        kind = packing.feedback
        left = sum(
            kind.decode(codes, team.state[f"{name}.scale"])
            for name, codes in team.state.items()
            if name.startswith("residual") and not name.endswith("scale")
        )
        assert isinstance(left, Tensor)
        factor = 1.0 / (team.replicas[0].scale * 32)
        came = start - team.state["param"] + left * factor
        meant = start - plain.state["param"]
        assert float((came - meant).norm() / meant.norm()) < tolerance


@pytest.mark.parametrize("compression", SCHEMES[2:], ids=NAMES[2:])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_what_was_left_out_of_a_parameter_waited_while_no_microbatch_used_it(
    world: int, compression: Any
) -> None:
    team = Team(world, compression)
    team.uses = lambda step, name: step not in (2, 3, 4) or name != "1.weight"  # type: ignore[method-assign]
    rested = next(p for p in team.space.pieces if p.name == "1.weight")
    window = slice(rested.start, rested.stop)
    team.steps(2)
    before, param = left_out(team)[:, window].clone(), team.state["param"][window].clone()
    assert before.any()
    team.steps(3)
    assert torch.equal(left_out(team)[:, window], before)
    assert torch.equal(team.state["param"][window], param)
    alone = Team(1, compression)
    alone.uses = team.uses  # type: ignore[method-assign]
    assert same(team.steps(2).state, alone.steps(7).state), "who computes a node has what its keepers have"


def left_out(team: Team) -> Tensor:
    """By wire node. (nodes, size) f32"""
    packing, state = codec(team.spec.compression, team.space.block), team.state
    assert packing is not None and packing.feedback is not None
    kind = packing.feedback
    names = sorted(n for n in state if n.startswith("residual") and not n.endswith("scale"))
    return torch.stack([kind.decode(state[n], state[f"{n}.scale"]) for n in names])


def sent(compression: Any, world: int = 2) -> float:
    """Bytes that a worker sends for each parameter in a step, without what goes down."""
    team = Team(world, compression, workers={"min": 1, "max": world}).steps(1)
    before = sum(team.wires.bytes)
    team.steps(1)
    return (sum(team.wires.bytes) - before) / team.space.size / world


def test_bytes_on_the_wire_beside_all_reduce() -> None:
    """Of two workers each sends its sums once, and the residuals with them."""
    plain = sent("none")
    assert plain == 4.0
    assert sent("bf16") == sent("fp16") == plain / 2
    assert sent("int8") == (64 + 4 + 16 + 4) / 64
    assert 36 / 64 < sent({"name": "topk", "fraction": 0.05}) < 36 / 64 + 0.6
    assert sent("int8", world=4) < sent("none", world=4)


def test_buddies_get_what_is_small_from_everybody_and_what_is_large_from_its_owner() -> None:
    topk = {"name": "topk", "fraction": 0.05}
    packed = sent(topk) - (32 + 4) / 64  # of one sum; two workers send one each
    assert sent(topk, 4) == pytest.approx(2 * 0.75 * (packed + (32 + 4) / 64), rel=0.05)
    assert sent("bf16", 4) == 2 * 0.75 + 4 / 4, "the sum of four as fp32 is smaller than four of them"


def test_a_matrix_of_rank_one_comes_through_powersgd_exactly() -> None:
    team = Team(2, {"name": "powersgd", "rank": 1})
    vectors = {
        p.name: (torch.randn(p.shape[0]), torch.randn(p.numel // p.shape[0])) for p in team.space.pieces
    }
    exact = torch.zeros(team.space.size)
    for piece in team.space.pieces:
        u, v = vectors[piece.name]
        exact[piece.start : piece.stop] = torch.outer(u, v).reshape(-1)
    team.gradient = lambda step, microbatch: exact.clone()  # type: ignore[method-assign]
    start = team.state["param"].clone()
    team.step()
    factor = 1.0 / (team.replicas[0].scale * 32)
    torch.testing.assert_close(start - team.state["param"], 8 * factor * exact, rtol=1e-4, atol=1e-4)


def test_powersgd_comes_nearer_to_a_gradient_that_stays_the_same() -> None:
    """The factors are those of the step before, once more multiplied: a power iteration."""
    team = Team(2, {"name": "powersgd", "rank": 2})
    fixed = team.gradient(0, 0)
    team.gradient = lambda step, microbatch: fixed.clone()  # type: ignore[method-assign]
    start, errors = team.state["param"].clone(), []
    factor = 8.0 / (team.replicas[0].scale * 32)
    for step in range(1, 25):
        team.step()
        meant = step * factor * fixed
        errors.append(float((start - team.state["param"] - meant).norm() / meant.norm()))
    assert errors[-1] < 0.35 * errors[0]
