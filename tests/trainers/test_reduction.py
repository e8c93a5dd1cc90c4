"""The reduce of a step while backward still runs: what has left, what has arrived, what has broken."""

from __future__ import annotations

import math
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from elastrain.trainers.exchange.collectives import AT_ONCE, Broken, Group, joined
from elastrain.trainers.exchange.reduction import Reduction, square_norm
from elastrain.trainers.numerics.chunks import Domain, Filling, FlatSpace, Ownership
from elastrain.trainers.numerics.partials import Partial
from elastrain.trainers.numerics.tree import Node, climb, root
from trainers.room import Room

SPACE = FlatSpace.of([(name, (128,)) for name in "abc"])
OWN = Ownership.of(SPACE, [Domain(w, w, w) for w in ("w0", "w1")])


class Peer(Group):
    """The other one of two: its gradient is all ones, and arrives when the test says so."""

    def __init__(self, breaks_at: int | None = None) -> None:
        super().__init__(0, 2)
        self.breaks_at = breaks_at
        self.sent: list[Tensor] = []
        self.here = False

    def start_exchange(self, sends: Any, sizes: Any, dtype: torch.dtype, into: Tensor | None = None) -> Any:
        if self.breaks_at == len(self.sent):
            raise Broken("the peer is gone")
        self.sent.append(sends[1])
        peer = self

        class Arrival:
            def ready(self) -> bool:
                return peer.here

            def __call__(self) -> list[Tensor]:
                return [torch.ones(n) for n in sizes]

        return Arrival()


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.trainers.numerics.chunks.BUCKET", 128)


def begin(peer: Peer) -> tuple[Any, Reduction]:
    """Rank 0 computes microbatch 0, the peer microbatch 1."""
    replica = SimpleNamespace(
        partial=Partial.of(2, SPACE, Filling(SPACE)), reduced={}, model=SimpleNamespace(buffers=[])
    )
    return replica, Reduction(replica, peer, OWN, [[0], [1]])  # type: ignore[arg-type]


def backward(replica: Any, reduction: Reduction, upto: int) -> Any:
    addend = replica.partial.gradients.open(0, early=True, passed_on=reduction.passed_on)
    for piece in SPACE.pieces[:upto]:
        addend.take(piece, torch.full((128,), 2.0))
    return addend


def test_a_bucket_leaves_and_what_arrived_is_added_while_backward_goes_on() -> None:
    peer = Peer()
    replica, reduction = begin(peer)
    peer.here = True
    addend = backward(replica, reduction, 2)
    assert len(peer.sent) == 2
    assert len(reduction._sums) == 2, "what had arrived was added"
    addend.take(SPACE.pieces[2], torch.full((128,), 2.0))
    addend.close()
    reduction.finish()
    assert sorted(replica.reduced) == sorted(OWN.held(0))
    assert all(bool((total == 3.0).all()) for total in replica.reduced.values())
    assert bool((replica.partial.gradients.read(addend.top) == 2.0).all()), "own partials stay as they were"


def test_while_chunks_travel_no_bucket_leaves_before_them() -> None:
    """All members exchange in the same order."""
    peer, asked = Peer(), list[bool]()
    replica, reduction = begin(peer)
    peer.here, here = True, [False]

    def may_begin(wait: bool) -> bool:
        asked.append(wait)
        here[0] |= wait
        return here[0]

    reduction.may_begin = may_begin
    addend = backward(replica, reduction, 3)
    addend.close()
    assert not peer.sent and not any(asked)
    reduction.finish()
    assert len(peer.sent) == 3 and sorted(replica.reduced) == sorted(OWN.held(0))


def test_a_bucket_is_sent_from_where_it_lies() -> None:
    peer = Peer()
    replica, reduction = begin(peer)
    addend = backward(replica, reduction, 1)
    assert peer.sent[0].data_ptr() == addend.total.data_ptr()


def test_what_all_get_a_part_of_is_sent_from_where_it_lies() -> None:
    """Gradients in one piece for the owners, bucket by bucket, and their sums in one piece for the buddy."""
    own = Ownership.of(SPACE, [Domain(w, w, w) for w in ("w0", "w1", "w2")])
    replicas = [
        SimpleNamespace(
            partial=Partial.of(3, SPACE, Filling(SPACE)), reduced={}, model=SimpleNamespace(buffers=[])
        )
        for _ in range(3)
    ]
    sources: list[list[Tensor]] = [[], [], []]

    def reduce(group: Group) -> None:
        inner = group.start_exchange

        def start_exchange(sends: Any, *more: Any) -> Any:
            sources[group.rank].append(joined([torch.empty(0) if s is None else s for s in sends]))
            return inner(sends, *more)

        group.start_exchange = start_exchange  # type: ignore[method-assign]
        replica = replicas[group.rank]
        replica.partial.gradients.parts = climb({Node(group.rank, 1): torch.ones(SPACE.size)}, 3)
        Reduction(replica, group, own, [[0], [1], [2]]).finish()  # type: ignore[arg-type]

    Room(3).all(reduce)
    for rank, (*buckets, on) in enumerate(sources):
        (gradient,) = replicas[rank].partial.gradients.parts.values()
        assert [b.data_ptr() for b in buckets] == [
            gradient[SPACE.elements(bucket)].data_ptr() for bucket in SPACE.buckets()
        ]
        mine = [c for c in own.owned(rank) if c[0] < c[1]]
        assert len(on) == sum(map(SPACE.length, mine))
        assert on.data_ptr() == replicas[rank].reduced[mine[0]].data_ptr()


def test_a_few_buckets_are_under_way_at_once_and_no_more() -> None:
    """What arrives of all buckets at once would be a gradient more in memory, where peers are late."""
    peer = Peer()
    replica, reduction = begin(peer)
    backward(replica, reduction, 3).close()
    assert len(peer.sent) == AT_ONCE < len(SPACE.buckets())
    peer.here = True
    reduction.finish()
    assert len(peer.sent) == len(SPACE.buckets())
    assert all(bool((total == 3.0).all()) for total in replica.reduced.values())


def test_once_a_step_is_committed_nothing_of_its_gradients_is_kept() -> None:
    """Parameters travel then, and need the room."""
    peer = Peer()
    replica, reduction = begin(peer)
    backward(replica, reduction, 3).close()
    reduction.finish()
    vectors = [weakref.ref(t) for t in (*replica.partial.gradients.parts.values(), *replica.reduced.values())]
    peer.sent.clear()
    replica.partial, replica.reduced = None, {}  # as `apply` does
    reduction.committed(True)
    assert [ref() for ref in vectors] == [None] * len(vectors)


def test_a_peer_that_is_lost_during_backward_does_not_cost_the_microbatch() -> None:
    peer = Peer(breaks_at=1)
    replica, reduction = begin(peer)
    backward(replica, reduction, 3).close()
    replica.partial.rows[0] = [0]
    with pytest.raises(Broken, match="the peer is gone"):
        reduction.finish()
    assert bool((next(iter(replica.partial.gradients.parts.values())) == 2.0).all())


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "has", [[[0, 1, 2, 3, 4]], [[0, 1, 2], [3, 4]], [[4], [0, 2], [1, 3]], [[], [0, 1, 2, 3], [4]]]
)
def test_every_lane_reaches_its_keepers_with_the_bits_of_the_tree(lanes: int, has: list[list[int]]) -> None:
    world = len(has)
    own = Ownership.of(SPACE, [Domain(f"w{r}", f"w{r}", f"w{r}") for r in range(world)])
    vectors = [torch.randn(lanes * SPACE.size) for _ in range(5)]
    replicas: list[Any] = []
    norms: list[float] = []
    for rank in range(world):
        partial = Partial.of(5, SPACE, Filling(SPACE), lanes=lanes)
        partial.gradients.parts = climb({Node(j, 1): vectors[j] for j in has[rank]}, 5)
        replicas.append(SimpleNamespace(partial=partial, reduced={}, model=SimpleNamespace(buffers=[])))

    def reduce(group: Group) -> None:
        reduction = Reduction(replicas[group.rank], group, own, has)
        reduction.finish()
        norms.extend(reduction.norms)

    Room(world).all(reduce)
    expected = root({Node(j, 1): v for j, v in enumerate(vectors)}, 5).view(lanes, -1)
    for rank, replica in enumerate(replicas):
        assert sorted(replica.reduced) == sorted(own.held(rank))
        for chunk, sums in replica.reduced.items():
            assert torch.equal(sums, expected[:, SPACE.elements(chunk)]), f"rank {rank}, blocks {chunk}"
    of_gradient = float(expected[0].double().square().sum())
    assert math.fsum(norms) == pytest.approx(of_gradient, rel=1e-5)


@pytest.mark.parametrize(
    ("value", "expected"), [(3e38, 64 * 9e76), (1e-30, 64e-60), (0.0, 0.0), (2.0, 256.0)]
)
def test_a_gradient_whose_squares_leave_the_range_of_fp32_still_has_a_norm(
    value: float, expected: float
) -> None:
    block = torch.full((64,), value)
    assert square_norm(block, torch.empty(128, dtype=torch.float64)) == pytest.approx(expected, rel=1e-6)


def test_a_norm_is_not_finite_exactly_if_the_gradient_is_not() -> None:
    wide = torch.empty(64, dtype=torch.float64)
    for bad in (float("nan"), float("inf")):
        block = torch.ones(64)
        block[3] = bad
        assert not math.isfinite(square_norm(block, wide))
