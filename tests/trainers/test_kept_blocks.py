"""The memory of large vectors: used again and again, never while somebody still looks at it, and not kept for
sizes of a past that is over."""

from __future__ import annotations

import gc

import pytest
import torch

from elastrain.trainers.numerics import memory
from elastrain.trainers.numerics.memory import HUGE_PAGE, KeptBlocks

LEAST = KeptBlocks.LEAST // 4  # fp32 values
SIZE = 4 * LEAST + 3  # no whole number of pages


@pytest.fixture
def blocks() -> KeptBlocks:
    blocks = KeptBlocks()
    blocks.open = True
    return blocks


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that were asked of the kernel, block by block."""
    sizes, plain = list[int](), memory._from_the_kernel
    monkeypatch.setattr(memory, "_from_the_kernel", lambda size: sizes.append(size) or plain(size))
    return sizes


def test_a_step_gets_the_memory_that_the_last_one_let_go(blocks: KeptBlocks, mapped: list[int]) -> None:
    for step in range(5):
        long, short = blocks.take(SIZE, torch.float32), blocks.take(LEAST, torch.float32)
        assert (len(long), len(short), long.dtype) == (SIZE, LEAST, torch.float32)
        long.fill_(step), short.fill_(-step)
        assert long.eq(step).all() and short.eq(-step).all()
        del long, short
    assert len(mapped) == 2 and sum(mapped) <= 4 * (SIZE + LEAST) + HUGE_PAGE


def test_memory_is_nobody_elses_while_a_view_of_it_is_alive(blocks: KeptBlocks) -> None:
    vector = blocks.take(SIZE, torch.float32).fill_(1.0)
    part = vector[10:20].view(2, 5)
    del vector
    other = blocks.take(SIZE, torch.float32).fill_(2.0)
    assert part.eq(1.0).all() and other.eq(2.0).all()
    place = part.data_ptr() - 40
    del part
    assert blocks.take(SIZE, torch.float32).data_ptr() == place


def test_a_block_serves_a_vector_of_another_type_and_of_half_its_size_but_of_no_less(
    blocks: KeptBlocks, mapped: list[int]
) -> None:
    del (first := [blocks.take(SIZE, torch.float32)])[:]
    half = blocks.take(SIZE // 2, torch.float32)
    assert len(mapped) == 1 and len(half) == SIZE // 2
    del half, first
    assert blocks.take(SIZE // 2, torch.float64).dtype == torch.float64 and len(mapped) == 1
    blocks.take(SIZE // 4, torch.float32)
    assert len(mapped) == 2


def test_sizes_of_a_past_that_is_over_go_when_others_are_needed(
    blocks: KeptBlocks, mapped: list[int]
) -> None:
    blocks.take(SIZE, torch.float32)
    for _ in range(KeptBlocks.UNUSED):
        blocks.take(4 * SIZE, torch.float32)
    assert len(mapped) == 2, "and none goes before another one is needed"
    blocks.take(16 * SIZE, torch.float32)
    assert sorted(map(len, blocks._idle)) == sorted(mapped[1:])


def test_blocks_that_were_needed_at_once_only_in_the_past_go_as_well(
    blocks: KeptBlocks, mapped: list[int]
) -> None:
    crowd = [blocks.take(SIZE, torch.float32) for _ in range(9)]
    del crowd
    for _ in range(KeptBlocks.UNUSED):
        blocks.take(SIZE, torch.float32)
    blocks.take(16 * SIZE, torch.float32)
    assert len(mapped) == 10 and len(blocks._idle) == 2, "one that is in use again and again, and the new one"


def test_nothing_is_kept_where_memory_goes_back(blocks: KeptBlocks) -> None:
    late = blocks.take(SIZE, torch.float32)
    blocks.take(SIZE, torch.float32)
    blocks.close()
    assert not blocks.holds(4 * SIZE, None)
    del late
    gc.collect()
    assert not blocks._idle


def test_small_vectors_and_those_of_an_accelerator_are_the_allocators(blocks: KeptBlocks) -> None:
    assert blocks.holds(KeptBlocks.LEAST, None) and not blocks.holds(KeptBlocks.LEAST - 1, None)
    assert not blocks.holds(KeptBlocks.LEAST, torch.device("cuda"))
