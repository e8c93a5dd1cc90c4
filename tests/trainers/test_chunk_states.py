"""Optimizer state by chunk: what a new layout keeps, and what it gives back."""

import torch

from elastrain.trainers.numerics.chunks import FlatSpace
from elastrain.trainers.numerics.optimizers import rule
from elastrain.trainers.numerics.states import ChunkStates, Slot
from elastrain.trainers.spec import SGDSpec

SPACE = FlatSpace((), 10 * 64, 64)


def states() -> ChunkStates:
    """Ten blocks in one piece; each element is its own number."""
    held = ChunkStates(SPACE, rule(SGDSpec(name="sgd", lr=0.1, momentum=0.9)))
    held.put((0, 10), {"momentum_buffer": torch.arange(640.0)})
    return held


def memory(held: ChunkStates) -> int:
    """Bytes that the pieces keep alive."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage() for p in held.pieces.values() for t in p.values()
    }
    return sum(s.nbytes() for s in storages.values())


def test_what_stays_as_a_whole_is_cut_without_a_copy() -> None:
    held = states()
    before = held.pieces[0, 10]["momentum_buffer"].data_ptr()
    held.relayout([(0, 5), (5, 10)])
    assert held.pieces[0, 5]["momentum_buffer"].data_ptr() == before
    assert memory(held) == 640 * 4
    assert torch.equal(held.pieces[5, 10]["momentum_buffer"], torch.arange(320.0, 640.0))


def test_what_stays_in_part_gives_the_rest_of_its_memory_back() -> None:
    held = states()
    held.relayout([(0, 5), (5, 10)])
    held.relayout([(0, 3), (6, 10)])
    assert memory(held) == (3 + 4) * 64 * 4
    assert torch.equal(held.pieces[6, 10]["momentum_buffer"], torch.arange(384.0, 640.0))


def test_a_chunk_over_two_pieces_is_put_together() -> None:
    held = states()
    held.relayout([(0, 3), (3, 10)])
    held.relayout([(2, 6)])
    assert torch.equal(held.pieces[2, 6]["momentum_buffer"], torch.arange(128.0, 384.0))
    assert memory(held) == 4 * 64 * 4


def test_neighbours_in_memory_become_one_chunk_without_a_copy() -> None:
    held = states()
    before = held.pieces[0, 10]["momentum_buffer"].data_ptr()
    held.relayout([(0, 5), (5, 10)])
    held.relayout([(0, 10)])  # the other worker is gone
    assert held.pieces[0, 10]["momentum_buffer"].data_ptr() == before
    assert memory(held) == 640 * 4


def test_any_part_of_what_was_begun_together_is_read_without_a_copy() -> None:
    """A first joiner was sent what had been copied before, into memory that nobody had touched: 0.13 s."""
    held = ChunkStates(SPACE, rule(SGDSpec(name="sgd", lr=0.1, momentum=0.9)))
    held.begin([(4, 10), (0, 4)])
    assert held.ranges() == [(0, 4), (4, 10)] and memory(held) == 640 * 4
    first = held.pieces[0, 4]["momentum_buffer"].data_ptr()
    assert held.read((2, 7))["momentum_buffer"].data_ptr() == first + 2 * 64 * 4


def test_values_that_several_elements_share_are_cut_with_their_chunks() -> None:
    more = [Slot("codes", torch.int8), Slot("scales", per=64)]
    held = ChunkStates(SPACE, rule(SGDSpec(name="sgd", lr=0.1)), more)
    held.begin([(0, 10)])
    assert {name: (t.dtype, t.numel()) for name, t in held.pieces[0, 10].items()} == {
        "codes": (torch.int8, 640),
        "scales": (torch.float32, 10),
    }
    held.put((0, 10), {"codes": torch.arange(640).to(torch.int8), "scales": torch.arange(10.0)})
    held.relayout([(1, 3), (8, 10)])
    assert held.pieces[1, 3]["scales"].tolist() == [1.0, 2.0]
    assert torch.equal(held.pieces[8, 10]["codes"], torch.arange(512, 640).to(torch.int8))
    assert memory(held) == 4 * 64 + 4 * 4
