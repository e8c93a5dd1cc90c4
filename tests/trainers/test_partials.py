"""Partial sums: what a worker keeps of a step while backward still runs."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from elastrain.trainers.numerics.chunks import Filling, FlatSpace
from elastrain.trainers.numerics.flat import FlatModel
from elastrain.trainers.numerics.partials import GradientSums, Partial, TwiceReady
from elastrain.trainers.numerics.tree import Node, root

SHAPES = [("a", (3, 5)), ("b", (400,)), ("c", (2,))]
SPACE = FlatSpace.of(SHAPES)


def vector(seed: int) -> Tensor:
    """A gradient with zeros where no parameter lies."""
    drawn = torch.randn(SPACE.size, generator=torch.Generator().manual_seed(seed))
    flat = torch.zeros(SPACE.size)
    for piece in SPACE.pieces:
        flat[piece.start : piece.stop] = drawn[piece.start : piece.stop]
    return flat


def give(sums: GradientSums, microbatch: int, *, early: bool) -> list[int]:
    """Add a microbatch's gradient, parameter by parameter; the buckets in the order they were passed on."""
    told: list[int] = []
    addend = sums.open(microbatch, early=early, passed_on=told.append)
    flat = vector(microbatch)
    for piece in SPACE.pieces:
        addend.take(piece, flat[piece.start : piece.stop].view(piece.shape))
    addend.close()
    return told


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastrain.trainers.numerics.chunks.BUCKET", 128)


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("early", [False, True])
def test_sums_have_the_bits_of_the_tree_whenever_buckets_are_added(
    order: tuple[int, ...], early: bool
) -> None:
    sums = GradientSums(SPACE, Filling(SPACE), 3)
    for microbatch in order:
        give(sums, microbatch, early=early)
    expected = root({Node(j, 1): vector(j) for j in range(3)}, 3)
    assert torch.equal(sums.parts[Node(0, 4)], expected)


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("early", [False, True])
def test_a_second_lane_is_made_of_each_microbatch_and_added_in_the_same_order(
    order: tuple[int, ...], early: bool
) -> None:
    sums = GradientSums(SPACE, Filling(SPACE), 3, lanes=2)

    def square(gradient: Tensor, others: list[Tensor]) -> None:
        torch.mul(gradient, gradient, out=others[0])

    for microbatch in order:
        addend = sums.open(microbatch, early=early, passed_on=None, fill=square)
        flat = vector(microbatch)
        for piece in SPACE.pieces:
            addend.take(piece, flat[piece.start : piece.stop].view(piece.shape))
        addend.close()
    total = sums.parts[Node(0, 4)].view(2, -1)
    assert torch.equal(total[0], root({Node(j, 1): vector(j) for j in range(3)}, 3))
    assert torch.equal(total[1], root({Node(j, 1): vector(j).square() for j in range(3)}, 3))


@pytest.mark.usefixtures("small_buckets")
def test_a_bucket_is_passed_on_while_backward_still_owes_the_next() -> None:
    sums = GradientSums(SPACE, Filling(SPACE), 2)
    give(sums, 1, early=True)
    seen: list[Tensor] = []

    def passed_on(bucket: int) -> None:
        window = SPACE.elements(SPACE.buckets()[bucket])
        seen.append(sums.read(Node(0, 2))[window].clone())

    addend = sums.open(0, early=True, passed_on=passed_on)
    flat = vector(0)
    first, *others = SPACE.pieces
    for piece in [first, others[0]]:
        addend.take(piece, flat[piece.start : piece.stop].view(piece.shape))
    assert 0 < len(seen) < len(SPACE.buckets())
    addend.take(others[1], flat[others[1].start : others[1].stop].view(others[1].shape))
    addend.close()
    assert torch.equal(torch.cat(seen), vector(0) + vector(1))


@pytest.mark.usefixtures("small_buckets")
def test_a_backward_that_fails_midway_leaves_no_half_added_sum() -> None:
    partial = Partial.of(4, SPACE, Filling(SPACE))
    for microbatch in (0, 2):
        give(partial.gradients, microbatch, early=True)
        partial.rows[microbatch] = [microbatch]
        partial.buffers.add(microbatch, torch.ones(1, dtype=torch.float64))
    addend = partial.gradients.open(3, early=True, passed_on=None)
    piece = SPACE.pieces[1]
    addend.take(piece, vector(3)[piece.start : piece.stop].view(piece.shape))  # fills a bucket
    partial.forget(addend.abandon())
    assert set(partial.gradients.parts) == {Node(0, 1)} == set(partial.buffers.parts)
    assert list(partial.rows) == [0]
    for microbatch in (1, 2, 3):
        give(partial.gradients, microbatch, early=True)
    expected = root({Node(j, 1): vector(j) for j in range(4)}, 4)
    assert torch.equal(partial.gradients.parts[Node(0, 4)], expected)


def test_what_was_computed_of_a_unit_that_is_not_complete_is_forgotten() -> None:
    partial = Partial.of(5, SPACE, Filling(SPACE), ceiling=2)
    for microbatch in (0, 1, 2, 4):
        give(partial.gradients, microbatch, early=False)
        partial.rows[microbatch] = [microbatch]
        partial.buffers.add(microbatch, torch.ones(1, dtype=torch.float64))
    partial.keep_whole(2)
    assert set(partial.rows) == {0, 1, 4}
    assert set(partial.gradients.parts) == {Node(0, 2), Node(4, 2)} == set(partial.buffers.parts)
    give(partial.gradients, 3, early=False)  # another one's, say: it has the place to itself
    assert torch.equal(partial.gradients.parts[Node(3, 1)], vector(3))


def test_a_parameter_that_no_microbatch_used_counts_as_zero() -> None:
    sums = GradientSums(SPACE, Filling(SPACE), 1)
    addend = sums.open(0, early=True, passed_on=None)
    for piece in SPACE.pieces:
        addend.vector[piece.start : piece.stop] = 7.0  # memory is what it was
    addend.take(SPACE.pieces[0], torch.ones(SPACE.pieces[0].shape))
    addend.close()
    assert addend.used == 1 << SPACE.pieces[0].index
    padding = SPACE.size - sum(p.numel for p in SPACE.pieces)
    assert padding > 0 and addend.total.sum() == SPACE.pieces[0].numel


class Reentrant(nn.Module):
    """Its weight gets its gradient in two parts, as with reentrant checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        once = checkpoint(self.inner, x, use_reentrant=True)
        return self.outer(checkpoint(self.inner, once, use_reentrant=True)).sum()


def test_a_gradient_that_comes_in_two_parts_is_the_sum_of_both() -> None:
    torch.manual_seed(0)
    model = FlatModel(Reentrant())
    x = torch.randn(2, 4, requires_grad=True)
    expected = torch.autograd.grad(
        model.module.outer(model.module.inner(model.module.inner(x))).sum(), model.module.inner.weight
    )[0]
    sums = GradientSums(model.space, Filling(model.space), 1)
    addend = sums.open(0, early=False, passed_on=None)
    with model.handing_over(addend.take):
        model.module(x).backward()
    addend.close()
    assert addend.twice
    piece = next(p for p in model.space.pieces if p.name == "inner.weight")
    torch.testing.assert_close(sums.parts[Node(0, 1)][piece.start : piece.stop].view(4, 4), expected)


def test_a_second_part_that_comes_after_its_bucket_has_left_is_refused_with_the_remedy() -> None:
    model = FlatModel(Reentrant())
    addend = GradientSums(model.space, Filling(model.space), 1).open(0, early=True, passed_on=None)
    with pytest.raises(TwiceReady, match=r"inner.*use_reentrant=False"), model.handing_over(addend.take):
        addend._added.add(0)
        model.module(torch.randn(2, 4, requires_grad=True)).backward()


def test_gradients_that_a_tasks_own_backward_has_left_are_taken_as_well() -> None:
    model = FlatModel(nn.Linear(2, 1, bias=False))
    taken: list[str] = []
    with model.handing_over(lambda piece, grad: taken.append(piece.name)):
        model.parameters[0].grad = torch.ones(1, 2)
    assert taken == ["weight"]
    assert model.parameters[0].grad is None
